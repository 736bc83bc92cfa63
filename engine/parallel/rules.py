"""From logical axes and a preset's rules to specs, with the reason for each decision."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..spec.preset import LOGICAL_AXES, Axes, Override, Preset

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
        return PartitionSpec(*(spec_entry(dim.axes) for dim in self.dims))

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


def with_derived(rules: Mapping[str, Axes]) -> dict[str, Axes]:
    """With rules for what experts are sent: the axes that `experts` takes no longer split the batch there, and an
    expert's tokens are split as the sequence is. A preset may say otherwise."""
    experts = rules.get("experts", ())
    batch = tuple(axis for axis in rules.get("batch", ()) if axis not in experts)
    return {"expert_batch": batch, "capacity": rules.get("seq", ()), **rules}


def flax_rules(rules: Mapping[str, Axes], logical_axes: set[str]) -> tuple[tuple[str, str | Axes | None], ...]:
    """A preset's rules as Flax has them, for constraints on activations that a user's model writes by its functions.
    Every logical axis is named: one that is not would be taken for a mesh axis."""
    names = dict.fromkeys([*rules, *LOGICAL_AXES, *sorted(logical_axes)])
    return tuple((name, spec_entry(rules.get(name, ()))) for name in names)


def spec_of(sharding: Sharding, rank: int) -> list[list[str]]:
    """For each dim of an array of `rank` dims the mesh axes it is split over, major first."""
    assert isinstance(sharding, NamedSharding), sharding
    return [list(axes_of(entry)) for entry in (*sharding.spec, *[None] * (rank - len(sharding.spec)))]


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


def axes_of(entry: str | Axes | None) -> Axes:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def spec_entry(axes: Axes) -> str | Axes | None:
    return axes[0] if len(axes) == 1 else axes or None
