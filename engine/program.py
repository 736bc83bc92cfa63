"""A preset placed on devices, and compiled: the shardings of everything, and the program that trains under them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from .config import Invalid
from .digest import digests
from .mesh import build_mesh
from .preset import Preset
from .protocol import ArrayInfo
from .sharding import Decision, activation_rules, decide, preset_problems
from .task import Array, Batch, Task, TrainState


@dataclass(frozen=True)
class Placement:
    """One preset on one set of devices: its mesh and what was decided for every array."""

    preset: Preset
    mesh: Mesh
    state: TrainState
    """`Decision`s."""
    batch: Batch
    """`Decision`s."""

    @cached_property
    def state_shardings(self) -> TrainState:
        return jax.tree.map(self._sharding, self.state)

    @cached_property
    def batch_shardings(self) -> Batch:
        return jax.tree.map(self._sharding, self.batch)

    def _sharding(self, decision: Decision) -> NamedSharding:
        return NamedSharding(self.mesh, decision.spec)

    def describe(self, task: Task) -> list[ArrayInfo]:
        decisions = jax.tree.leaves((self.state, self.batch))
        return [_describe(array, decision) for array, decision in zip(task.arrays, decisions, strict=True)]


def place(task: Task, preset: Preset, devices: Sequence[jax.Device]) -> Placement:
    """Decides every array's sharding. Touches no device. Raises Invalid with every reason why it cannot be."""
    sizes = preset.sizes(len(devices))

    def decided(array: Array) -> Decision:
        return decide(array.names, array.shape, array.logical_axes, preset, sizes)

    state, batch = jax.tree.map(decided, (task.state_arrays, task.batch_arrays))
    names = [array.names[0] for array in task.arrays if array.kind in ("parameter", "moment")]
    logical = {axis for array in task.arrays for axis in array.logical_axes if axis}
    problems = [
        *preset.problems,
        *filter(None, [preset.size_problem(len(devices))]),
        *preset_problems(preset, names, logical),
        *_array_problems(task, preset, state, batch),
    ]
    if problems:
        raise Invalid(*problems)
    return Placement(preset, build_mesh(sizes, devices), state, batch)


def _array_problems(task: Task, preset: Preset, state: TrainState, batch: Batch) -> list[str]:
    """One line for each thing that is wrong, not one for each array in which it shows."""
    first: dict[str, str] = {}
    decisions = jax.tree.leaves((state, batch))
    for array, decision in zip(task.arrays, decisions, strict=True):
        for problem in decision.problems:
            first.setdefault(problem, array.names[0])
    return [f"{preset.name}: {name}: {problem}" for problem, name in first.items()]


def _describe(array: Array, decision: Decision) -> ArrayInfo:
    dtype = array.dtype
    return ArrayInfo(
        name=array.names[0],
        kind=array.kind,  # type: ignore[arg-type]
        shape=list(array.shape),
        dtype=dtype.name,
        bytes=math.prod(array.shape) * dtype.itemsize,
        logical_axes=list(array.logical_axes),
        spec=[list(dim.axes) for dim in decision.dims],
        reasons=[dim.reason for dim in decision.dims],
    )


@dataclass(frozen=True)
class Program:
    """A preset placed and compiled."""

    placement: Placement
    step: Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]
    """Donates the state it is given. State goes in and comes out under the placement's shardings."""
    digest: Callable[[TrainState], jax.Array]
    compile_seconds: float

    @property
    def name(self) -> str:
        return self.placement.preset.name


def compile_program(task: Task, placement: Placement) -> Program:
    """Compiles the step and the digest. May run in any thread, beside a step that is running."""
    began = time.perf_counter()
    state, batch = placement.state_shardings, placement.batch_shardings
    abstract_state = _with_shardings(task.abstract_state, state)
    with jax.set_mesh(placement.mesh), activation_rules(placement.mesh, placement.preset.rules):
        step = jax.jit(task.train_step, out_shardings=(state, None), donate_argnums=0)
        compiled = step.lower(abstract_state, _with_shardings(task.batch_arrays, batch)).compile()
    digest = jax.jit(digests).lower(abstract_state).compile()
    return Program(placement, compiled, digest, time.perf_counter() - began)


def make_state(task: Task, placement: Placement) -> TrainState:
    """The initial state, born in its shardings; the same numbers whatever they are."""
    with jax.set_mesh(placement.mesh):
        return jax.jit(task.initial_state, out_shardings=placement.state_shardings)()


def _with_shardings(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )
