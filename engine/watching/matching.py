"""Finds which leaf of a state is which argument of a step, or which of its results.

Leaves are matched by their position in the tree. Shapes alone prove nothing: a moment has the shape of its parameter,
and a batch may have that of a weight.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ..program.leaves import Leaf, Path

FLAX_STATES = "states"
"""The key under which a function compiled by `nnx.jit` takes a module's arrays, as a list."""

Span = tuple[int, int]
"""The adjacent leaves of a subtree: the index of the first, and that after the last."""


@dataclass(frozen=True)
class Matching:
    """Pairs of leaves by index. A leaf without any candidate is in neither field."""

    matched: dict[int, int]
    """From leaf to the one argument or result that it is."""
    ambiguous: dict[int, list[int]]
    """From leaf to the several candidates that it may be."""


def by_identity(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> Matching:
    """Returns the pairs that are the same array object."""
    indices = {other.identity: at for at, other in enumerate(others)}
    return Matching(
        {at: indices[leaf.identity] for at, leaf in enumerate(leaves) if leaf.identity in indices}, ambiguous={}
    )


def by_structure(
    leaves: Sequence[Leaf], others: Sequence[Leaf], can_match: Callable[[Leaf, Leaf], bool] = lambda _, __: True
) -> Matching:
    """Returns the pairs found by comparing the two trees.

    The whole tree, or else each of its largest subtrees, is matched with a subtree of the other tree that has the same
    keys, shapes and dtypes. Of several candidates, those with the most similar path to the root are kept, and what is
    matched is no candidate for the rest. `can_match`: an additional condition on each pair of leaves.
    """
    candidates = _candidates(leaves, others, can_match)
    found: dict[int, int] = {}
    while decided := _decided(candidates):
        taken = {at for other in decided.values() for at in range(*other)}
        for span, other in decided.items():
            found.update(zip(range(*span), range(*other), strict=True))
        candidates = {
            span: [other for other in options if not taken.intersection(range(*other))]
            for span, options in candidates.items()
            if span not in decided
        }
    ambiguous = {
        at: [other[0] + at - span[0] for other in options]
        for span, options in candidates.items()
        for at in range(*span)
        if options
    }
    return Matching(found, ambiguous)


def _candidates(
    leaves: Sequence[Leaf], others: Sequence[Leaf], can_match: Callable[[Leaf, Leaf], bool]
) -> dict[Span, list[Span]]:
    """Returns the largest subtrees that have candidates, each with the most similar subtrees of the other tree."""
    by_arrays: dict[tuple[Any, ...], list[Span]] = {}
    for span in sorted(_subtrees(others)):
        by_arrays.setdefault(_shapes_and_dtypes(others, span), []).append(span)
    subtrees = _subtrees(leaves)
    candidates: dict[Span, list[Span]] = {}
    pending = [(0, len(leaves))]
    while pending:
        span = pending.pop(0)
        options = [
            other
            for other in by_arrays.get(_shapes_and_dtypes(leaves, span), [])
            if _is_same_tree(leaves[slice(*span)], others[slice(*other)])
            and all(map(can_match, leaves[slice(*span)], others[slice(*other)]))
        ]
        if options:
            similarity = [_path_similarity(leaves, others, span, other) for other in options]
            most = max(similarity)
            candidates[span] = [other for other, each in zip(options, similarity, strict=True) if each == most]
        else:
            pending += subtrees.get(span, [])
    return candidates


def _decided(candidates: dict[Span, list[Span]]) -> dict[Span, Span]:
    """Returns the subtrees with a single candidate that overlaps no other subtree's single candidate."""
    single = {span: options[0] for span, options in candidates.items() if len(options) == 1}
    wanted = Counter(at for other in single.values() for at in range(*other))
    return {span: other for span, other in single.items() if all(wanted[at] == 1 for at in range(*other))}


def _subtrees(leaves: Sequence[Leaf]) -> dict[Span, list[Span]]:
    """Returns every subtree with its direct children; a leaf has none."""
    found: dict[Span, list[Span]] = {}
    pending = [((0, len(leaves)), 0)]
    while pending:
        span, depth = pending.pop()
        inner = _children(leaves, span, depth)
        pending += ((child, depth + 1) for child in inner)
        found.setdefault(span, [])
        if inner != [span]:
            found[span] = inner
    return found


def _children(leaves: Sequence[Leaf], span: Span, depth: int) -> list[Span]:
    """Splits a subtree by the keys at a depth; empty if it is a leaf."""
    start, stop = span
    if any(len(leaf.path) <= depth for leaf in leaves[start:stop]):
        return []
    changes = [at for at in range(start + 1, stop) if leaves[at].path[depth] != leaves[at - 1].path[depth]]
    return list(zip([start, *changes], [*changes, stop], strict=True)) if start < stop else []


def _shapes_and_dtypes(leaves: Sequence[Leaf], span: Span) -> tuple[Any, ...]:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves[slice(*span)])


def _is_same_tree(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> bool:
    """Returns whether both subtrees have the same keys; nnx.jit takes the arrays of a module as a list."""
    ours, theirs = _inner_paths(leaves), _inner_paths(others)
    is_list = theirs == [(at,) for at in range(len(others))] and all(FLAX_STATES in leaf.path for leaf in others)
    return ours == theirs or is_list


def _inner_paths(leaves: Sequence[Leaf]) -> list[Path]:
    common = takewhile(lambda keys: len(set(keys)) == 1, zip(*(leaf.path for leaf in leaves), strict=False))
    start = len(list(common))
    return [leaf.path[start:] for leaf in leaves]


def _path_similarity(leaves: Sequence[Leaf], others: Sequence[Leaf], span: Span, other: Span) -> tuple[bool, int]:
    """Returns whether the names in the paths agree as far as both go, and how many agree, counted from the leaf."""
    pairs = [(_names(a), _names(b)) for a, b in zip(leaves[slice(*span)], others[slice(*other)], strict=True)]
    same = [
        next((n for n, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair))) for pair in pairs
    ]
    return all(n == min(map(len, pair)) for n, pair in zip(same, pairs, strict=True)), min(same, default=0)


def _names(leaf: Leaf) -> list[str]:
    """Returns the names in the path, the last first, without indices, which differ from tree to tree."""
    return [key for key in reversed(leaf.path) if isinstance(key, str)]
