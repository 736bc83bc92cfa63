"""The pages of the origin dialog as lines, some of which open another page. Pure functions of an explanation."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...engine.base import formatting
from ...engine.explain.explanation import CollectiveOrigin, Explanation, Link, ValueOrigin
from ...engine.hlo.finding import Finding
from ...engine.hlo.layout import is_same_layout
from ...engine.wire.collective import CollectiveInfo
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from . import finding_origins
from .explanation_diff import layouts, numbered, traffic
from .explanation_words import in_words, memory_moves
from .finding_origins import origins_of, similar

MOST_LINES = 12
"""Values or collectives of one list."""
DIM, GOOD, WARNING, HEAD = "$text-muted", "$success", "$warning", "bold"


@dataclass(frozen=True)
class ValuePage:
    """The layout of a value, from where it comes, and the collectives that the value takes part in."""

    label: str


@dataclass(frozen=True)
class EstimatedPage:
    collective: CollectiveOrigin


@dataclass(frozen=True)
class CompiledPage:
    collective: CollectiveInfo


@dataclass(frozen=True)
class FindingPage:
    finding: Finding


@dataclass(frozen=True)
class TriedPage:
    rules: str
    """The rules, as they are typed."""
    after: Explanation


Page = ValuePage | EstimatedPage | CompiledPage | FindingPage | TriedPage


class Line(NamedTuple):
    text: str
    style: str = ""
    opens: Page | None = None


@dataclass(frozen=True)
class Known:
    """An explained step, and its arrays as compiled."""

    explanation: Explanation
    arrays: Sequence[ArrayInfo]
    mesh: MeshInfo
    rules: str = ""
    """The rules that are tried, as they are typed; empty for the preset's own, with which the arrays were compiled."""

    @cached_property
    def values(self) -> dict[str, ValueOrigin]:
        return numbered(self.explanation.values)

    @cached_property
    def compiled(self) -> dict[str, ArrayInfo]:
        return {array.name: array for array in self.arrays}

    def mentioned(self, texts: Sequence[str]) -> list[str]:
        words = {word.rstrip(".") for text in texts for word in re.findall(r"[\w.\[\]']+", text)}
        return [name for name in self.values if name in words and self.is_named(name)]

    def is_named(self, label: str) -> bool:
        """Returns whether the program gives a value its name: others are named by an operation, such as `add`."""
        return label in self.compiled or "." in label or not self.values[label].source


def title(page: Page, rules: str) -> str:
    tried = f" with {rules}" if rules else ""
    match page:
        case ValuePage(label):
            return f"origin of {label}{tried}"
        case EstimatedPage(each) | CompiledPage(each):
            return f"origin of {each.kind} over {formatting.over(each.axes)}{tried}"
        case FindingPage(finding):
            return f"origin of {finding.code} {finding.name}"
        case TriedPage(rules):
            return f"what changes with {rules}"


def lines(page: Page, known: Known) -> list[Line]:
    match page:
        case ValuePage(label):
            return list(_value(label, known))
        case EstimatedPage(each):
            involved = _values("values involved", known.mentioned(each.because), known)
            return [Line(_size(each), HEAD), *_reasons(each, known), *involved]
        case CompiledPage(each):
            return list(_compiled(each, known))
        case FindingPage(finding):
            return list(_finding(finding, known))
        case TriedPage(_, after):
            return list(_tried(known.explanation, after))


def _value(label: str, known: Known) -> Iterator[Line]:
    value = known.values.get(label)
    if value is None:
        yield Line("the estimate has no value of this name", WARNING)
        return
    yield from layout_lines(label, known)
    if value.memory:
        yield from map(Line, memory_moves(known.explanation, value.name))
    named = [each for each in known.explanation.collectives if _takes_part(label, value, each, known)]
    yield from _collectives("collectives that it takes part in, estimated", named)


def layout_lines(label: str, known: Known) -> Iterator[Line]:
    """Yields the layout of a value, whether the compiler kept it, and the chains of each dim."""
    value = known.values[label]
    array = known.compiled.get(label)
    source = f"  {formatting.short_source(value.source)}" if value.source else ""
    yield Line(f"{formatting.shape(value.shape)} {value.dtype} {value.layout}{source}", HEAD)
    if array and not known.rules and len(array.compiled_spec) == len(value.axes):
        yield _as_compiled(value, array, known.mesh)
    elif value.compiled_axes is not None:
        yield _compiled_layout(value.compiled_axes, value.compiled_axes == value.axes)
    for dim, axes in enumerate(value.axes):
        name = f" {array.logical_axes[dim]}" if array and dim < len(array.logical_axes) else ""
        links = [link for link in value.origin if link.dim == dim]
        reason = next((link.what.rpartition(f" {label}: ")[2] for link in links if not link.axis), "")
        if axes or not reason:
            yield Line(
                f"dim {dim}{name}: {f'over {formatting.over(axes)}' if axes else 'unsharded'}", "" if axes else DIM
            )
        else:
            yield Line(f"dim {dim} {reason}", DIM)
        yield from _chains([link for link in links if link.axis], known)
    for link in (each for each in value.origin if each.dim is None):
        yield Line(f"{f'unreduced over {link.axis}: ' if link.axis else ''}{in_words(link)}")


def _as_compiled(value: ValueOrigin, array: ArrayInfo, mesh: MeshInfo) -> Line:
    whole = [[axis for axis in axes if axis in mesh.axes] for axes in value.axes]
    is_same = whole == value.axes and is_same_layout(whole, array.compiled_spec, mesh)
    return _compiled_layout(array.compiled_spec, is_same)


def _compiled_layout(spec: list[list[str]], is_same: bool) -> Line:
    return Line("as compiled", GOOD) if is_same else Line(f"differs: compiled {formatting.spec(spec)}", WARNING)


def _chains(links: Sequence[Link], known: Known) -> Iterator[Line]:
    """The chains of one dim, then its conflicts."""
    several = len({link.axis for link in links if link.kind != "conflict"}) > 1
    begun: set[str] = set()
    for link in links:
        opens = ValuePage(link.value) if link.value in known.values else None
        if link.kind == "conflict":
            yield Line(f"  not over {link.axis}: {in_words(link)}", WARNING, opens)
            continue
        head = f"{link.axis}: " if several and link.axis not in begun else ""
        begun.add(link.axis)
        yield Line(f"  ← {head}{in_words(link)}", "", opens)


def _takes_part(label: str, value: ValueOrigin, each: CollectiveOrigin, known: Known) -> bool:
    if known.is_named(label):
        return label in known.mentioned(each.because)
    return bool(value.source) and value.source == each.source


def _collectives(heading: str, found: Sequence[CollectiveOrigin]) -> Iterator[Line]:
    if found:
        yield Line("")
        yield Line(heading, HEAD)
    for each in found[:MOST_LINES]:
        yield Line(f"  {_size(each)}", "", EstimatedPage(each))
    if len(found) > MOST_LINES:
        yield Line(f"  and {len(found) - MOST_LINES} more, none larger", DIM)


def _size(each: CollectiveOrigin) -> str:
    times, payload = formatting.times(each.count), formatting.in_step(each.bytes)
    source = f"  {formatting.short_source(each.source)}" if each.source else ""
    return f"{each.kind} over {formatting.over(each.axes)}, {times} ×, payload {payload}{source}"


def _reasons(each: CollectiveOrigin, known: Known) -> Iterator[Line]:
    for text in each.because:
        names = known.mentioned([text])
        yield Line(f"  because {text}", "", ValuePage(names[0]) if names else None)


def _values(heading: str, labels: Sequence[str], known: Known) -> Iterator[Line]:
    if labels:
        yield Line("")
        yield Line(heading, HEAD)
    for label in labels[:MOST_LINES]:
        value = known.values[label]
        yield Line(f"  {label} {formatting.shape(value.shape)} {value.layout}", "", ValuePage(label))
    if len(labels) > MOST_LINES:
        yield Line(f"  and {len(labels) - MOST_LINES} more", DIM)


def _compiled(info: CollectiveInfo, known: Known) -> Iterator[Line]:
    source = f"  {formatting.short_source(info.source)}" if info.source else ""
    size = f"{formatting.counted(info.count, 'op')}, payload {formatting.in_step(info.bytes_per_device)} per step"
    yield Line(f"compiled: {info.kind} over {formatting.over(info.axes)}, {size}{source}", HEAD)
    found = origins_of(info, known.explanation.collectives)
    for each in found:
        yield Line(f"estimated: {_size(each)}", "", EstimatedPage(each))
        yield from _reasons(each, known)
    if not found:
        yield Line("the estimate has no such collective for this line: the compiler chose or moved it", WARNING)
        near = similar(info, known.explanation.collectives)
        yield from _collectives("the nearest that are estimated", near)
    gathered = [name for name in dict.fromkeys(info.gathered) if name in known.values]
    mentioned = known.mentioned([text for each in found for text in each.because])
    yield from _values("values involved", list(dict.fromkeys([*gathered, *mentioned])), known)


def _finding(finding: Finding, known: Known) -> Iterator[Line]:
    about = finding_origins.evidence(finding, known.explanation, known.arrays)
    yield Line(finding.message, HEAD)
    yield Line(f"→ {finding.fix}", GOOD)
    ends = finding_origins.ends(finding, about, known.explanation)
    if ends:
        yield Line("")
        yield Line("where to change it: its chains end at", HEAD)
    for text in ends:
        names = known.mentioned([text])
        yield Line(f"  {text}", "", ValuePage(names[0]) if names else None)
    yield from _values("values", about.values, known)
    yield from _collectives("collectives, estimated", about.collectives)


def _tried(before: Explanation, after: Explanation) -> Iterator[Line]:
    yield Line("bytes of collectives per device and step, estimated", HEAD)
    for kind, axes, old, new in traffic(before, after):
        text = f"  {kind} over {axes}: {formatting.size(old)} → {formatting.size(new)}"
        yield Line(text, DIM if old == new else GOOD if new < old else WARNING)
    changed = layouts(before, after)
    yield Line("")
    yield Line("layouts that change" if changed else "no layout changes", HEAD)
    for name, old_spec, new_spec in changed:
        yield Line(f"  {name} {old_spec} → {new_spec}", "", ValuePage(name))
