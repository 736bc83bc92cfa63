"""A cache of the TPU compiler's costs, keyed by everything that they depend on. Does not import jax.

The code of a user's model is not known, so its costs are keyed by the text of the lowered program.
"""

import hashlib
import os
from functools import cache
from pathlib import Path

import msgspec

from ..base.atomic_write import write_atomically
from ..base.directories import ENGINE
from ..base.regular_file import read_regular
from ..base.versions import installed_version
from ..spec.config import RunConfig, UserModel
from ..spec.preset import Preset
from ..spec.topology import Topology
from ..wire import run_directory
from .ranking import Cost

PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "nvidia-nvjitlink", "flax", "optax")
"""Packages whose versions are part of the key. Of this one, whose version may stay the same, it is the source."""
OPTIONS = [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
"""The user's options of the compiler, also part of the key: read before jax, on import, adds its own."""


def load(config: RunConfig, preset: Preset, topology: Topology, program: str = "") -> Cost | None:
    """Returns the cached cost, None if there is none. `program`: the lowered text, for a user's model."""
    try:
        return msgspec.json.decode(read_regular(_file(config, preset, topology, program)), type=Cost)
    except (OSError, msgspec.DecodeError):  # none, or truncated
        return None


def store(config: RunConfig, preset: Preset, topology: Topology, cost: Cost, program: str = "") -> None:
    """Writes a cost to the cache. Raises OSError, e.g. if the disk is full; an older entry stays intact."""
    file = _file(config, preset, topology, program)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(cost))


def _file(config: RunConfig, preset: Preset, topology: Topology, program: str) -> Path:
    versions = [installed_version(name) for name in PACKAGES]
    model = program if isinstance(config.model, UserModel) else config.model
    assert model, "a user's model is known by its program"
    about = (model, config.training, preset.layout, topology, versions, OPTIONS, _source(ENGINE))
    return run_directory.plan_cache() / f"{hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:32]}.json"


@cache
def _source(directory: Path) -> str:
    """Returns a digest of all modules below `directory`."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
