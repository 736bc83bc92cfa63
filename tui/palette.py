"""The command palette, with what Textual's lacks."""

from contextlib import suppress

from textual import work
from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.events import Click


class Palette(CommandPalette):
    def dismiss(self, result: None = None) -> AwaitComplete:
        """Once, as a `Dialog`."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def _on_click(self, event: Click) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # as Textual's
        """Where it was clicked there may be nothing any more: the terminal was made smaller."""
        event.prevent_default()
        with suppress(NoWidget):
            super()._on_click(event)

    def _action_command_list(self, action: str) -> None:
        """While it looks for commands its list has no line yet, and a page up or down of it is a KeyError."""
        if not action.startswith("page") or self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)
    async def _gather_commands(self, search_value: str) -> None:
        """It may be closed while it looks: then there is no list any more to show what it found."""
        try:
            await CommandPalette._gather_commands.__wrapped__(self, search_value)  # type: ignore[attr-defined]
        except NoMatches:
            if self.is_active:
                raise
