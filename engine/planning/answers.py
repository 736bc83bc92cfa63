"""The engine's side of `shardtui plan`: traced costs, a search, and the compiler's. Uses no device."""

from collections.abc import Iterator

from ..base.output import say
from ..hlo.step_cost import StepCost
from ..spec.config import RunConfig, UserModel
from ..spec.preset_files import is_pitfall
from ..spec.preset_reader import load_preset, load_presets
from ..spec.topology import load_topology
from ..wire.engine_command import Turn, print_answer
from .compilers import load_cost, slot, store_cost
from .goal import SearchRequest
from .ranking import Board


def plan(config: RunConfig, target: str, *names: str) -> Iterator[Board]:
    """Yields the board of the named presets or of all: their layouts, then the costs as they are traced. `target`: a
    slice such as `v5e:2x4`, or a number of local devices. Raises UserError if the slice, a preset or the model is
    invalid."""
    topology = None if target.isdecimal() else load_topology(target)

    from ..program.setup import simulated_task
    from .estimate import estimate_row, layout_row

    task = simulated_task(config, topology.platform, topology.devices) if topology else simulated_task(config)
    presets = [load_preset(name) for name in names] or load_presets()[0]
    devices = topology.devices if topology else int(target)
    rows = [layout_row(task, preset, devices, topology) for preset in presets]
    yield Board(model=config.model_name, topology=target, rows=rows)
    for index, preset in enumerate(presets):
        if not rows[index].problems:
            rows[index] = estimate_row(task, preset, devices, topology)
            yield Board(model=config.model_name, topology=target, rows=rows)


def search(config: RunConfig, target: str, request: SearchRequest) -> Board:
    """Returns the most promising meshes, rules and settings."""
    topology = load_topology(target)

    from ..program.setup import simulated_task
    from .search import Search

    found = Search(simulated_task(config, topology.platform, topology.devices), topology, request)
    rows = found.rows([preset for preset in load_presets()[0] if not is_pitfall(preset.name)])
    return Board(
        model=config.model_name,
        topology=target,
        rows=rows,
        estimated=found.estimated,
        has_all_estimates=found.has_all_estimates,
    )


def compile_one(config: RunConfig, target: str, name: str) -> StepCost:
    """Returns the compiler's figures of one preset on a slice, with the breakdown of a step by the compiler's schedule.
    Prints a `Turn` while it waits for other plans."""
    topology, preset = load_topology(target), load_preset(name)
    program = ""
    if isinstance(config.model, UserModel):  # its costs are kept by the text of its step
        from ..models.task import Task
        from .ahead_of_time import lowered_text

        program = lowered_text(Task(config, topology.platform), preset, topology)
    cost = load_cost(config, preset, topology, program)
    if cost is None:
        from ..models.task import Task
        from .ahead_of_time import compile_cost

        with slot(lambda waits: print_answer(Turn(is_waiting=waits))):
            cost = compile_cost(Task(config, topology.platform), preset, topology)
        try:
            store_cost(config, preset, topology, cost, program)
        except OSError as error:
            say(f"cannot cache the compiler's answer: {error}")
    return cost
