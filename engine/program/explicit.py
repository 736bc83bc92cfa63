"""What jax refuses of a step under explicit axis types, as it would have to guess: found by tracing shapes alone."""

import traceback
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from ..analysis.hlo import LIBRARIES
from ..base.advice import named
from ..base.invalid import Invalid
from ..models.array import Array
from ..models.task import Task, TrainState
from ..parallel.constraints import activation_rules
from ..parallel.rules import Decision, flax_rules
from ..spec.preset import Preset

LONGEST = 300
"""Characters of what jax says."""


def refused(task: Task, preset: Preset, sizes: dict[str, int], state: TrainState, batch: Any) -> list[str]:
    """Why there is no step, one line at most. `state` and `batch` hold `Decision`s. Needs no device, and is found once
    for each layout."""
    key = repr((preset.laid_out, sizes))
    if key not in task.refused:
        task.refused[key] = _refused(task, preset, sizes, state, batch)
    return task.refused[key]


def _refused(task: Task, preset: Preset, sizes: dict[str, int], state: TrainState, batch: Any) -> list[str]:
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Explicit,) * len(sizes))

    def abstract(array: Array, decision: Decision) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, decision.spec))

    arrays, inputs = jax.tree.map(abstract, (task.state_arrays, task.batch_arrays), (state, batch))
    gradients = jax.tree.map(lambda leaf: leaf.sharding, arrays.params)
    rules = flax_rules(preset.rules, task.annotated - set(sizes))

    def step(arrays: TrainState, inputs: Any) -> tuple[TrainState, jax.Array]:
        return task.train_step(arrays, inputs, gradients)

    try:
        with (
            jax.sharding.use_abstract_mesh(mesh),
            nnx.logical_axis_rules(rules),
            activation_rules(mesh, preset.rules),
        ):
            jax.eval_shape(step, arrays, inputs)
    except Invalid as error:
        return list(error.problems)
    except Exception as error:  # of many types, also within one version of jax
        return [f"{_place(error)}{named(error)[:LONGEST]}: {_way_out(task)}"]
    return []


def _place(error: Exception) -> str:
    """The innermost line of the model's: `lm.py:88: x = y @ z: `."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not LIBRARIES.search(frame.filename)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}: " if frames else ""


def _way_out(task: Task) -> str:
    ours = 'take axis_types = "auto", where the compiler decides'
    return ours if task.logical_axes is not None else f"name an out_sharding there, or {ours}"
