"""The subject of a finding or a compiled collective in an explained step, and where its chains end."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...engine.explain.explanation import CollectiveOrigin, Explanation, Link, ValueOrigin
from ...engine.hlo.finding import Finding
from ...engine.wire.collective import CollectiveInfo
from ...engine.wire.descriptions import ArrayInfo
from .explanation_diff import numbered
from .explanation_words import in_words

UNSPLIT = ("S101", "S102", "S103", "S110")
"""Codes of findings about dims that are not split."""
MOST_ENDS = 6
RULE = re.compile(r'override "[^"]*"|rule \S+ → \S+(?: × \S+)*')


class Evidence(NamedTuple):
    """The subject of a finding."""

    values: list[str]
    """Values, by what `Link.value` calls them."""
    collectives: list[CollectiveOrigin]


def evidence(finding: Finding, found: Explanation, arrays: Sequence[ArrayInfo]) -> Evidence:
    """Returns what a finding is about: its arrays, what its source line computes and moves, or else its axes.

    What a line computes may be laid out as a constraint asks, whose value is then one of them.
    An axis that nothing uses is one that the batch could be split over.
    """
    known = numbered(found.values)
    values = [name for name in finding.arrays if name in known]
    collectives: list[CollectiveOrigin] = []
    if finding.source:
        computed = [label for label, value in known.items() if value.source == finding.source]
        links = (link for label in computed for link in known[label].origin if link.value in known)
        values += [*computed, *(link.value for link in links if link.kind == "constraint")]
        collectives = [each for each in found.collectives if each.source == finding.source]
    elif finding.axes and not values:
        collectives = [each for each in found.collectives if whole_axes(each) == set(finding.axes)]
        batch = [array.name for array in arrays if array.kind == "batch"]
        values = [] if collectives else [name for name in batch if name in known]
    return Evidence(list(dict.fromkeys(values)), collectives)


def ends(finding: Finding, about: Evidence, found: Explanation) -> list[str]:
    """Returns where the chains of a finding end, each rule and line once, dims that stay unsharded last."""
    known = numbered(found.values)
    links = [link for label in about.values for link in _ends(known[label], finding)]
    links = [link for link in links if link.axis in finding.axes] or links
    links.sort(key=lambda link: not link.axis)
    texts = [*map(in_words, links), *(each.because[-1] for each in about.collectives if each.because)]
    by_rule: dict[str, str] = {}
    for text in texts:
        by_rule.setdefault(_rule(text), text)
    return list(by_rule.values())[:MOST_ENDS]


def _ends(value: ValueOrigin, finding: Finding) -> Iterator[Link]:
    last = {(link.dim, link.axis): link for link in value.origin if link.kind not in ("operand", "conflict")}
    return (link for link in last.values() if _concerns(finding, link))


def _concerns(finding: Finding, link: Link) -> bool:
    """Whether a finding is about the dim at which a link ends: one that is split, or one that should be."""
    if link.axis:
        return finding.code not in UNSPLIT
    return not finding.dims or any(f" {dim}: " in link.what for dim in finding.dims)


def _rule(text: str) -> str:
    """The rule that a chain ends at, without the array that has it; the text if it ends at no rule."""
    rule = RULE.search(text)
    return rule[0] if rule else text.partition(": ")[2] or text


def origins_of(info: CollectiveInfo, estimated: Sequence[CollectiveOrigin]) -> list[CollectiveOrigin]:
    same = (each for each in estimated if (each.kind, each.source) == (info.kind, info.source))
    return [each for each in same if info.source and whole_axes(each) == set(info.axes)]


def similar(info: CollectiveInfo, estimated: Sequence[CollectiveOrigin]) -> list[CollectiveOrigin]:
    """Returns the estimated collectives for the same source line; without any, of the same kind and axes."""
    at_line = [each for each in estimated if info.source and each.source == info.source]
    return at_line or [each for each in estimated if each.kind == info.kind and whole_axes(each) == set(info.axes)]


def because(info: CollectiveInfo, estimated: Sequence[CollectiveOrigin]) -> list[str] | None:
    """Returns why a compiled collective is needed; None if the passes estimate none that can be joined to it."""
    reasons = dict.fromkeys(text for each in origins_of(info, estimated) for text in each.because)
    return list(reasons) or None


def whole_axes(each: CollectiveOrigin) -> set[str]:
    """Returns the mesh axes that a collective communicates over, also where it does so over a part of one."""
    return {axis.partition(":")[0] for axis in each.axes}
