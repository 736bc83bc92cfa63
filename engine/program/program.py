"""A preset placed on devices, and compiled: the shardings of everything, and the program that trains under them."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jax.stages import Compiled, Traced

from ..analysis.program_text import read
from ..base.invalid import Invalid
from ..models.flops import flops_by_scope
from ..models.task import Array, Task, TrainState
from ..parallel.constraints import Observed, activation_rules
from ..parallel.mesh import build_mesh, describe_mesh
from ..parallel.rules import Decision, decide, flax_rules, preset_problems, spec_of
from ..spec.pipeline_info import PipelineInfo
from ..spec.preset import Preset
from ..wire.descriptions import ArrayInfo, PresetInfo
from ..wire.events import Phase, PresetCompiled
from .compilation_cache import cache_hits, of_code_in
from .digest import digests, is_finite
from .explicit import refused
from .leaves import bytes_of
from .memory import predict

Tree = Any

MEMORY_OF_TEXT = 40
"""Bytes of host memory that a compiled program takes for each character of its text, with what was traced for it: 23 to
52 MB for 1 MB as measured on CPU (docs/measurements.md)."""


@dataclass(frozen=True)
class Placement:
    """One preset on one set of devices: its mesh and what was decided for every array."""

    preset: Preset
    mesh: Mesh
    state: TrainState
    """`Decision`s."""
    batch: Tree
    """`Decision`s."""

    @cached_property
    def state_shardings(self) -> TrainState:
        return jax.tree.map(self._sharding, self.state)

    @cached_property
    def batch_shardings(self) -> Tree:
        return jax.tree.map(self._sharding, self.batch)

    def _sharding(self, decision: Decision) -> NamedSharding:
        return NamedSharding(self.mesh, decision.spec)

    def abstract_state(self, task: Task) -> TrainState:
        """Shapes, dtypes and shardings in the place of the arrays."""
        return _with_shardings(task.abstract_state, self.state_shardings)

    def pipeline(self, task: Task) -> PipelineInfo | None:
        return self.preset.pipeline(self.mesh.size, task.config.training.batch_size)

    def describe(self, array: Array, decision: Decision, compiled: Sharding) -> ArrayInfo:
        return ArrayInfo(
            name=array.names[0],
            kind=array.kind,  # type: ignore[arg-type]
            shape=list(array.shape),
            dtype=array.dtype.name,
            bytes=bytes_of(array.shape, array.dtype),
            logical_axes=list(array.logical_axes),
            spec=[list(dim.axes) for dim in decision.dims],
            compiled_spec=spec_of(compiled, len(array.shape)),
            reasons=[dim.reason for dim in decision.dims],
            fell_back=decision.fell_back,
            type=self._type(array, compiled),
        )

    def describe_all(self, task: Task, shardings: Tree) -> list[ArrayInfo]:
        """Of state and batch. `shardings`: as they are, in the same order."""
        decisions = jax.tree.leaves((self.state, self.batch))
        return [
            self.describe(array, decision, sharding)
            for array, decision, sharding in zip(task.arrays, decisions, jax.tree.leaves(shardings), strict=True)
        ]

    def _type(self, array: Array, compiled: Sharding) -> str:
        if self.preset.axis_types == "auto":
            return ""
        spec = PartitionSpec(*(tuple(axes) or None for axes in spec_of(compiled, len(array.shape))))
        sharding = NamedSharding(self.mesh, spec)  # of this mesh: the compiler's has no axis types
        return str(jax.typeof(jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)))


def place(task: Task, preset: Preset, devices: Sequence[jax.Device]) -> Placement:
    """Decides every array's sharding. Touches no device. Raises Invalid with every reason why it cannot be."""
    state, batch = decide_all(task, preset, len(devices))
    axis_type = AxisType.Explicit if preset.axis_types == "explicit" else AxisType.Auto
    return Placement(preset, build_mesh(preset.sizes(len(devices)), devices, axis_type), state, batch)


def argument_bytes(task: Task, placement: Placement) -> int:
    """Of state and batch on one device."""
    shardings = jax.tree.leaves((placement.state_shardings, placement.batch_shardings))
    return sum(
        bytes_of(sharding.shard_shape(array.shape), array.dtype)
        for array, sharding in zip(task.arrays, shardings, strict=True)
    )


def describe_preset(task: Task, preset: Preset, devices: Sequence[jax.Device]) -> PresetInfo:
    """How it stands on these devices."""
    problems: list[str] = []
    try:
        place(task, preset, devices)
    except Invalid as error:
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
    """A `Decision` for every array, on so many devices. Raises Invalid with every reason why it cannot be."""
    sizes, batch_size = preset.sizes(devices), task.config.training.batch_size

    def decided(array: Array) -> Decision:
        return decide(array.names, array.kind, array.shape, array.logical_axes, preset, sizes)

    state, batch = jax.tree.map(decided, (task.state_arrays, task.batch_arrays))
    kinds = {array.names[0]: array.kind for array in task.arrays if array.shape}
    problems = [
        *preset.problems,
        *filter(None, [preset.size_problem(devices), preset.microbatch_problem(devices, batch_size)]),
        *preset_problems(preset, kinds, task.logical_axes),
        *_array_problems(task, preset, state, batch),
        *(f"{preset.name}: {problem}" for problem in task.problems_on(tuple(sizes))),
    ]
    if preset.axis_types == "explicit" and not problems:
        problems = [
            f'{preset.name}: axis_types = "explicit": {text}' for text in refused(task, preset, sizes, state, batch)
        ]
    if problems:
        raise Invalid(*problems)
    return state, batch


def _array_problems(task: Task, preset: Preset, state: TrainState, batch: Tree) -> list[str]:
    """One line for each thing that is wrong, not one for each array in which it shows."""
    first: dict[str, str] = {}
    decisions = jax.tree.leaves((state, batch))
    for array, decision in zip(task.arrays, decisions, strict=True):
        for problem in decision.problems:
            first.setdefault(problem, array.names[0])
    return [f"{preset.name}: {name}: {problem}" for problem, name in first.items()]


@dataclass(frozen=True)
class Question:
    """A function of a whole state, compiled when it is first asked, or before that by `compile`."""

    function: Callable[[TrainState], jax.Array]
    state: TrainState
    """Abstract, under the shardings that it will have."""

    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _compiled(self) -> Compiled:
        mesh = jax.tree.leaves(self.state)[0].sharding.mesh
        return jax.jit(self.function, out_shardings=NamedSharding(mesh, PartitionSpec())).lower(self.state).compile()

    def compile(self) -> Compiled:
        """Once, in whichever thread comes first."""
        with self._lock:
            return self._compiled

    def __call__(self, state: TrainState) -> jax.Array:
        return self.compile()(state)


def ask_digests(state: TrainState) -> Question:
    """Of an abstract state under its shardings."""
    return Question(partial(digests, shardings=jax.tree.map(lambda leaf: leaf.sharding, state)), state)


@dataclass(frozen=True)
class Program:
    """A preset placed and compiled, with a description of what came out."""

    placement: Placement
    step: Callable[[TrainState, Tree], tuple[TrainState, jax.Array]]
    """Donates the state it is given. State goes in and comes out under the placement's shardings."""
    digest: Question
    is_finite: Question
    description: PresetCompiled
    host_bytes: int
    """Of the process's memory, estimated."""

    @property
    def name(self) -> str:
        return self.placement.preset.name

    def compile_questions(self) -> None:
        """No step needs them, but a switch and a save do, while training stands still."""
        self.digest.compile()
        self.is_finite.compile()


def compile_program(task: Task, placement: Placement, begins: Callable[[Phase], None] = lambda _: None) -> Program:
    """Compiles the step. May run in any thread, beside a step that is running. `begins` is told of each phase."""
    began = time.perf_counter()
    begins("trace")
    traced = trace_step(task, placement)
    begins("lower")
    lowered = traced.lower()
    begins("compile")
    hits = cache_hits()
    with of_code_in(lowered.as_text(debug_info=True)):
        step = lowered.compile()
    from_cache = cache_hits() > hits
    state = placement.abstract_state(task)
    text = step.as_text() or ""
    written = flops_by_scope(traced.jaxpr)
    description = _describe(task, placement, step, text, written, time.perf_counter() - began, from_cache)
    questions = ask_digests(state), Question(is_finite, state)
    return Program(placement, step, *questions, description, MEMORY_OF_TEXT * len(text))


def trace_step(task: Task, placement: Placement, observed: Observed | None = None) -> Traced:
    """The step under the placement's shardings; with `observed`, a program whose compilation fills it in."""
    state, batch = placement.state_shardings, placement.batch_shardings

    def train_step(arrays: TrainState, inputs: Tree) -> tuple[TrainState, jax.Array]:
        return task.train_step(arrays, inputs, state.params)

    pipeline = placement.pipeline(task)
    rules = flax_rules(placement.preset.rules, task.annotated - set(placement.mesh.shape))
    with (
        jax.set_mesh(placement.mesh),
        nnx.logical_axis_rules(rules),  # for a user's activations
        activation_rules(placement.mesh, placement.preset.rules, observed, pipeline),
    ):
        return jax.jit(train_step, out_shardings=(state, None), donate_argnums=0, keep_unused=True).trace(
            placement.abstract_state(task), _with_shardings(task.batch_arrays, batch)
        )


def compile_initial_state(task: Task, placement: Placement) -> Callable[[], TrainState]:
    """What makes the initial state, born in its shardings: the same numbers whatever they are. For any thread. Under
    explicit axis types operations are put together otherwise, and numbers rounded otherwise."""
    mesh = placement.mesh
    with jax.set_mesh(Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)):
        return jax.jit(task.initial_state, out_shardings=placement.state_shardings).lower().compile()


def _describe(
    task: Task,
    placement: Placement,
    step: Compiled,
    text: str,
    written: Mapping[str, float | None],
    seconds: float,
    from_cache: bool,
) -> PresetCompiled:
    (shardings, _), mesh = step.input_shardings, describe_mesh(placement.mesh)
    arrays = placement.describe_all(task, shardings)
    told = read(text, mesh.axes, [array.name for array in arrays], written)
    return PresetCompiled(
        preset=placement.preset.name,
        compile_seconds=seconds,
        from_cache=from_cache,
        mesh=mesh,
        arrays=arrays,
        collectives=told.collectives,
        products=told.products,
        memory=predict(step, arrays, mesh, placement.mesh.devices.flat[0].platform),
        pipeline=placement.pipeline(task),
        idle_rules=_idle_rules(task, placement.preset),
    )


def _idle_rules(task: Task, preset: Preset) -> list[str]:
    if task.logical_axes is not None:  # all are known: the others are of activations
        return []
    return [logical for logical, axes in preset.rules.items() if axes and logical not in task.annotated]


def _with_shardings(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )
