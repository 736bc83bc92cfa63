"""Resolves logical axes and a preset's rules to a `PartitionSpec`, with the reason for each decision."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..spec.preset import FOLLOWS, LOGICAL_AXES, OF_SOME_PARAMETERS, UNSPLIT, Axes, Indivisible, Override, Preset, Rules

LogicalAxes = tuple[str | None, ...]


@dataclass(frozen=True)
class Dim:
    axes: Axes
    reason: str
    problem: str | None = None
    """Why the axes `wanted` cannot split the dim, which is then unsharded."""
    wanted: Axes = ()
    indivisible: Indivisible | None = None


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
    def dropped_axes(self) -> list[list[str]]:
        """For each dim the requested mesh axes that cannot split it; empty if no dim has any."""
        wanted = [list(dim.wanted) for dim in self.dims]
        return wanted if any(wanted) else []


def by_rules(shape: Sequence[int], logical_axes: LogicalAxes, rules: Rules, mesh_axes: Mapping[str, int]) -> Decision:
    """Decides an array's layout by rules, dims from left to right. A mesh axis that an earlier dim uses, or that does
    not divide the dim, is a problem, unless another of the rule's splits fits: the first that does is used."""
    dims: list[Dim] = []
    taken: set[str] = set()
    for size, logical in zip(shape, logical_axes, strict=True):
        if logical is None:
            dims.append(Dim((), "no logical axis: unsharded"))
        elif logical not in rules:
            dims.append(_without_rule(logical, size, mesh_axes, taken))
        elif len(rules[logical]) > 1:
            dims.append(_first_that_fits(logical, size, rules[logical], mesh_axes, taken))
        elif axes := rules[logical][0]:
            dims.append(_split(f"{logical}: rule", logical, size, axes, mesh_axes, taken))
        else:
            dims.append(Dim((), f'{logical}: rule → "": unsharded'))
        taken.update(dims[-1].axes)
    return Decision(tuple(dims))


def by_override(
    shape: Sequence[int], logical_axes: LogicalAxes, glob: str, override: Override, mesh_axes: Mapping[str, int]
) -> Decision:
    """Decides an array's layout by an override. Its spec is for one layer's array; dims beyond it are unsharded."""
    stacked = 1 if logical_axes[:1] == ("layers",) else 0
    origin = f'override "{glob}"'
    layer = shape[stacked:]
    dims = [Dim((), f"layers: {origin} leaves it unsharded")] * stacked
    if math.prod(layer) < override.min_size:
        text = f"{origin}: {math.prod(layer):,} elements are fewer than {override.min_size:,}: unsharded"
        return Decision((*dims, *(Dim((), text) for _ in layer)))
    if len(override.spec) > len(layer):
        text = f"{origin} names {len(override.spec)} dims, the array has {len(layer)}: name {len(layer)} or fewer"
        return Decision((*dims, *(Dim((), text, text) for _ in layer)))
    for index, size in enumerate(layer):
        axes = override.spec[index] if index < len(override.spec) else ()
        logical = logical_axes[stacked + index] or f"dim {stacked + index}"
        taken = {axis for dim in dims for axis in dim.axes}
        dims.append(
            _split(origin, logical, size, axes, mesh_axes, taken)
            if axes
            else Dim((), f"{logical}: {origin}: unsharded")
        )
    return Decision(tuple(dims))


def matches(glob: str, name: str, kind: str) -> bool:
    return fnmatchcase(name, glob) and (kind != "batch" or glob.startswith("batch"))


def decide(
    names: Sequence[str],
    kind: str,
    shape: Sequence[int],
    logical_axes: LogicalAxes,
    preset: Preset,
    mesh_axes: Mapping[str, int],
) -> Decision:
    """Decides the layout of one array, whose `names` are tried in order: a moment has its own, then its parameter's.
    The first override that matches takes precedence over rules. `kind`: as in `ArrayInfo`."""
    for name in names:
        for glob, override in preset.overrides.items():
            if shape and matches(glob, name, kind):
                return by_override(shape, logical_axes, glob, override, mesh_axes)
    logical_axes = of_parameter(logical_axes, preset.rules)
    rules = {"kv_heads": preset.rules["heads"], **preset.rules} if "heads" in preset.rules else preset.rules
    return by_rules(shape, logical_axes, rules, mesh_axes)


def of_parameter(logical_axes: LogicalAxes, rules: Rules) -> LogicalAxes:
    """Returns the logical axes of a parameter by the names of their rules, see `OF_SOME_PARAMETERS`."""
    special = {
        logical: name
        for name, (logical, others) in OF_SOME_PARAMETERS.items()
        if name in rules and others & set(logical_axes)
    }
    return tuple(special.get(logical or "", logical) for logical in logical_axes)


def preset_problems(preset: Preset, kinds: Mapping[str, str], logical_axes: set[str] | None) -> list[str]:
    """Returns rules for unknown logical axes, overrides that match no array, and other problems with this model.
    `kinds`: array name to kind, without scalars. `logical_axes`: of the model, None if not all are known;
    `LOGICAL_AXES` and `OF_SOME_PARAMETERS` are always valid."""
    known = set(LOGICAL_AXES) | set(OF_SOME_PARAMETERS) | (set(preset.rules) if logical_axes is None else logical_axes)
    problems = [
        f"{preset.name}: [rules] {axis}: no such logical axis: the known ones are {', '.join(sorted(known))}"
        for axis in preset.rules
        if axis not in known
    ]
    if preset.axes("experts") and logical_axes is not None and "experts" not in logical_axes:
        problems.append(
            f"{preset.name}: [rules] experts: this model has no experts: try --model nano-moe or --set experts=8"
        )
    if preset.stage_axes and "experts" in (logical_axes or ()):
        problems.append(
            f"{preset.name}: [rules] layers: blocks with experts cannot be pipeline stages: use a dense model"
        )
    if preset.axis_types == "explicit" and preset.with_alternatives:
        problems.append(
            f"{preset.name}: [rules] {next(iter(preset.with_alternatives))}: explicit axis types take no alternatives: "
            'keep one, or set axis_types = "auto"'
        )
    if preset.axis_types == "explicit" and preset.axes("layers"):
        problems.append(
            f'{preset.name}: [rules] layers: explicit axis types cannot split blocks: set axis_types = "auto"'
        )
    return problems + [
        f'{preset.name}: [overrides] "{glob}": matches no array: names look like {next(iter(kinds))}'
        for glob in preset.overrides
        if not any(matches(glob, name, kind) for name, kind in kinds.items())
    ]


def with_derived(rules: Rules) -> dict[str, tuple[Axes, ...]]:
    """Adds the rules that follow from others, unless the preset has its own. `expert_batch` is split like `batch`,
    without the axes of `experts`."""
    derived = {logical: rules.get(other, UNSPLIT) for logical, other in FOLLOWS.items()}
    of_experts = rules.get("experts", UNSPLIT)[0]
    derived["expert_batch"] = (tuple(axis for axis in derived["expert_batch"][0] if axis not in of_experts),)
    return {**derived, **rules}


def flax_rules(preset: Preset, logical_axes: set[str]) -> tuple[tuple[str, str | Axes | None], ...]:
    """Returns a preset's rules for Flax's functions. It takes an unlisted logical axis for a mesh axis, so all are
    listed. Alternatives repeat it."""
    names = dict.fromkeys([*preset.rules, *LOGICAL_AXES, *sorted(logical_axes)])
    return tuple((name, spec_entry(axes)) for name in names for axes in preset.rules.get(name, UNSPLIT))


def spec_of(sharding: Sharding, rank: int) -> list[list[str]]:
    """Returns the mesh axes of each dim of an array with `rank` dims, major first."""
    assert isinstance(sharding, NamedSharding), sharding
    return [list(axes_of(entry)) for entry in (*sharding.spec, *[None] * (rank - len(sharding.spec)))]


def _first_that_fits(
    logical: str, size: int, tried: Sequence[Axes], mesh_axes: Mapping[str, int], taken: set[str]
) -> Dim:
    """Decides a dim by the first of several splits that can be. If none can, the first one is the problem."""
    passed_over: list[str] = []
    for number, axes in enumerate(tried, 1):
        origin = f"{logical}: alternative {number} of {len(tried)}"
        dim = _split(origin, logical, size, axes, mesh_axes, taken) if axes else Dim((), f'{origin} → "": unsharded')
        if not dim.problem:
            return replace(dim, reason="; ".join([dim.reason, *(f"passed over {each}" for each in passed_over)]))
        passed_over.append(_why_passed_over(axes, size, mesh_axes, taken))
    text = f"{logical} {size}: no alternative fits: {'; '.join(passed_over)}: add [] to leave it unsharded then"
    first = _split(logical, logical, size, tried[0], mesh_axes, taken)
    return replace(first, reason=text, problem=text)


def _why_passed_over(axes: Axes, size: int, mesh_axes: Mapping[str, int], taken: set[str]) -> str:
    names, used = "+".join(axes), [axis for axis in axes if axis in taken]
    count = math.prod(mesh_axes[axis] for axis in axes)
    return f"{names} ({used[0]} splits another dim)" if used else f"{names} ({size} does not divide by {count})"


def _split(origin: str, logical: str, size: int, axes: Axes, mesh_axes: Mapping[str, int], taken: set[str]) -> Dim:
    used = next((axis for axis in axes if axis in taken), None)
    return _split_over(origin, logical, size, axes, tuple([mesh_axes[axis] for axis in axes]), used)


@lru_cache(maxsize=2**14)  # a search splits the same dims in thousands of presets
def _split_over(origin: str, logical: str, size: int, axes: Axes, sizes: tuple[int, ...], used: str | None) -> Dim:
    """Decides a dim. `sizes`: of the axes; `used`: one of them that already splits another dim."""
    count = math.prod(sizes)
    target = " × ".join(f"{axis} ({each})" for axis, each in zip(axes, sizes, strict=True))
    if used:
        text = f"{origin} → {target}: {used} already splits another dim: give {logical} another axis"
        return Dim((), text, text, axes)
    if size % count:
        below = size // count * count
        larger = f"{below} or {below + count}" if below else f"{count}"
        text = (
            f"{origin} → {target}: {logical} {size} does not divide by {count}: "
            f"make it {larger}, or split it over other axes"
        )
        return Dim((), text, text, axes, Indivisible(logical, size, count))
    return Dim(axes, f"{origin} → {target}: {size} ÷ {count} = {size // count}")


def _without_rule(logical: str, size: int, mesh_axes: Mapping[str, int], taken: set[str]) -> Dim:
    """Decides a dim without a rule. A user's model may name mesh axes instead of logical ones, such as `data+model`."""
    axes = tuple(logical.split("+"))
    if logical in LOGICAL_AXES:
        return Dim((), f"{logical}: no rule: unsharded")
    if not set(axes) <= set(mesh_axes):
        hint = f'{logical} = "{list(mesh_axes)[-1]}" in [rules] splits it'
        return Dim((), f"{logical}: no rule, and not an axis of this mesh: unsharded: {hint}")
    return _split(f"{logical}: mesh axis", logical, size, axes, mesh_axes, taken)


def axes_of(entry: str | Axes | None) -> Axes:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def axes_in(spec: PartitionSpec) -> frozenset[str]:
    return frozenset(axis for entry in spec for axis in axes_of(entry))


def spec_entry(axes: Axes) -> str | Axes | None:
    """Returns the entry of a `PartitionSpec` for some mesh axes: None for none."""
    return axes[0] if len(axes) == 1 else axes or None
