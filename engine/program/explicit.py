"""Finds what jax rejects in a step under explicit axis types as ambiguous, by tracing shapes alone."""

import traceback
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from ..base.advice import error_line
from ..base.user_error import UserError
from ..hlo.module import LIBRARIES
from ..models.array import Array
from ..models.task import Scalars, Task, TrainState
from ..parallel.constraints import activation_rules
from ..parallel.rules import Decision, flax_rules
from ..spec.preset import Preset

MAX_MESSAGE = 300
"""Characters that are kept of jax's message."""


def refused(task: Task, preset: Preset, sizes: dict[str, int], state: TrainState, batch: Any) -> list[str]:
    """Returns why jax rejects the step, empty if it does not.

    `state` and `batch` hold `Decision`s. Needs no device; the result is cached in the task by layout.
    """
    key = repr((preset.layout, sizes))
    if key not in task.explicit_problems:
        task.explicit_problems[key] = _refused(task, preset, sizes, state, batch)
    return task.explicit_problems[key]


def _refused(task: Task, preset: Preset, sizes: dict[str, int], state: TrainState, batch: Any) -> list[str]:
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Explicit,) * len(sizes))

    def abstract(array: Array, decision: Decision) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, decision.spec))

    arrays, inputs = jax.tree.map(abstract, (task.state_arrays, task.batch_arrays), (state, batch))
    gradients = jax.tree.map(lambda leaf: leaf.sharding, arrays.params)
    rules = flax_rules(preset, task.annotated - set(sizes))

    def step(arrays: TrainState, inputs: Any) -> tuple[TrainState, Scalars]:
        return task.train_step(arrays, inputs, gradients)

    try:
        with jax.sharding.use_abstract_mesh(mesh), nnx.logical_axis_rules(rules), activation_rules(mesh, preset.rules):
            jax.eval_shape(step, arrays, inputs)
    except UserError as error:
        return list(error.problems)
    except BaseException as error:  # jax raises many types here, even within one version, and the user's code any
        return [f"{_location(error)}{error_line(error)[:MAX_MESSAGE]}: {_hint(task)}"]
    return []


def _location(error: BaseException) -> str:
    """Returns the innermost line of the model's code: `lm.py:88: x = y @ z: `."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not LIBRARIES.search(frame.filename)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}: " if frames else ""


def _hint(task: Task) -> str:
    use_auto = 'set axis_types = "auto" to let the compiler decide'
    return use_auto if task.logical_axes is not None else f"give it an out_sharding, or {use_auto}"
