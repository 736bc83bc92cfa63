"""What views and dialogs share: a guard against two races of Textual, in resizes and in clicks."""

from typing import Generic, TypeVar

from textual import on
from textual.events import Resize
from textual.geometry import Offset
from textual.screen import Screen
from textual.widget import Widget

T = TypeVar("T")


class BaseScreen(Screen[T], Generic[T]):
    """A screen that is safe in a burst of resizes, and when a click meets a widget that was just removed."""

    @on(Resize)
    def follow_terminal(self, event: Resize) -> None:
        """Replaces the event's size by the terminal's present one.

        A Textual screen posts a Resize to itself for each size it takes on: two in a burst would alternate for ever.
        """
        event.size = self.app.size  # pyright: ignore[reportUnknownMemberType]

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """Returns None for a widget that is removed but still drawn: Textual would look for its parent on a click."""
        widget, offset = super().get_widget_and_offset_at(x, y)
        return (widget, offset) if widget is None or widget.is_attached else (None, None)
