"""A preset compiled for a slice that nobody has to hold: the TPU compiler runs here, the program never does."""

import os
import re
from importlib.util import find_spec

import jax
from jax.experimental import topologies

from .config import Invalid
from .mesh import canonical_order
from .program import Program, compile_program, place
from .task import Task
from .topology import Topology

GET_COMPILER = "pip install 'shardtui[tpu]' gets it; no TPU is needed"
TOO_LARGE = re.compile(r"Used (?P<used>[\d.]+)(?P<unit>[KMG]) of (?P<capacity>[\d.]+)(?P<of>[KMG]) hbm")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class TooLarge(Exception):
    """The program needs more memory than a device has. The bytes are the compiler's."""

    def __init__(self, message: str, needed: int | None, capacity: int | None) -> None:
        super().__init__(message)
        self.needed, self.capacity = needed, capacity


def find_slice(topology: Topology) -> list[jax.Device]:
    """Devices to compile for, in the order in which a mesh is filled. Raises Invalid."""
    if find_spec("libtpu") is None:
        raise Invalid(f"the TPU compiler is not installed: {GET_COMPILER}")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # asks the network who this machine is, for a minute
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology.name)
    except Exception as error:
        raise Invalid(f"--topology {topology.name}: the TPU compiler knows no such slice: {error}") from error
    return canonical_order(found.devices)


def compile_for(task: Task, preset, devices: list[jax.Device]) -> Program:
    """Raises TooLarge."""
    try:
        return compile_program(task, place(task, preset, devices))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise _too_large(str(error)) from error


def _too_large(message: str) -> TooLarge:
    found = TOO_LARGE.search(message)
    if found is None:
        return TooLarge(message, None, None)
    needed = float(found["used"]) * UNITS[found["unit"]]
    return TooLarge(message, int(needed), int(float(found["capacity"]) * UNITS[found["of"]]))
