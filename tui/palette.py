"""The command palette, with what Textual's lacks."""

from textual.command import CommandList, CommandPalette


class Palette(CommandPalette):
    def _action_command_list(self, action: str) -> None:
        """While it looks for commands its list has no line yet, and a page up or down of it is a KeyError."""
        if not action.startswith("page") or self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)
