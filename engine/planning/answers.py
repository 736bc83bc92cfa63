"""`shardtui plan`, as the engine answers it: by formula, by search, and by the TPU compiler. No device is touched."""

import sys

from ..spec.config import RunConfig
from ..spec.preset_reader import load_preset, load_presets
from ..spec.topology import load_topology
from ..wire.answers import print_answer
from . import cache
from .parent import end_with_asker
from .ranking import Board


def plan(config: RunConfig, where: str, *names: str) -> None:
    """Prints a `Board` of estimates, as JSON: of these presets, or of all, on a slice or on so many devices at hand."""
    topology = None if where.isdecimal() else load_topology(where)
    from ..models.task import Task
    from .estimate import estimate_row

    task = Task(config, "tpu" if topology else config.platform or "cpu")
    presets = [load_preset(name) for name in names] or load_presets()[0]
    devices = topology.devices if topology else int(where)
    rows = [estimate_row(task, preset, devices, topology) for preset in presets]
    print_answer(Board(model=config.model_name, topology=where, rows=rows))


def search(config: RunConfig, where: str) -> None:
    """Prints a `Board` of the best meshes that none of the presets has, as JSON."""
    topology = load_topology(where)
    from ..models.task import Task
    from .search import search

    rows = search(Task(config, "tpu"), topology, load_presets()[0])
    print_answer(Board(model=config.model_name, topology=where, rows=rows))


def compile_one(config: RunConfig, where: str, name: str) -> None:
    """Prints a `Cost`, what the TPU compiler says of a preset on a slice, as JSON."""
    end_with_asker()
    topology, preset = load_topology(where), load_preset(name)
    cost = cache.kept(config, preset, where)
    if cost is None:
        from ..models.task import Task
        from .ahead_of_time import compile_cost

        cost = compile_cost(Task(config, "tpu"), preset, topology)
        try:
            cache.keep(config, preset, where, cost)
        except OSError as error:
            print(f"shardtui: the answer cannot be kept for the next time: {error}", file=sys.stderr)
    print_answer(cost)
