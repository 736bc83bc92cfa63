"""A list in which a click highlights an option, and enter or a double click selects it."""

from collections.abc import Container, Mapping

from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from .lines import refit_titles

PADDING = 2
"""Cells to the left and right of an option. In a list that is no wider, Textual cannot wrap the options: it has no
lines, and page up or down raises KeyError."""


class Choices(OptionList):
    """An option list that a click does not act on, and that works at any size."""

    shown: Mapping[str, Content] = {}
    """The rows that were shown last, by id."""

    def show_rows(self, rows: Mapping[str, Content], dividers: Container[str] = ()) -> None:
        """Redraws the rows that changed, or lists all anew if there are others. Then the cursor stays on its row,
        unless that is gone. `dividers`: ids of rows that cannot be chosen."""
        before, self.shown = self.shown, rows
        if list(rows) != list(before):
            chosen = self.highlighted_id
            self.set_options(Option(row, id=id, disabled=id in dividers) for id, row in rows.items())
            self.put_cursor_on(chosen)
            return
        for id, row in rows.items():
            if not row.is_same(before[id]):
                self.replace_option_prompt(id, row)

    @property
    def highlighted_id(self) -> str | None:
        return self.highlighted_option.id if self.highlighted_option else None

    def put_cursor_on(self, id: str | None) -> None:
        """Moves the cursor to a row, if it is listed."""
        if id is not None and id in self.shown:
            self.highlighted = self.get_option_index(id)

    def on_resize(self) -> None:
        refit_titles(self)

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
        """Replaces Textual's handler, which selects on a single click. The option may have been removed since."""
        event.prevent_default()
        at = event.style.meta.get("option")
        if at is None or at >= self.option_count or self.get_option_at_index(at).disabled:
            return
        self.highlighted = at
        if event.chain == 2:
            self.action_select()
