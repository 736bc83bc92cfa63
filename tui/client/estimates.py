"""Estimates of a run's presets by formula, from a process that may import jax."""

import msgspec

from ...engine.planning.ranking import Row
from ...engine.spec.config import RunConfig
from ...engine.spec.preset import reference
from ...engine.wire.events import EngineReady
from ..state.measured_rows import with_capacity
from .planner import Planner


async def estimates(config: RunConfig, ready: EngineReady) -> dict[str, Row]:
    """Returns a row for each preset that the run knows, by name. Raises Invalid if the engine process fails."""
    config = msgspec.structs.replace(config, platform=ready.devices[0].platform)
    names = [reference(info.name, info.source) for info in ready.presets]
    board = await Planner(config, str(len(ready.devices)), names, compiles=False).estimates()
    return {row.preset: with_capacity(row, ready.memory_limit) for row in board.rows}
