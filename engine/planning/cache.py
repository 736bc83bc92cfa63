"""Answers of the TPU compiler, kept for as long as all that they depend on stays the same. Loads no jax."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ..base.regular_file import read_regular
from ..spec.config import RunConfig, UserModel
from ..spec.preset import Preset
from ..wire import run_directory
from .ranking import Cost

DEPENDS_ON = ("shardtui", "jax", "jaxlib", "libtpu", "flax", "optax")


def kept(config: RunConfig, preset: Preset, topology: str) -> Cost | None:
    """None also for a user's model: what its code does today is not known before it is compiled."""
    if isinstance(config.model, UserModel):
        return None
    try:
        return msgspec.json.decode(read_regular(_file(config, preset, topology)), type=Cost)
    except (OSError, msgspec.DecodeError):  # none, or one that was cut off
        return None


def keep(config: RunConfig, preset: Preset, topology: str, cost: Cost) -> None:
    """Raises OSError, as where the disk is full; what was there before stays."""
    if isinstance(config.model, UserModel):
        return
    file = _file(config, preset, topology)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(cost))
    part.replace(file)


def _file(config: RunConfig, preset: Preset, topology: str) -> Path:
    about = (config.model, config.training, preset.laid_out, topology, [_version(name) for name in DEPENDS_ON])
    return run_directory.plan_cache() / f"{hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:32]}.json"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
