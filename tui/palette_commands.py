"""The commands that the palette offers in addition to Textual's own, depending on the run's state."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from textual.app import App, SystemCommand
from textual.markup import escape

from ..engine.wire.commands import SwitchPreset
from .client.engine_client import EngineClient
from .state.availability import why_not
from .state.run_state import RunState

PROFILE_STEPS = 5
"""Steps in a trace that is requested by a key or in the palette."""
COMMANDS = (
    ("detach", "Detach", "Close the UI; the run keeps training"),
    ("export", "Export this view", "Write it to the working directory as .svg and .txt"),
    ("pause", "Pause or resume", "Takes effect between two steps"),
    ("play", "Pause or resume the replay", "The speed has keys of its own: [ and ]"),
    ("step", "Step", "Train one step, then pause"),
    ("save", "Save now", "Write a checkpoint while training continues"),
    ("profile", "Profile", f"Trace the next {PROFILE_STEPS} steps and show where their time goes"),
    ("measure", "Compare presets", "Measure each preset that fits, in this run"),
    ("edit_rules", "Edit rules", "Change a preset, preview the result, apply it to the run"),
    ("checkpoints", "Checkpoints", "List them, and go back to one"),
    ("restart", "Restart", "Save, then resume in a new engine process"),
    ("resume", "Resume", "Start a new engine process from the newest checkpoint"),
    ("stop", "End run", "Save after the current step, then stop the engine"),
)
"""Action, title and explanation of each command."""


def palette_commands(app: App[Any], client: EngineClient, state: RunState) -> Iterable[SystemCommand]:
    """Yields the commands that do something now, and a switch to each preset."""
    for action, title, text in COMMANDS:
        if not why_not(action, state):
            yield SystemCommand(title, text, partial(app.run_action, action))
    if state.ready and not why_not("switch", state):
        for info in state.ready.presets:
            switch = partial(client.send, SwitchPreset(info.name))
            yield SystemCommand(escape(f"Switch to {info.name}"), escape(info.summary), switch)
