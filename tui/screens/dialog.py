"""Screens that are safe from two races of Textual, and dialogs: modal screens on top of a view until answered."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Generic, TypeVar

from textual import on
from textual.await_complete import AwaitComplete
from textual.events import Mount, Resize
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

from ...engine.base.output import printable
from ...engine.base.user_error import UserError

T = TypeVar("T")
WATCH_STYLES = Path(__file__).parents[1] / "watch.tcss"
STYLES: list[str | PurePath] = [WATCH_STYLES, WATCH_STYLES.with_name("views.tcss")]


class BaseScreen(Screen[T], Generic[T]):
    """A screen that is safe in a burst of resizes, and when a click meets a widget that was just removed."""

    CSS_PATH = STYLES

    def warn(self, *problems: str) -> None:
        self.notify("\n".join(map(printable, problems)), severity="warning", markup=False)

    @contextmanager
    def warning(self) -> Generator[None]:
        """Shows the problems of a UserError in this context, in place of raising it."""
        try:
            yield
        except UserError as error:
            self.warn(*error.problems)

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


class Dialog(BaseScreen[T], ModalScreen[T], Generic[T]):
    """A box in the middle of the view, whose result is a `T`, or None if it was closed. No notice lies over it."""

    @on(Mount)
    def clear_notices(self) -> None:
        self.app.clear_notifications()  # pyright: ignore[reportUnknownMemberType]

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Closes this dialog. A second call does nothing: Textual would pop whichever screen is on top."""
        if not self.is_active:
            return AwaitComplete()
        # Textual does so too, but once their widgets are gone
        self.workers.cancel_node(self)  # pyright: ignore[reportUnknownMemberType]
        return super().dismiss(result)
