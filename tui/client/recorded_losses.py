"""The losses of a run, read once from its events."""

import asyncio

from ...engine.wire.event_log import LogReader
from ...engine.wire.run_directory import RunDirectory
from ..state.interpreter import apply_all
from ..state.losses import Losses
from ..state.run_state import RunState


async def recorded_losses(run: RunDirectory) -> Losses:
    """Returns the losses of all steps. Raises FileNotFoundError, and Invalid if the events cannot be read."""
    state = RunState()
    for events in LogReader(run.events).read():
        apply_all(state, events)
        await asyncio.sleep(0)  # lets the UI handle keys and draw
    return state.losses
