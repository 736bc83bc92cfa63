"""How the arrays of any Orbax checkpoint would lie under a preset, by the names and logical axes of a model."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from etils import epath
from msgspec.structs import replace

from ..base.user_error import refuse
from ..distributed.outcomes import Problem
from ..models.array import Array
from ..models.task import Task
from ..parallel.rules import decide, preset_problems
from ..program.placement import array_info
from ..spec.config import SIMULATED_DEVICES, ModelConfig, RunConfig
from ..spec.preset import Preset
from ..spec.preset_reader import load_preset
from ..wire.checkpoints import Placed, StoredArray, StoredCheckpoint
from ..wire.descriptions import ArrayInfo, MeshInfo
from .arrays import stored_names
from .manifest import read_manifest
from .orbax_checkpoint import described
from .orbax_item import Stored


def place_checkpoint(config: RunConfig, directory: str) -> StoredCheckpoint:
    """Describes a checkpoint, and its arrays under the preset of `config`. The model is the checkpoint's own if
    shardtui saved it, but never a user's code in it; else the model of `config`. Raises UserError."""
    found, stored = described(directory)
    config = _with_own_model(config, epath.Path(found.directory))
    devices = config.devices or max((len(mesh.device_ids) for mesh in found.meshes), default=SIMULATED_DEVICES)
    return replace(found, placed=_placed(found.arrays, stored, config, devices))


def _with_own_model(config: RunConfig, checkpoint: epath.Path) -> RunConfig:
    for directory in (checkpoint, checkpoint.parent):
        try:
            own = read_manifest(directory).config
        except Problem:
            continue
        if isinstance(own.model, ModelConfig):
            return replace(config, model=own.model, model_name=own.model_name, training=own.training)
    return config


def _placed(arrays: Sequence[StoredArray], stored: Sequence[Stored], config: RunConfig, devices: int) -> Placed:
    preset = load_preset(config.preset)
    refuse([*preset.problems, *filter(None, [preset.size_problem(devices)])])
    task = Task(config, config.platform or "cpu")
    known = {array.names[0]: array for array in task.arrays}
    kinds = {name: array.kind for name, array in known.items() if array.shape}
    problems = preset_problems(preset, kinds, task.logical_axes)
    sizes = preset.sizes(devices)
    placed, unnamed = list[ArrayInfo](), list[str]()
    names = stored_names([tuple(map(_tree_key, each.path)) for each in stored], known)
    for array, model in zip(arrays, (known.get(name or "") for name in names), strict=True):
        if model and len(model.shape) == len(array.shape):
            placed.append(_under(preset, array, model, sizes, problems))
        elif array.shape:
            unnamed.append(array.name)
    mesh = MeshInfo(sizes, list(range(devices)))
    return Placed(
        preset=preset.name, model=config.model_name, mesh=mesh, arrays=placed, unnamed=unnamed, problems=problems
    )


def _tree_key(key: str | int) -> jax.tree_util.DictKey | jax.tree_util.SequenceKey:
    return jax.tree_util.SequenceKey(key) if isinstance(key, int) else jax.tree_util.DictKey(key)


def _under(preset: Preset, array: StoredArray, model: Array, sizes: dict[str, int], problems: list[str]) -> ArrayInfo:
    decision = decide(model.names, model.kind, array.shape, model.logical_axes, preset, sizes)
    problems += (f"{array.name}: {problem}" for problem in decision.problems)
    own = Array((array.name,), model.kind, tuple(array.shape), jnp.dtype(array.dtype), model.logical_axes)
    return array_info(own, decision, [list(dim.axes) for dim in decision.dims])
