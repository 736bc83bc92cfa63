"""Places a preset on devices: its mesh, and the sharding of every array."""

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from ..base.advice import error_line
from ..base.user_error import UserError
from ..hlo.module import LIBRARIES
from ..models.task import Array, Scalars, Task, TrainState
from ..parallel.constraints import activation_rules
from ..parallel.mesh import build_mesh
from ..parallel.rules import Decision, by_rules, decide, flax_rules, preset_problems, spec_of
from ..spec.config import UserModel
from ..spec.model_config import AttentionKernel
from ..spec.preset import Indivisible, PipelineInfo, Preset
from ..wire.descriptions import ArrayInfo, PresetInfo
from .memory import PARTS
from .pytree_arrays import bytes_of

Tree = Any
MAX_MESSAGE = 300
"""Characters that are kept of jax's message."""


class DoesNotDivide(UserError):
    """The only problem is that `dims` are not divisible by the mesh axes that split them."""

    def __init__(self, problems: Sequence[str], dims: Sequence[Indivisible]) -> None:
        super().__init__(*problems)
        self.dims = list(dict.fromkeys(dims))


@dataclass(frozen=True)
class Placement:
    """A task's preset on a set of devices: its mesh, and the sharding decision for every array."""

    task: Task
    """The run's task; if its remat is `auto`, with the policy chosen for this preset."""
    preset: Preset
    """The preset."""
    mesh: Mesh
    """The mesh of its devices."""
    state: TrainState
    """A `Decision` in the place of every array of the state."""
    batch: Tree
    """A `Decision` in the place of every array of the batch."""

    @cached_property
    def state_shardings(self) -> TrainState:
        return jax.tree.map(self._sharding, self.state)

    @cached_property
    def batch_shardings(self) -> Tree:
        return jax.tree.map(self._sharding, self.batch)

    def _sharding(self, decision: Decision) -> NamedSharding:
        return NamedSharding(self.mesh, decision.spec)

    @property
    def platform(self) -> str:
        return self.mesh.devices.flat[0].platform

    @property
    def abstract_state(self) -> TrainState:
        return _with_shardings(self.task.abstract_state, self.state_shardings)

    @property
    def abstract_arguments(self) -> tuple[TrainState, Tree]:
        """The state and the batch that a step takes, without values."""
        return self.abstract_state, _with_shardings(self.task.batch_arrays, self.batch_shardings)

    @property
    def argument_bytes(self) -> int:
        """Bytes of state and batch on one device."""
        return sum(argument_parts(self.task, (self.state, self.batch), self.mesh.shape).values())

    @property
    def pipeline(self) -> PipelineInfo | None:
        """Stages and micro-batches; None if the preset has no pipeline."""
        return self.preset.pipeline(self.mesh.size, self.task.config.training.batch_size)

    @property
    def attention(self) -> AttentionKernel | None:
        """How attention is computed; None for a user's model."""
        kernels = self.task.model.attention_kernels
        parts = self.preset.parts("seq", self.mesh.size)
        return kernels and kernels.of(self.task.config.training.seq_len, parts)

    def describe(self, array: Array, decision: Decision, compiled: Sharding) -> ArrayInfo:
        """Describes an array; `compiled` is the sharding that it has in the compiled program."""
        return array_info(array, decision, spec_of(compiled, len(array.shape)), self._type(array, compiled))

    def describe_all(self, shardings: Tree) -> list[ArrayInfo]:
        """Describes all arrays of state and batch; `shardings`: the compiled program's, in the same order."""
        decisions = jax.tree.leaves((self.state, self.batch))
        return [
            self.describe(array, decision, sharding)
            for array, decision, sharding in zip(self.task.arrays, decisions, jax.tree.leaves(shardings), strict=True)
        ]

    def _type(self, array: Array, compiled: Sharding) -> str:
        if self.preset.axis_types == "auto":
            return ""
        spec = PartitionSpec(*(tuple(axes) or None for axes in spec_of(compiled, len(array.shape))))
        sharding = NamedSharding(self.mesh, spec)  # with this mesh, because the compiler's has no axis types
        return str(jax.typeof(jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)))


def array_info(array: Array, decision: Decision, compiled_spec: list[list[str]], type: str = "") -> ArrayInfo:
    return ArrayInfo(
        name=array.names[0],
        kind=array.kind,  # type: ignore[arg-type]
        shape=list(array.shape),
        dtype=array.dtype.name,
        bytes=bytes_of(array.shape, array.dtype),
        logical_axes=list(array.logical_axes),
        spec=[list(dim.axes) for dim in decision.dims],
        compiled_spec=compiled_spec,
        reasons=[dim.reason for dim in decision.dims],
        dropped_axes=decision.dropped_axes,
        type=type,
    )


def place(task: Task, preset: Preset, devices: Sequence[jax.Device]) -> Placement:
    state, batch = decide_all(task, preset, len(devices))
    axis_type = AxisType.Explicit if preset.axis_types == "explicit" else AxisType.Auto
    return Placement(task, preset, build_mesh(preset.sizes(len(devices)), devices, axis_type), state, batch)


def argument_parts(task: Task, decisions: Tree, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the bytes of state and batch on one device by kind, such as `parameters`. `decisions`: for the state and
    the batch."""
    found = dict.fromkeys(PARTS.values(), 0)
    for array, decision in zip(task.arrays, jax.tree.leaves(decisions), strict=True):
        counts = (math.prod(sizes[axis] for axis in dim.axes) for dim in decision.dims)
        part = tuple(-(-size // count) for size, count in zip(array.shape, counts, strict=True))
        found[PARTS[array.kind]] += bytes_of(part, array.dtype)
    return {name: size for name, size in found.items() if size}


def describe_preset(task: Task, preset: Preset, devices: Sequence[jax.Device]) -> PresetInfo:
    """Describes a preset, and whether it fits these devices."""
    problems: list[str] = []
    try:
        place(task, preset, devices)
    except UserError as error:
        problems = list(error.problems)
    return PresetInfo(
        name=preset.name,
        summary=preset.summary,
        teaches=preset.teaches,
        source=preset.source,
        mesh={} if preset.size_problem(len(devices)) else preset.sizes(len(devices)),
        fits=not problems,
        problems=problems,
        pipeline=None if problems else preset.pipeline(len(devices), task.config.training.batch_size),
    )


def decide_all(task: Task, preset: Preset, devices: int) -> tuple[TrainState, Tree]:
    """Returns a `Decision` for every array of state and batch, on `devices` devices.

    Raises UserError with every problem; DoesNotDivide if indivisible dims are the only ones.
    """
    training, sizes = task.config.training, preset.sizes(devices)
    batch_size, accumulated = training.batch_size, training.accumulate_steps

    alike: dict[object, Decision] = {}
    """By rules alone, arrays of the same shape and logical axes are laid out alike, such as moments and parameters."""

    def decided(array: Array) -> Decision:
        key = array.names if preset.overrides else (array.shape, array.logical_axes)
        if key not in alike:
            alike[key] = decide(array.names, array.kind, array.shape, array.logical_axes, preset, sizes)
        return alike[key]

    state, batch = jax.tree.map(decided, (task.state_arrays, task.batch_arrays))
    kinds = {array.names[0]: array.kind for array in task.arrays if array.shape}
    layers = {array.shape[0] for array in task.arrays if array.logical_axes[:1] == ("layers",)}
    model = task.config.model
    period = 1 if isinstance(model, UserModel) else len(model.local_layers)  # of the pattern of alternating layers
    problems = [
        *preset.problems,
        *filter(None, [preset.size_problem(devices), preset.microbatch_problem(devices, batch_size)]),
        *filter(None, [preset.accumulation_problem(devices, batch_size, accumulated)]),
        *filter(None, [preset.repeat_problem(devices, batch_size, size) for size in layers]),
        *filter(None, [preset.period_problem(devices, batch_size, size, period) for size in layers]),
        *preset_problems(preset, kinds, task.logical_axes),
        *(of_arrays := _array_problems(task, preset, state, batch)),
        *_step_problems(task, preset, sizes, jax.tree.leaves((state, batch))),
        *(f"{preset.name}: {problem}" for problem in task.problems_on(tuple(sizes))),
    ]
    if preset.axis_types == "explicit" and not problems:
        key = repr((preset.layout, sizes))
        if key not in task.explicit_problems:
            task.explicit_problems[key] = _refused(task, preset, sizes, state, batch)
        problems = [f'{preset.name}: axis_types = "explicit": {text}' for text in task.explicit_problems[key]]
    if not problems:
        return state, batch
    wrong = [dim.indivisible for decision in jax.tree.leaves((state, batch)) for dim in decision.dims if dim.problem]
    dims = [dim for dim in wrong if dim]
    raise DoesNotDivide(problems, dims) if problems == of_arrays and dims == wrong else UserError(*problems)


def _array_problems(task: Task, preset: Preset, state: TrainState, batch: Tree) -> list[str]:
    """Returns one line per problem, with the first array that has it."""
    first: dict[str, str] = {}
    decisions = jax.tree.leaves((state, batch))
    for array, decision in zip(task.arrays, decisions, strict=True):
        for problem in decision.problems:
            first.setdefault(problem, array.names[0])
    return [f"{preset.name}: {name}: {problem}" for problem, name in first.items()]


def _step_problems(task: Task, preset: Preset, sizes: Mapping[str, int], decisions: Sequence[Decision]) -> list[str]:
    """Returns why the step cannot split its tokens or its stages, where overrides lay out arrays otherwise."""
    stages, found = {"layers"} if preset.stage_axes else set[str](), dict[str, None]()
    split = {"batch"} if task.logical_axes is None else {"batch", "seq"} | stages
    for array, decision in zip(task.arrays, decisions, strict=True):
        names = tuple(name if name in split else None for name in array.logical_axes)
        by_step = by_rules(array.shape, names, preset.rules, sizes)
        found |= dict.fromkeys(each for each in by_step.problems if each not in decision.problems)
    return [f"{preset.name}: [overrides] do not change how the step splits: {each}" for each in found]


def _refused(task: Task, preset: Preset, sizes: dict[str, int], state: TrainState, batch: Tree) -> list[str]:
    """Returns why jax rejects a step under explicit axis types as ambiguous; empty if it does not. It traces shapes
    alone, which needs no device."""
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Explicit,) * len(sizes))
    shardings = jax.tree.map(lambda decision: NamedSharding(mesh, decision.spec), (state, batch))
    arrays, inputs = _with_shardings((task.abstract_state, task.batch_arrays), shardings)
    rules = flax_rules(preset, task.annotated - set(sizes))

    def step(arrays: TrainState, inputs: Tree) -> tuple[TrainState, Scalars]:
        return task.train_step(arrays, inputs, shardings[0].params)

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


def _with_shardings(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree, shardings
    )
