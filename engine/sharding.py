"""From logical axes and a preset's rules to specs, with the reason for each decision."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from .preset import LOGICAL_AXES, Axes, Override, Preset
from .protocol import PipelineInfo

LogicalAxes = tuple[str | None, ...]


@dataclass(frozen=True)
class Dim:
    """What was decided for one dim of an array."""

    axes: Axes
    reason: str
    problem: str | None = None
    """Why what was asked for cannot be; `axes` is then empty."""
    wanted: Axes = ()
    """With a problem: the axes that were asked for."""


@dataclass(frozen=True)
class Decision:
    dims: tuple[Dim, ...]

    @property
    def spec(self) -> PartitionSpec:
        return PartitionSpec(*(_entry(dim.axes) for dim in self.dims))

    @property
    def problems(self) -> list[str]:
        return [dim.problem for dim in self.dims if dim.problem]

    @property
    def fell_back(self) -> list[list[str]]:
        """For each dim the axes it was meant to be split over and could not; empty where all could."""
        wanted = [list(dim.wanted) for dim in self.dims]
        return wanted if any(wanted) else []


def by_rules(
    shape: Sequence[int], logical_axes: LogicalAxes, rules: Mapping[str, Axes], mesh_axes: Mapping[str, int]
) -> Decision:
    """Dims are decided from the left. An axis that an earlier dim took, or that does not divide, is a problem."""
    dims: list[Dim] = []
    for size, logical in zip(shape, logical_axes, strict=True):
        taken = {axis for dim in dims for axis in dim.axes}
        if logical is None:
            dims.append(Dim((), "no logical axis: whole"))
        elif logical not in rules:
            dims.append(_without_rule(logical, size, mesh_axes, taken))
        elif not rules[logical]:
            dims.append(Dim((), f'{logical}: rule → "": whole'))
        else:
            dims.append(_split(f"{logical}: rule", logical, size, rules[logical], mesh_axes, taken))
    return Decision(tuple(dims))


def by_override(
    shape: Sequence[int],
    logical_axes: LogicalAxes,
    glob: str,
    override: Override,
    mesh_axes: Mapping[str, int],
) -> Decision:
    """The override's spec on the dims of one layer's array; dims it does not reach are whole."""
    stacked = 1 if logical_axes[:1] == ("layers",) else 0
    place = f'override "{glob}"'
    layer = shape[stacked:]
    dims = [Dim((), f"layers: {place} leaves it whole")] * stacked
    if math.prod(layer) < override.min_size:
        text = f"{place}: {math.prod(layer):,} elements are below {override.min_size:,}: whole"
        return Decision((*dims, *(Dim((), text) for _ in layer)))
    if len(override.spec) > len(layer):
        text = f"{place} names {len(override.spec)} dims, the array has {len(layer)}"
        return Decision((*dims, *(Dim((), text, text) for _ in layer)))
    for index, size in enumerate(layer):
        axes = override.spec[index] if index < len(override.spec) else ()
        logical = logical_axes[stacked + index] or f"dim {stacked + index}"
        taken = {axis for dim in dims for axis in dim.axes}
        dims.append(
            _split(place, logical, size, axes, mesh_axes, taken) if axes else Dim((), f"{logical}: {place}: whole")
        )
    return Decision(tuple(dims))


def matches(glob: str, name: str, kind: str) -> bool:
    """Whether an override speaks of an array. Of the batch only those do that begin with its name: `*` is the state."""
    return fnmatchcase(name, glob) and (kind != "batch" or glob.startswith("batch"))


def decide(
    names: Sequence[str],
    kind: str,
    shape: Sequence[int],
    logical_axes: LogicalAxes,
    preset: Preset,
    mesh_axes: Mapping[str, int],
) -> Decision:
    """The layout of one array. An override by one of its `names`, the first that matches, beats the rules.

    Names are tried in order: a moment answers to its own name and then to its parameter's.
    """
    for name in names:
        for glob, override in preset.overrides.items():
            if shape and matches(glob, name, kind):
                return by_override(shape, logical_axes, glob, override, mesh_axes)
    return by_rules(shape, logical_axes, preset.rules, mesh_axes)


def preset_problems(preset: Preset, kinds: Mapping[str, str], logical_axes: set[str] | None) -> list[str]:
    """What in a preset speaks of nothing: rules for unknown logical axes, overrides that match no array.

    `kinds`: of all arrays that have dims, by name. `logical_axes`: the model's, besides the usual ones, which no model
    needs to have; None where nobody knows them all.
    """
    known = set(LOGICAL_AXES) | (set(preset.rules) if logical_axes is None else logical_axes)
    problems = [
        f"{preset.name}: [rules] {axis}: no such logical axis: the model has {', '.join(sorted(known))}"
        for axis in preset.rules
        if axis not in known
    ]
    if preset.rules.get("experts") and logical_axes is not None and "experts" not in logical_axes:
        problems.append(f"{preset.name}: [rules] experts: the model has none: take nano-moe, or --set experts=8")
    if preset.stage_axes and "experts" in (logical_axes or ()):
        problems.append(
            f"{preset.name}: [rules] layers: blocks with experts are no stages of a pipeline: take a dense model"
        )
    if preset.axis_types == "explicit" and preset.rules.get("layers"):
        problems.append(
            f'{preset.name}: [rules] layers: under explicit axis types blocks are whole: take axis_types = "auto"'
        )
    return problems + [
        f'{preset.name}: [overrides] "{glob}": matches no array: names look like {next(iter(kinds))}'
        for glob in preset.overrides
        if not any(matches(glob, name, kind) for name, kind in kinds.items())
    ]


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


def with_derived(rules: Mapping[str, Axes]) -> dict[str, Axes]:
    """With rules for what experts are sent: the axes that `experts` takes no longer split the batch there, and an
    expert's tokens are split as the sequence is. A preset may say otherwise."""
    experts = rules.get("experts", ())
    batch = tuple(axis for axis in rules.get("batch", ()) if axis not in experts)
    return {"expert_batch": batch, "capacity": rules.get("seq", ()), **rules}


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
        return _entry(tuple(axis for axis in _axes(entry) if axis in free))

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
    groups, stages, examples, *rest = (*map(_axes, sharding.spec), (), (), ())[: max(3, len(sharding.spec))]
    return NamedSharding(sharding.mesh, PartitionSpec(stages, (*groups, *examples), *rest))


def _axes(entry: str | Axes | None) -> Axes:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def spec_of(sharding: Sharding, rank: int) -> list[list[str]]:
    """For each dim of an array of `rank` dims the mesh axes it is split over, major first."""
    assert isinstance(sharding, NamedSharding), sharding
    return [list(_axes(entry)) for entry in (*sharding.spec, *[None] * (rank - len(sharding.spec)))]


def _split(place: str, logical: str, size: int, axes: Axes, mesh_axes: Mapping[str, int], taken: set[str]) -> Dim:
    count = math.prod(mesh_axes[axis] for axis in axes)
    target = " × ".join(f"{axis} ({mesh_axes[axis]})" for axis in axes)
    used = [axis for axis in axes if axis in taken]
    if used:
        text = f"{place} → {target}: {used[0]} already splits another dim: give {logical} another axis"
        return Dim((), text, text, axes)
    if size % count:
        below = size // count * count
        sizes = f"{below} or {below + count}" if below else f"{count}"
        text = (
            f"{place} → {target}: {logical} {size} does not divide by {count}: make it {sizes}, or split it otherwise"
        )
        return Dim((), text, text, axes)
    return Dim(axes, f"{place} → {target}: {size} ÷ {count} = {size // count}")


def _without_rule(logical: str, size: int, mesh_axes: Mapping[str, int], taken: set[str]) -> Dim:
    """A user's model may name mesh axes in the place of logical ones, several of them as `data+model`."""
    axes = tuple(logical.split("+"))
    if logical in LOGICAL_AXES:
        return Dim((), f"{logical}: no rule: whole")
    if not set(axes) <= set(mesh_axes):
        way_out = f'{logical} = "{list(mesh_axes)[-1]}" in [rules] splits it'
        return Dim((), f"{logical}: no rule, and no axis of this mesh: whole: {way_out}")
    return _split(f"{logical}: mesh axis", logical, size, axes, mesh_axes, taken)


def flax_rules(rules: Mapping[str, Axes], logical_axes: set[str]) -> tuple[tuple[str, str | Axes | None], ...]:
    """A preset's rules as Flax has them, for constraints on activations that a user's model writes by its functions.
    Every logical axis is named: one that is not would be taken for a mesh axis."""
    names = dict.fromkeys([*rules, *LOGICAL_AXES, *sorted(logical_axes)])
    return tuple((name, _entry(rules.get(name, ()))) for name in names)


def _entry(axes: Axes) -> str | Axes | None:
    return axes[0] if len(axes) == 1 else axes or None
