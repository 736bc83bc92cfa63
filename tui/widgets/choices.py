"""A list of options in which a click selects, and enter or a double click acts."""

from textual.events import Click
from textual.geometry import Size
from textual.widgets import OptionList

from .lines import retitle

PADDING = 2
"""Cells beside an option. Where there are no more, Textual cannot wrap its text: it knows no line of the list, and a
page up or down is a KeyError."""


class Choices(OptionList):
    def on_resize(self) -> None:
        retitle(self)

    @property
    def has_room(self) -> bool:
        return self.scrollable_content_region.width > PADDING and self.scrollable_content_region.height > 0

    def _update_lines(self) -> None:
        if self.has_room:
            super()._update_lines()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return super().get_content_height(container, viewport, max(width, PADDING + 1))

    def action_page_up(self) -> None:
        if self.has_room:
            super().action_page_up()

    def action_page_down(self) -> None:
        if self.has_room:
            super().action_page_down()

    async def _on_click(self, event: Click) -> None:
        """In the place of Textual's, for which a click is enter."""
        event.prevent_default()
        at = event.style.meta.get("option")
        if at is None or self.get_option_at_index(at).disabled:
            return
        self.highlighted = at
        if event.chain == 2:
            self.action_select()
