"""The command palette, without the races in Textual's own."""

from contextlib import suppress

from textual import work
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.events import Click, Mount

from .screens.dialog import Dialog


class Commands(CommandList):
    """The palette's list of commands."""

    async def _on_click(self, event: Click) -> None:
        """Ignores a click on a command that has left the list: each letter typed begins a new search."""
        event.prevent_default()
        if event.style.meta.get("option", -1) < self.option_count:
            await super()._on_click(event)


class Palette(CommandPalette, Dialog[None]):  # pyright: ignore[reportIncompatibleMethodOverride] # among Textual's own
    """The command palette as a dialog."""

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            yield Commands() if isinstance(widget, CommandList) else widget

    def _on_mount(self, event: Mount) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # as Textual's
        """Does nothing if the palette was closed before: then there is no view below it."""
        event.prevent_default()
        if self in self.app.screen_stack[1:]:  # pyright: ignore[reportUnknownMemberType] # an app of any type
            super()._on_mount(event)

    def _start_no_matches_countdown(self, search_value: str) -> None:
        if self.is_active:
            super()._start_no_matches_countdown(search_value)

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Stops the countdowns, which would update the list after it is gone."""
        self._stop_no_matches_countdown()
        self._stop_busy_countdown()
        return super().dismiss(result)

    def _on_click(self, event: Click) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # as Textual's
        """Ignores a click where there is no widget any more: the terminal became smaller."""
        event.prevent_default()
        with suppress(NoWidget):
            super()._on_click(event)

    def _action_command_list(self, action: str) -> None:
        """Ignores page up and page down while the list has no lines: Textual raises KeyError."""
        if not action.startswith("page") or self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)
    async def _gather_commands(self, search_value: str) -> None:
        """Ends quietly if the palette is closed during the search and its list is gone."""
        try:
            await CommandPalette._gather_commands.__wrapped__(self, search_value)  # type: ignore[attr-defined]
        except NoMatches:
            if self.is_active:
                raise
