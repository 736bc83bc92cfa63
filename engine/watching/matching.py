"""Which leaf of a state is which argument of a step, or which of its results.

By where it stands. Shapes alone prove nothing: a moment has its parameter's, and a batch may have a weight's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ..program.leaves import Leaf, Path

FLAX_STATES = "states"
"""The key of a list of a module's arrays among the arguments of what `nnx.jit` has compiled."""

Span = tuple[int, int]
"""The leaves of a part of a tree, which stand side by side: the first, and the one behind the last."""


@dataclass(frozen=True)
class Matching:
    others: dict[int, int]
    """By the number of a leaf the number of the other that it is. A leaf that is none of these is in neither field."""
    unclear: dict[int, list[int]]
    """By the number of a leaf the others that it may be."""


def by_identity(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> Matching:
    """Those that are the same array."""
    places = {other.identity: at for at, other in enumerate(others)}
    return Matching(
        {at: places[leaf.identity] for at, leaf in enumerate(leaves) if leaf.identity in places}, unclear={}
    )


def by_structure(
    leaves: Sequence[Leaf], others: Sequence[Leaf], may_be: Callable[[Leaf, Leaf], bool] = lambda _, __: True
) -> Matching:
    """The whole tree, or else the largest parts of it, are the parts of the other tree that have the same keys, shapes
    and dtypes. Of several it is the one with the same names on the way. What is taken is out of the
    question for the rest. `may_be`: a leaf can be that other."""
    claims = _claims(leaves, others, may_be)
    found: dict[int, int] = {}
    while settled := _settled(claims):
        taken = {at for offer in settled.values() for at in range(*offer)}
        for span, offer in settled.items():
            found.update(zip(range(*span), range(*offer), strict=True))
        claims = {
            span: [offer for offer in offers if not taken.intersection(range(*offer))]
            for span, offers in claims.items()
            if span not in settled
        }
    unclear = {
        at: [offer[0] + at - span[0] for offer in offers]
        for span, offers in claims.items()
        for at in range(*span)
        if offers
    }
    return Matching(found, unclear)


def _claims(
    leaves: Sequence[Leaf], others: Sequence[Leaf], may_be: Callable[[Leaf, Leaf], bool]
) -> dict[Span, list[Span]]:
    """From parts of a tree to those of the other that each may be."""
    offered: dict[tuple[Any, ...], list[Span]] = {}
    for span in sorted(_parts(others)):
        offered.setdefault(_kinds(others, span), []).append(span)
    parts = _parts(leaves)
    claims: dict[Span, list[Span]] = {}
    waiting = [(0, len(leaves))]
    while waiting:
        span = waiting.pop(0)
        offers = [
            offer
            for offer in offered.get(_kinds(leaves, span), [])
            if _is_same_tree(leaves[slice(*span)], others[slice(*offer)])
            and all(map(may_be, leaves[slice(*span)], others[slice(*offer)]))
        ]
        if offers:
            likeness = [_likeness(leaves, others, span, offer) for offer in offers]
            claims[span] = [offer for offer, like in zip(offers, likeness, strict=True) if like == max(likeness)]
        else:
            waiting += parts.get(span, [])
    return claims


def _settled(claims: dict[Span, list[Span]]) -> dict[Span, Span]:
    """Those with one offer that no other has as its only one."""
    single = {span: offers[0] for span, offers in claims.items() if len(offers) == 1}
    wanted = Counter(at for offer in single.values() for at in range(*offer))
    return {span: offer for span, offer in single.items() if all(wanted[at] == 1 for at in range(*offer))}


def _parts(leaves: Sequence[Leaf]) -> dict[Span, list[Span]]:
    """From each part of a tree to those that it is made of; none where it is a leaf."""
    found: dict[Span, list[Span]] = {}
    waiting = [((0, len(leaves)), 0)]
    while waiting:
        span, depth = waiting.pop()
        inner = _divided(leaves, span, depth)
        waiting += ((part, depth + 1) for part in inner)
        found.setdefault(span, [])
        if inner != [span]:
            found[span] = inner
    return found


def _divided(leaves: Sequence[Leaf], span: Span, depth: int) -> list[Span]:
    """By the key at a depth; nothing where there is none."""
    start, stop = span
    if any(len(leaf.path) <= depth for leaf in leaves[start:stop]):
        return []
    changes = [at for at in range(start + 1, stop) if leaves[at].path[depth] != leaves[at - 1].path[depth]]
    return list(zip([start, *changes], [*changes, stop], strict=True)) if start < stop else []


def _kinds(leaves: Sequence[Leaf], span: Span) -> tuple[Any, ...]:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves[slice(*span)])


def _is_same_tree(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> bool:
    """The way from the top of the part to each leaf is the same; nnx.jit takes the arrays of a module as a list."""
    ours, theirs = _inner_paths(leaves), _inner_paths(others)
    is_list = theirs == [(at,) for at in range(len(others))] and all(FLAX_STATES in leaf.path for leaf in others)
    return ours == theirs or is_list


def _inner_paths(leaves: Sequence[Leaf]) -> list[Path]:
    shared = takewhile(lambda keys: len(set(keys)) == 1, zip(*(leaf.path for leaf in leaves), strict=False))
    outer = len(list(shared))
    return [leaf.path[outer:] for leaf in leaves]


def _likeness(leaves: Sequence[Leaf], others: Sequence[Leaf], span: Span, offer: Span) -> tuple[bool, int]:
    """Whether the names on the way contradict each other, and how many are the same, counted from the leaf."""
    pairs = [(_names(a), _names(b)) for a, b in zip(leaves[slice(*span)], others[slice(*offer)], strict=True)]
    same = [
        next((n for n, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair))) for pair in pairs
    ]
    return all(n == min(map(len, pair)) for n, pair in zip(same, pairs, strict=True)), min(same, default=0)


def _names(leaf: Leaf) -> list[str]:
    """Of its path, the last first. Numbers are places, and those differ from tree to tree."""
    return [key for key in reversed(leaf.path) if isinstance(key, str)]
