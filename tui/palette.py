"""The command palette, without the races in Textual's own, and its commands beside Textual's."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from textual import work
from textual.app import App, ComposeResult, SystemCommand
from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.events import Click, Mount
from textual.markup import escape

from .app_keys import PROFILE_STEPS
from .messages import PresetChosen
from .screens.dialog import Dialog
from .state.availability import why_not
from .state.run_state import RunState


class Commands(CommandList):
    async def _on_click(self, event: Click) -> None:
        """Ignores a click on a command that has left the list: each letter typed begins a new search."""
        event.prevent_default()
        if event.style.meta.get("option", -1) < self.option_count:
            await super()._on_click(event)


class Palette(CommandPalette, Dialog[None]):  # pyright: ignore[reportIncompatibleMethodOverride] # among Textual's own
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


COMMANDS = (
    ("detach", "Detach", "Close the UI; the run keeps training"),
    ("export", "Export this view", "Write it to the working directory as .svg and .txt"),
    ("pause", "Pause or resume", "A run takes it between two steps; of a replay, [ and ] change the speed"),
    ("step", "Step", "Train one step, then pause"),
    ("save", "Save now", "Write a checkpoint while training continues"),
    ("profile", "Profile", f"Trace the next {PROFILE_STEPS} steps and show where their time goes"),
    ("measure", "Compare presets", "Measure each preset that fits, in this run"),
    ("measure_numbers", "Measure numbers", "Measure what is in each array: Arrays shows it"),
    ("experts", "Experts", "Show how evenly the tokens are spread over the experts"),
    ("nonfinite", "First NaN", "Show where the first non-finite value came from"),
    ("edit_rules", "Edit rules", "Change a preset, preview the result, apply it to the run"),
    ("checkpoints", "Checkpoints", "List them, and go back to one"),
    ("restart", "Restart", "Save, then resume in a new engine process"),
    ("resume", "Resume", "Start a new engine process from the newest checkpoint"),
    ("stop", "End run", "Save after the current step, then stop the engine"),
)
"""Action, title and explanation of each command."""
OF_TEXTUAL = ("Theme", "Maximize", "Minimize")
"""Titles of Textual's commands that stay: there is a command here in the place of each other one."""


def palette_commands(app: App[Any], state: RunState) -> Iterable[SystemCommand]:
    """Yields the commands that do something now, and a switch to each preset, but for one that is under way."""
    for action, title, text in COMMANDS:
        if not why_not(action, state):
            yield SystemCommand(title, text, partial(app.run_action, action))
    if state.ready and not why_not("switch", state):
        pending = state.pending.preset if state.pending else ""
        for info in (each for each in state.ready.presets if each.name != pending):
            switch = partial(app.post_message, PresetChosen(info.name))
            yield SystemCommand(escape(f"Switch to {info.name}"), escape(info.summary), switch)
