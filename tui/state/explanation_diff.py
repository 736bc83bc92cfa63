"""Changes between two explanations of a program: layouts, origins and collectives, without line numbers."""

import re
from collections.abc import Iterator, Sequence

from ...engine.base import formatting
from ...engine.explain.explanation import UNKNOWN, CollectiveOrigin, Explanation, ValueOrigin, by_flow

LINE = re.compile(r"(\.\w+):\d+")
"""A line number, which changes with every edit above it."""


def changes(before: Explanation, after: Explanation) -> list[str]:
    """Returns one line per change: the mesh, then values in the order of the program, then collectives."""
    meshes = [formatting.axes(each.mesh) for each in (before, after)]
    mesh = [f"mesh: {meshes[0]} → {meshes[1]}"] if meshes[0] != meshes[1] else []
    return [*mesh, *_values(before.values, after.values), *_collectives(before.collectives, after.collectives)]


def _values(before: Sequence[ValueOrigin], after: Sequence[ValueOrigin]) -> Iterator[str]:
    old, new = numbered(before), numbered(after)
    for name in dict.fromkeys((*new, *old)):
        if name not in old:
            yield f"{name}: new, {_layout(new[name])}"
        elif name not in new:
            yield f"{name}: gone, was {_layout(old[name])}"
        elif _layout(old[name]) != _layout(new[name]):
            yield f"{name}: {_layout(old[name])} → {_layout(new[name])}{_because(new[name])}"
        elif _origin(old[name]) != _origin(new[name]):
            yield f"{name}: {_layout(new[name])} as before, but from elsewhere{_because(new[name])}"


def layouts(before: Explanation, after: Explanation) -> list[tuple[str, str, str]]:
    """Returns name and layout before and after of each value in both whose layout differs."""
    old = numbered(before.values)
    pairs = ((name, old[name], value) for name, value in numbered(after.values).items() if name in old)
    return [(name, a.layout, b.layout) for name, a, b in pairs if a.layout != b.layout]


def traffic(before: Explanation, after: Explanation) -> list[tuple[str, str, int, int]]:
    """Returns kind, mesh axes and bytes before and after of the collectives of both."""
    old, new = by_flow(before.collectives), by_flow(after.collectives)
    return [(key[0], formatting.over(key[1]), old.get(key, 0), new.get(key, 0)) for key in sorted({*old, *new})]


def numbered(values: Sequence[ValueOrigin]) -> dict[str, ValueOrigin]:
    """Returns the values by what `Link.value` calls them: their name, with a number from the second of a name on."""
    found: dict[str, ValueOrigin] = {}
    counts: dict[str, int] = {}
    for value in values:
        counts[value.name] = number = counts.get(value.name, 0) + 1
        found[f"{value.name} #{number}" if number > 1 else value.name] = value
    return found


def _layout(value: ValueOrigin) -> str:
    return f"{formatting.shape(value.shape)} {value.dtype} {value.layout}"


def _origin(value: ValueOrigin) -> list[tuple[int | None, str, str, str, str]]:
    links = (link for link in value.origin if link.axis)
    return [(link.dim, link.axis, link.kind, unnumbered(link.what), _file(link.source)) for link in links]


def _because(value: ValueOrigin) -> str:
    ends = {link.axis: link for link in value.origin if link.axis}  # the last of each: who asked, or what kept it out
    found = [f"{axis}: {unnumbered(link.what)}" for axis, link in ends.items()]
    return f" ({'; '.join(found)})" if found else ""


def _collectives(before: Sequence[CollectiveOrigin], after: Sequence[CollectiveOrigin]) -> Iterator[str]:
    old, new = _by_reason(before), _by_reason(after)
    for key in sorted({*old, *new}):
        one, other = old.get(key), new.get(key)
        if one == other:
            continue
        what = f"{key[0]}{' traffic' if key[0] == UNKNOWN else ''} over {formatting.over(key[1])}"
        if one and other:
            size = " → ".join(f"{formatting.times(count)} × in {formatting.size(size)}" for count, size in (one, other))
        else:
            size = f"gone, was {formatting.size(one[1])}" if one else f"new, {formatting.size((other or (0, 0))[1])}"
        if key[0] == UNKNOWN:
            size = "changed" if one and other else "gone" if one else "new"
        yield f"{what}: {size}{f' ({key[2]})' if key[2] else ''}"


Reason = tuple[str, tuple[str, ...], str]


def _by_reason(collectives: Sequence[CollectiveOrigin]) -> dict[Reason, tuple[int | None, int]]:
    found: dict[Reason, tuple[int | None, int]] = {}
    for each in collectives:
        key = each.kind, tuple(each.axes), unnumbered(each.because[0] if each.because else _file(each.source))
        count, size = found.get(key, (0, 0))
        found[key] = None if count is None or each.count is None else count + each.count, size + (each.bytes or 0)
    return found


def unnumbered(text: str) -> str:
    return LINE.sub(r"\1", text)


def _file(source: str) -> str:
    return unnumbered(formatting.short_source(source))
