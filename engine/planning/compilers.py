"""Compilers for devices that are not here: which are installed, how many run at a time, and their cached answers.

Imports neither the compilers nor jax.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import chain, count, takewhile
from pathlib import Path

import msgspec

from ..base.atomic_write import write_atomically
from ..base.directories import ENGINE
from ..base.encoding import encode_json
from ..base.machine import has_room, installed_version
from ..base.regular_file import append_regular
from ..base.untrusted import read_struct
from ..base.user_error import UserError
from ..hlo.step_cost import StepCost
from ..spec.config import RunConfig, UserModel
from ..spec.preset import Preset
from ..spec.topology import Topology
from ..wire.run_directory import plan_cache

NO_TPU_COMPILER = "the TPU compiler is not installed: run `pip install 'shardtui[tpu]'` (needs no TPU)"
NO_GPU_COMPILER = "the GPU compiler is not installed: run `pip install 'shardtui[gpu-compiler]'` (needs no GPU)"
PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
PTX_COMPILERS = ("nvidia-nvjitlink", "nvidia-cuda-nvcc", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvcc-cu12")
"""Without one of them, XLA's GPU compiler ends the process."""
POLL_SECONDS = 0.1
PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "nvidia-nvjitlink", "flax", "optax")
"""Packages whose versions are part of a cached cost's key, with the source of this one."""
OPTIONS = [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
"""The user's options of the compiler, also part of it: read before jax, on import, adds its own."""


def missing(topology: Topology) -> str | None:
    """Returns why nothing can be compiled for these devices and what to do; None if it can."""
    if topology.platform == "tpu":
        return None if find_spec("libtpu") else NO_TPU_COMPILER
    has_all = any(map(find_spec, PLUGINS)) and any(map(installed_version, PTX_COMPILERS))
    return None if has_all else NO_GPU_COMPILER


@contextlib.contextmanager
def slot(on_wait: Callable[[bool], None]) -> Iterator[None]:
    """Waits until a compilation may begin, and counts as one inside this context. A slot is a locked file, which is
    free again when its process ends, however it ends. If there can be none, for example on a read-only disk, nothing is
    waited for. `on_wait`: called with True when it begins to wait, and then with False when it has a slot."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            folder = plan_cache() / "slots"
            folder.mkdir(parents=True, exist_ok=True)
            if not _take_any(folder, held):
                on_wait(True)
                while not _take_any(folder, held):
                    time.sleep(POLL_SECONDS)
                on_wait(False)
        yield


def _take_any(folder: Path, held: contextlib.ExitStack) -> bool:
    for number in chain([0], takewhile(has_room, count(1))):
        file = append_regular(folder / str(number))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            held.enter_context(file)
            return True
    return False


def load_cost(config: RunConfig, preset: Preset, topology: Topology, program: str = "") -> StepCost | None:
    """Returns the cached cost of a step, None if there is none. Its key is everything that the cost depends on.
    `program`: the lowered text, for a user's model, whose code is not known."""
    with contextlib.suppress(UserError):  # none, or truncated
        return read_struct(_file(config, preset, topology, program), StepCost)
    return None


def store_cost(config: RunConfig, preset: Preset, topology: Topology, cost: StepCost, program: str = "") -> None:
    """Writes a cost to the cache. Raises OSError, e.g. if the disk is full; an older entry stays intact."""
    file = _file(config, preset, topology, program)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, encode_json(cost))


def _file(config: RunConfig, preset: Preset, topology: Topology, program: str) -> Path:
    versions = [installed_version(name) for name in PACKAGES]
    model = program if isinstance(config.model, UserModel) else config.model
    assert model, "a user's model is known by its program"
    about = (model, config.training, preset.layout, topology, versions, OPTIONS, _source(ENGINE))
    return plan_cache() / f"{hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:32]}.json"


@cache
def _source(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
