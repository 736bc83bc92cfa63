"""A preset compiled for a slice that nobody has to hold: the TPU compiler runs here, the program never does."""

import os
import re

import jax
from jax.experimental import topologies

from ..analysis.traffic import flows
from ..base.advice import in_a_line
from ..base.invalid import Invalid
from ..models.task import Task
from ..parallel.mesh import canonical_order
from ..program.program import argument_bytes, compile_program, place
from ..spec.config import UserModel
from ..spec.preset import Preset
from ..spec.topology import Topology
from ..wire.events import PresetCompiled
from . import tpu_compiler
from .estimate import Step
from .ranking import Cost, timed

NEEDED = re.compile(r"(?:Used |HLO temporaries \()(?P<needed>[\d.]+)(?P<unit>[KMGT])\b")
PARTS = ("temporaries", "moments", "parameters", "variables", "batch", "padding")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def find_slice(topology: Topology) -> list[jax.Device]:
    """Devices to compile for, in the order in which a mesh is filled. Raises Invalid."""
    if not tpu_compiler.is_installed():
        raise Invalid(tpu_compiler.NO_COMPILER)
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # asks the network who this machine is, for a minute
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # another process may train: this one takes no TPU
    try:
        found = topologies.get_topology_desc(
            platform="tpu", topology_name=topology.name, chip_config_name=topology.chip.chip_config
        )
    except Exception as error:
        raise Invalid(f"--topology {topology.name}: the TPU compiler has no such slice: {error}") from error
    return canonical_order(found.devices)


def compile_cost(task: Task, preset: Preset, topology: Topology) -> Cost:
    """What the TPU compiler says of a preset. Raises Invalid."""
    step = None if isinstance(task.config.model, UserModel) else Step(task, preset, topology.devices)
    placement = place(task, preset, find_slice(topology))
    try:
        program = compile_program(task, placement)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _too_large(str(error), argument_bytes(task, placement), topology)
    return _cost(program.description, step, topology)


def _cost(compiled: PresetCompiled, step: Step | None, topology: Topology) -> Cost:
    """Without `step`, or where it has no formula, nobody knows how the work is shared out: nothing is said of time."""
    memory = compiled.memory
    assert memory is not None, "the TPU compiler always tells"
    cost = Cost(
        argument_bytes=memory.arguments,
        peak_bytes=memory.peak,
        capacity_bytes=topology.chip.memory,
        parts={name: size for name in PARTS if (size := getattr(memory, name))},
        collectives=None if compiled.collectives is None else flows(compiled.collectives),
    )
    return timed(cost, step.work, topology, compiled.mesh.axes) if step and not step.unknown else cost


def _too_large(message: str, arguments: int, topology: Topology) -> Cost:
    needed = needed_bytes(message)
    if needed is None:
        raise Invalid(in_a_line(message))
    return Cost(argument_bytes=arguments, peak_bytes=needed, capacity_bytes=topology.chip.memory)


def needed_bytes(message: str) -> int | None:
    """Of a program for which memory was exhausted; None where the compiler does not tell. Its "temporaries" are with
    arguments and outputs: a product of 400 GiB with a small matrix needs 800 GiB of them."""
    found = NEEDED.search(message)
    return int(float(found["needed"]) * UNITS[found["unit"]]) if found else None
