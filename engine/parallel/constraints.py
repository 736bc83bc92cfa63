"""What is asked of activations and gradients while a step is traced, by the rules of the preset that it is for."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from ..spec.pipeline_info import PipelineInfo
from ..spec.preset import Axes
from .rules import Decision, LogicalAxes, axes_of, by_rules, spec_entry, with_derived


@dataclass(frozen=True)
class Activation:
    shape: tuple[int, ...]
    dtype: Any
    logical_axes: LogicalAxes
    decision: Decision


@dataclass(frozen=True)
class Observed:
    """What was seen of a step while it was traced and compiled, by name."""

    activations: dict[str, Activation] = field(default_factory=dict)
    """As asked for."""
    shardings: dict[str, Sharding] = field(default_factory=dict)
    """As the compiler laid them out: activations and gradients."""

    def note(self, name: str, sharding: Sharding) -> None:
        """The first time counts: what is recomputed later is the same activation."""
        self.shardings.setdefault(name, sharding)


@dataclass(frozen=True)
class _Active:
    mesh: Mesh | AbstractMesh
    rules: Mapping[str, Axes]
    observed: Observed | None
    pipeline: PipelineInfo | None
    stage_of: "_Active | None" = None
    """In one stage of a pipeline and one group of the batch: what holds for all of them."""

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.mesh.shape)

    @property
    def is_explicit(self) -> bool:
        return AxisType.Explicit in self.mesh.axis_types

    def axes(self, logical: str) -> Axes:
        return self.rules.get(logical, ())

    def parts(self, logical: str) -> int:
        return math.prod(self.mesh.shape[axis] for axis in self.axes(logical))


_active: ContextVar[_Active | None] = ContextVar("active rules", default=None)


@contextlib.contextmanager
def activation_rules(
    mesh: Mesh | AbstractMesh,
    rules: Mapping[str, Axes],
    observed: Observed | None = None,
    pipeline: PipelineInfo | None = None,
) -> Iterator[None]:
    """While a step is traced in here, `shard` lays activations out by these rules. Holds for this thread alone.

    With `observed` the traced program is one to look at: compiling it tells the layouts that the compiler chose. It
    computes the same, but its callbacks keep it out of the compilation cache.
    """
    with _activated(_Active(mesh, with_derived(rules), observed, pipeline)):
        yield


@contextlib.contextmanager
def _activated(active: _Active) -> Iterator[None]:
    token = _active.set(active)
    try:
        yield
    finally:
        _active.reset(token)


@contextlib.contextmanager
def one_stage() -> Iterator[tuple[Axes, Axes]]:
    """What is traced in here is one stage of a pipeline and one group of the batch, mapped over all of them. Gives the
    axes of the groups and those of the stages."""
    active = _active.get()
    assert active is not None
    taken = {*active.axes("batch"), *active.axes("layers")}
    rules = {logical: axes for logical, axes in active.rules.items() if not taken & set(axes)}
    with _activated(replace(active, rules=rules, stage_of=active)):
        yield active.axes("batch"), active.axes("layers")


def active_pipeline() -> PipelineInfo | None:
    active = _active.get()
    return active.pipeline if active else None


def token_groups() -> tuple[int, int]:
    """Into how many parts the active rules split the batch and the sequence; 1 without any."""
    active = _active.get()
    return (active.parts("batch"), active.parts("seq")) if active else (1, 1)


def shard(x: jax.Array, *logical_axes: str | None, name: str, gradient: LogicalAxes | None = None) -> jax.Array:
    """Asks the compiler to lay an activation out by the active rules; without any, `x` as it is.

    A rule that cannot hold for an activation leaves that dim whole, as FSDP needs it: batch and embed share an axis.
    Its gradient is laid out likewise, or by the logical axes `gradient`.
    """
    return observe(constrain(x, *logical_axes, gradient=gradient), *logical_axes, name=name)


def constrain(x: jax.Array, *logical_axes: str | None, gradient: LogicalAxes | None = None) -> jax.Array:
    """`shard` for what is no activation to be shown."""
    active = _active.get()
    if active is None:
        return x
    forward = _sharding(active, x.shape, logical_axes)
    if active.is_explicit:
        return jax.sharding.reshard(x, forward)
    if gradient is None:
        return jax.lax.with_sharding_constraint(x, forward)
    return _constrained(x, forward, _sharding(active, x.shape, gradient))


def out_sharding(shape: Sequence[int], *logical_axes: str | None) -> NamedSharding | None:
    """For a product over dims that are split: under explicit axis types it has to be told how its result lies."""
    active = _active.get()
    if active is None or not active.is_explicit:
        return None
    return _sharding(active, shape, logical_axes)


def gathered(parameter: jax.Array, logical_axes: LogicalAxes) -> jax.Array:
    """A parameter as it meets activations: whole over the axes that do not split them there, such as those of batch and
    sequence, but for experts, whose tokens come to them. Explicit axis types want that said; otherwise the compiler
    sees to it."""
    active = _active.get()
    if active is None or not active.is_explicit:
        return parameter
    taken = {*active.axes("batch"), *active.axes("seq")}

    def kept(entry: str | Axes | None, logical: str | None) -> str | Axes | None:
        there = active.axes("activation_embed" if logical == "embed" else logical or "")
        free = there if logical == "experts" else tuple(axis for axis in there if axis not in taken)
        return spec_entry(tuple(axis for axis in axes_of(entry) if axis in free))

    spec = map(kept, jax.typeof(parameter).sharding.spec, logical_axes)
    return jax.sharding.reshard(parameter, NamedSharding(active.mesh, PartitionSpec(*spec)))


def left_to_compiler(function: Callable[..., jax.Array], *arrays: jax.Array, out: LogicalAxes) -> jax.Array:
    """A function whose products do not let one say how their results lie, but for the last: dims `out`, shaped as the
    first of `arrays` is. Under explicit axis types the compiler decides in it as it does under automatic ones."""
    active = _active.get()
    if active is None or not active.is_explicit:
        return function(*arrays)
    automatic: Any = jax.sharding.auto_axes(function, out_sharding=_sharding(active, arrays[0].shape, out))
    return automatic(*arrays)


def _sharding(active: _Active, shape: Sequence[int], logical_axes: LogicalAxes) -> NamedSharding:
    return NamedSharding(active.mesh, by_rules(shape, logical_axes, active.rules, active.sizes).spec)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _constrained(x: jax.Array, forward: NamedSharding, backward: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, forward)


_constrained.defvjp(
    lambda x, forward, backward: (jax.lax.with_sharding_constraint(x, forward), None),
    lambda forward, backward, _, gradient: (jax.lax.with_sharding_constraint(gradient, backward),),
)


def observe(x: jax.Array, *logical_axes: str | None, name: str) -> jax.Array:
    """`x` as it is: an activation whose layout is left to the compiler, to be compared with what the rules say."""
    active = _active.get()
    if active is not None and active.observed is not None:
        active.observed.activations[name] = _activation(x, logical_axes, active)
        look(x, name)
    return x


def _activation(x: jax.Array, logical_axes: LogicalAxes, active: _Active) -> Activation:
    """In a pipeline it is that of one layer in each stage."""
    shape, outer = x.shape, active.stage_of
    if outer and outer.pipeline:
        active, logical_axes = outer, ("layers", *logical_axes)
        shape = (outer.pipeline.stages, outer.parts("batch") * shape[0], *shape[1:])
    return Activation(shape, x.dtype, logical_axes, by_rules(shape, logical_axes, active.rules, active.sizes))


def look(x: jax.Array, name: str) -> None:
    """Where the program is one to look at, has the compiler tell how it lays `x` out."""
    active = _active.get()
    if active is None or active.observed is None:
        return
    note = partial(active.observed.note, name)
    if active.stage_of:
        _look_at_all(x, lambda sharding: note(_of_stages(sharding)))
    else:
        jax.debug.inspect_array_sharding(x, callback=note)


def _look_at_all(x: jax.Array, callback: Callable[[Sharding], None]) -> None:
    """At that of all stages and all groups [G, S, b, …]."""

    @jax.custom_batching.custom_vmap
    def tell(x: jax.Array) -> jax.Array:
        jax.debug.inspect_array_sharding(x, callback=callback)
        return x

    @tell.def_vmap
    def _(size: int, batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        return tell(x), True

    tell(jax.lax.stop_gradient(x))


def _of_stages(sharding: Sharding) -> NamedSharding:
    """From [G, S, b, …] to [S, G × b, …]."""
    assert isinstance(sharding, NamedSharding), sharding
    groups, stages, examples, *rest = (*map(axes_of, sharding.spec), (), (), ())[: max(3, len(sharding.spec))]
    return NamedSharding(sharding.mesh, PartitionSpec(stages, (*groups, *examples), *rest))
