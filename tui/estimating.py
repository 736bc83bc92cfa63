"""Presets by formula on the devices of a run, from a process that may load jax."""

from pathlib import Path

import msgspec

from ..engine.board import Row
from ..engine.config import RunConfig, user_presets
from ..engine.protocol import EngineReady, PresetInfo
from .measured_rows import with_capacity
from .planner import Planner


async def estimates(config: RunConfig, ready: EngineReady) -> dict[str, Row]:
    """By preset, of all that the run knows. Raises Invalid where there are none."""
    config = msgspec.structs.replace(config, platform=ready.devices[0].platform)
    names = [_reference(info) for info in ready.presets]
    board = await Planner(config, str(len(ready.devices)), names, compiles=False).estimates()
    return {row.preset: with_capacity(row, ready.memory_limit) for row in board.rows}


def _reference(info: PresetInfo) -> str:
    """What a preset is found by: its name, or its file."""
    by_name = info.source == "built-in" or Path(info.source).parent == user_presets() / "parallelism"
    return info.name if by_name else info.source
