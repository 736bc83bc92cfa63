"""Presets by formula on the devices of a run, from a process that may load jax."""

import msgspec

from ..engine.board import Row
from ..engine.config import RunConfig
from ..engine.preset import reference
from ..engine.protocol import EngineReady
from .measured_rows import with_capacity
from .planner import Planner


async def estimates(config: RunConfig, ready: EngineReady) -> dict[str, Row]:
    """By preset, of all that the run knows. Raises Invalid where there are none."""
    config = msgspec.structs.replace(config, platform=ready.devices[0].platform)
    names = [reference(info.name, info.source) for info in ready.presets]
    board = await Planner(config, str(len(ready.devices)), names, compiles=False).estimates()
    return {row.preset: with_capacity(row, ready.memory_limit) for row in board.rows}
