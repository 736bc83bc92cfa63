"""Sharding constraints on activations and gradients, applied while a step is traced for a preset."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ..spec.preset import UNSPLIT, Axes, PipelineInfo, Rules
from .observed import Activation, Observed
from .rules import Decision, LogicalAxes, axes_of, by_rules, spec_entry, with_derived


@dataclass(frozen=True)
class _Active:
    mesh: Mesh | AbstractMesh
    rules: Rules
    observed: Observed | None
    pipeline: PipelineInfo | None
    stage_of: "_Active | None" = None
    """In one stage of a pipeline and one group of the batch: the rules outside."""

    @property
    def is_explicit(self) -> bool:
        return AxisType.Explicit in self.mesh.axis_types

    def decide(self, shape: Sequence[int], logical_axes: LogicalAxes) -> Decision:
        return by_rules(shape, logical_axes, self.rules, self.mesh.shape)

    def sharding(self, shape: Sequence[int], logical_axes: LogicalAxes) -> NamedSharding:
        return NamedSharding(self.mesh, self.decide(shape, logical_axes).spec)

    def axes(self, logical: str) -> Axes:
        return self.rules.get(logical, UNSPLIT)[0]

    def parts(self, logical: str) -> int:
        return math.prod(self.mesh.shape[axis] for axis in self.axes(logical))


NONE = _Active(AbstractMesh((), ()), with_derived({}), None, None)
"""Outside of `activation_rules`: nothing is split."""
_active: ContextVar[_Active] = ContextVar("active rules", default=NONE)


def _explicit() -> _Active | None:
    """Returns the active rules if axis types are explicit."""
    active = _active.get()
    return active if active.is_explicit else None


@contextlib.contextmanager
def activation_rules(
    mesh: Mesh | AbstractMesh, rules: Rules, observed: Observed | None = None, pipeline: PipelineInfo | None = None
) -> Iterator[None]:
    """Makes `shard` constrain activations by these rules while a step is traced in this context and thread. With
    `observed`, compiling records the compiler's layouts; its callbacks keep the program out of the cache."""
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
    """Traces one stage of a pipeline and one group of the batch, for a function that `vmap` maps over all. Yields the
    mesh axes of the groups and of the stages."""
    active = _active.get()
    taken = {*active.axes("batch"), *active.axes("layers")}
    rules = {logical: splits for logical, splits in active.rules.items() if not taken & set(splits[0])}
    with _activated(replace(active, rules=rules, stage_of=active)):
        yield active.axes("batch"), active.axes("layers")


def active_pipeline() -> PipelineInfo | None:
    return _active.get().pipeline


def token_groups() -> tuple[int, int]:
    active = _active.get()
    return active.parts("batch"), active.parts("seq")


def mesh_axes(logical: str) -> Axes:
    return _active.get().axes(logical)


def shard(x: jax.Array, *logical_axes: str | None, name: str, gradient: LogicalAxes | None = None) -> jax.Array:
    """Constrains an activation and its gradient by the active rules, the latter by the logical axes `gradient` if
    given. A dim whose rule cannot apply stays unsharded. FSDP needs that: its batch and embed share a mesh axis."""
    return observe(constrain(x, *logical_axes, gradient=gradient), *logical_axes, name=name)


def constrain(x: jax.Array, *logical_axes: str | None, gradient: LogicalAxes | None = None) -> jax.Array:
    """Constrains `x` like `shard`, without recording it as an activation."""
    active = _active.get()
    if active is NONE:
        return x
    forward = active.sharding(x.shape, logical_axes)
    if active.is_explicit:
        return jax.sharding.reshard(x, forward)
    if gradient is None:
        return jax.lax.with_sharding_constraint(x, forward)
    return _constrained(x, forward, active.sharding(x.shape, gradient))


def resharded(x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """Reshards an activation where explicit axis types need it; under automatic ones the compiler does."""
    return constrain(x, *logical_axes) if _explicit() else x


def hinted(x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """Constrains an activation under automatic axis types, as to how the compiler computes it. Under explicit ones,
    each constraint would be a reshard."""
    return x if _explicit() else constrain(x, *logical_axes)


def out_sharding(shape: Sequence[int], *logical_axes: str | None) -> NamedSharding | None:
    """Returns a product's `out_sharding`, which explicit axis types need if a contracted dim is split; else None."""
    active = _explicit()
    return active.sharding(shape, logical_axes) if active else None


def gathered(parameter: jax.Array, logical_axes: LogicalAxes) -> jax.Array:
    """Gathers a parameter for its product with activations, as FSDP does, under explicit axis types. It stays split
    over the mesh axes that split the same logical axis of activations, except batch and sequence. Experts stay split,
    since tokens are sent to them."""
    active = _explicit()
    if active is None:
        return parameter
    taken = {*active.axes("batch"), *active.axes("seq")}

    def kept(entry: str | Axes | None, logical: str | None) -> str | Axes | None:
        activation = active.axes("activation_embed" if logical == "embed" else logical or "")
        free = activation if logical == "experts" else tuple(axis for axis in activation if axis not in taken)
        return spec_entry(tuple(axis for axis in axes_of(entry) if axis in free))

    spec = map(kept, jax.typeof(parameter).sharding.spec, logical_axes)
    return jax.sharding.reshard(parameter, NamedSharding(active.mesh, PartitionSpec(*spec)))


def left_to_compiler(function: Callable[..., jax.Array], *arrays: jax.Array, out: LogicalAxes) -> jax.Array:
    """Calls a function whose inner operations take no `out_sharding`, with automatic axis types inside. Its result has
    the logical axes `out` and the shape of the first of `arrays`."""
    active = _explicit()
    if active is None:
        return function(*arrays)
    automatic: Any = jax.sharding.auto_axes(function, out_sharding=active.sharding(arrays[0].shape, out))
    return automatic(*arrays)


def per_device(
    function: Callable[..., jax.Array],
    *arrays: jax.Array,
    axes: Sequence[LogicalAxes],
    out: LogicalAxes,
    summed_over: Axes = (),
) -> jax.Array:
    """Calls a function on the shards of each device, for a kernel that the partitioner cannot split. `axes`: of each
    array; the result has the logical axes `out` and the first array's shape. Results of devices along the mesh axes
    `summed_over` are parts of a sum."""
    active = _active.get()
    if active is NONE:
        return function(*arrays)
    shardings = [active.sharding(array.shape, names) for array, names in zip(arrays, axes, strict=True)]
    if active.is_explicit:
        arrays = tuple(map(jax.sharding.reshard, arrays, shardings))
    spec = active.sharding(arrays[0].shape, out).spec
    mapped = jax.shard_map(
        (lambda *shards: function(*shards)[None]) if summed_over else function,
        mesh=active.mesh,
        in_specs=tuple(sharding.spec for sharding in shardings),
        out_specs=PartitionSpec(summed_over, *spec) if summed_over else spec,
        check_vma=False,
    )
    found = mapped(*arrays)
    return found.sum(axis=0) if summed_over else found  # the partitioner reduces it as its use needs it


def split_axes(shape: Sequence[int], *logical_axes: str | None) -> tuple[Axes, ...]:
    """Returns the mesh axes that split each dim of an activation by the active rules."""
    return tuple(dim.axes for dim in _active.get().decide(shape, logical_axes).dims)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _constrained(x: jax.Array, forward: NamedSharding, backward: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, forward)


_constrained.defvjp(
    lambda x, forward, backward: (jax.lax.with_sharding_constraint(x, forward), None),
    lambda forward, backward, _, gradient: (jax.lax.with_sharding_constraint(gradient, backward),),
)


def observe(x: jax.Array, *logical_axes: str | None, name: str) -> jax.Array:
    """Returns `x` unchanged and records it: its layout is left to the compiler and compared with the rules."""
    active = _active.get()
    if active.observed is not None:
        active.observed.activations[name] = _activation(x, logical_axes, active)
    return inspect_sharding(x, name)


def _activation(x: jax.Array, logical_axes: LogicalAxes, active: _Active) -> Activation:
    """The activation to record; in a pipeline, of one layer in each stage."""
    shape, outer = x.shape, active.stage_of
    if outer and outer.pipeline:
        active, logical_axes = outer, ("layers", *logical_axes)
        shape = (outer.pipeline.stages, outer.parts("batch") * shape[0], *shape[1:])
    return Activation(shape, x.dtype, logical_axes, active.decide(shape, logical_axes))


def inspect_sharding(x: jax.Array, name: str) -> jax.Array:
    """Returns `x`, and makes the compiler report its layout, if the active rules observe the step."""
    active = _active.get()
    if active.observed is None:
        return x
    return active.observed.inspect(x, name, is_mapped=active.stage_of is not None)
