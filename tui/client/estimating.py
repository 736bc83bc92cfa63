"""Presets by formula on the devices of a run, from a process that may load jax."""

import msgspec

from ...engine.planning.ranking import Row
from ...engine.spec.config import RunConfig
from ...engine.spec.preset import reference
from ...engine.wire.events import EngineReady
from ..state.measured_rows import with_capacity
from .planner import Planner


async def estimates(config: RunConfig, ready: EngineReady) -> dict[str, Row]:
    """By preset, of all that the run knows. Raises Invalid where there are none."""
    config = msgspec.structs.replace(config, platform=ready.devices[0].platform)
    names = [reference(info.name, info.source) for info in ready.presets]
    board = await Planner(config, str(len(ready.devices)), names, compiles=False).estimates()
    return {row.preset: with_capacity(row, ready.memory_limit) for row in board.rows}
