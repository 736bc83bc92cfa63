"""The compiled step of an external loop: its arguments, its results, and which of them are the training state.

Leaves are matched by their position in the tree. Shapes alone prove nothing: a moment has the shape of its parameter,
and a batch may have that of a weight.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile, zip_longest
from numbers import Number
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered

from ..program.pytree_arrays import Leaf, Path, leaves

FLAX_STATES = "states"
"""The key under which a function compiled by `nnx.jit` takes a module's arrays, as a list."""

Span = tuple[int, int]
"""The adjacent leaves of a subtree: begin and end."""


@dataclass(frozen=True)
class Matching:
    """Pairs of leaves by index. A leaf without any candidate is in neither field."""

    matched: dict[int, int]
    ambiguous: dict[int, list[int]]
    """From leaf to the several candidates that it may be."""


def by_identity(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> Matching:
    """Returns the pairs that are one array. Of an array at several places, each is matched by its position in the tree,
    or else in order; places of which `others` has fewer share one."""
    ours, theirs = _places(leaves), _places(others)
    common = [identity for identity in ours if identity in theirs]
    several = [identity for identity in common if len(ours[identity]) + len(theirs[identity]) > 2]
    found = {ours[identity][0]: theirs[identity][0] for identity in common}
    if several:
        here, there = (sorted(at for each in several for at in places[each]) for places in (ours, theirs))
        alike = by_structure([leaves[at] for at in here], [others[at] for at in there], _is_same_array)
        for identity in several:
            placed = {here[at]: there[to] for at, to in alike.matched.items() if here[at] in ours[identity]}
            free = [at for at in theirs[identity] if at not in placed.values()] or theirs[identity]
            rest = [at for at in ours[identity] if at not in placed]
            found |= placed | dict(zip_longest(rest, free[: len(rest)], fillvalue=free[0]))
    return Matching(found, ambiguous={})


def _places(leaves: Sequence[Leaf]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for at, leaf in enumerate(leaves):
        places.setdefault(leaf.identity, []).append(at)
    return places


def _is_same_array(leaf: Leaf, other: Leaf) -> bool:
    return leaf.identity == other.identity


def by_structure(
    leaves: Sequence[Leaf], others: Sequence[Leaf], can_match: Callable[[Leaf, Leaf], bool] = lambda _, __: True
) -> Matching:
    """Returns the pairs found by comparing the two trees. The whole tree, or else each of its largest subtrees, is
    matched with a subtree of the other tree that has the same keys, shapes and dtypes. Of several candidates, those
    with the most similar path to the root are kept, and what is matched is no candidate for the rest. `can_match`: an
    additional condition on each pair of leaves."""
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


@dataclass(frozen=True)
class CompiledStep:
    compiled: Compiled
    args: tuple[Any, ...] | None = None
    """The arguments that it is called with; None if `watch` was not given them."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    paths: Mapping[int, Path] = field(default_factory=dict[int, Path])
    """Other paths of arguments, by identity: by the names of parameters."""
    lowered: Lowered | None = None
    """The lowered step; None if `watch` was given a compiled one."""

    @cached_property
    def arguments(self) -> list[Leaf]:
        """Its arguments, flattened in order; those that the step does not use have no sharding."""
        shardings = self.compiled.in_tree.flatten_up_to(self.compiled.input_shardings)
        avals = list(leaves(jax.tree.map(_without_data, self.compiled.in_avals)))
        if arrays := _dynamic(jax.tree.leaves((self.args, self.kwargs)), avals):
            avals = [
                replace(aval, identity=id(array), path=self.paths.get(id(array), aval.path))
                for aval, array in zip(avals, arrays, strict=True)
            ]
        return [replace(aval, sharding=sharding) for aval, sharding in zip(avals, shardings, strict=True)]

    def uses(self, argument: int | None) -> bool:
        return argument is not None and self.arguments[argument].sharding is not None

    @cached_property
    def results(self) -> list[Leaf]:
        """Its results, flattened in order; empty if jax does not report their shardings one for one."""
        shardings = jax.tree.leaves(self.compiled.output_shardings)
        made = list(leaves(jax.tree.map(_without_data, self.compiled.out_info)))
        if len(made) != len(shardings):
            return []
        return [replace(leaf, sharding=sharding) for leaf, sharding in zip(made, shardings, strict=True)]

    def match(self, state: Sequence[Leaf]) -> Matching:
        """Returns which argument each leaf is: by array identity if any leaf has it, else by position in the tree."""
        same = by_identity(state, self.arguments)
        return same if same.matched else by_structure(state, self.arguments, _can_match)

    def resharded(self, state: Sequence[Leaf]) -> dict[int, Leaf | None]:
        """Returns the leaves whose layout the first step changes, from leaf index to the step's result. None if several
        results with different layouts match the leaf."""
        taken, made = self.match(state).matched, by_structure(state, self.results)
        found: dict[int, Leaf | None] = {}
        for at, argument in ((at, self.arguments[number]) for at, number in taken.items()):
            options = [made.matched[at]] if at in made.matched else made.ambiguous.get(at, [])
            results = [self.results[option] for option in options]
            if results and argument.sharding and not any(is_same_layout(argument, result) for result in results):
                is_unambiguous = all(is_same_layout(results[0], other) for other in results)
                found[at] = results[0] if is_unambiguous else None
        return found

    def steady(self, step: Any, state: Sequence[Leaf]) -> "tuple[CompiledStep, list[Leaf]]":
        """Returns the program that runs from the second call on, and the layout of the state by then. It is another
        program if the first call reshards the state. jax reuses it for the second call of the jitted function `step`,
        so nothing is compiled twice."""
        resharded = {at: result for at, result in self.resharded(state).items() if result}
        arrays, tree = jax.tree.flatten((self.args, {}))
        if not resharded or _shapes(arrays) != _shapes(self.arguments):
            return self, list(state)
        for at, result in resharded.items():
            described = jax.ShapeDtypeStruct(result.shape, result.dtype, sharding=result.sharding)
            arrays[self.match(state).matched[at]] = described
        args, _ = jax.tree.unflatten(tree, arrays)
        leaves_after = [
            replace(leaf, sharding=resharded[at].sharding) if at in resharded else leaf for at, leaf in enumerate(state)
        ]
        return compile_step(step, args, arrays=self.args), leaves_after


def compile_step(step: Any, args: tuple[Any, ...], arrays: tuple[Any, ...] | None = None) -> CompiledStep:
    """Compiles a function jitted by jax or Flax. `arrays`: the real arguments, if `args` holds abstract ones."""
    return compile_lowered(step.lower(*args), arrays or args)


def compile_lowered(
    lowered: Any, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None = None
) -> CompiledStep:
    compiled, lowered = lowered.compile(), getattr(lowered, "lowered", lowered)
    return CompiledStep(getattr(compiled, "compiled", compiled), args, kwargs or {}, lowered=lowered)


def is_placed(leaf: Leaf) -> bool:
    """Returns whether the leaf is committed to a mesh, so that the step takes it with its own layout."""
    return leaf.is_committed and isinstance(leaf.sharding, NamedSharding)


def is_same_layout(a: Leaf, b: Leaf) -> bool:
    return a.sharding is not None and b.sharding is not None and a.sharding.is_equivalent_to(b.sharding, len(a.shape))


def _can_match(leaf: Leaf, argument: Leaf) -> bool:
    return not is_placed(leaf) or argument.sharding is None or is_same_layout(leaf, argument)


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Returns the shape of each argument; () for Python numbers."""
    return [tuple(getattr(array, "shape", ())) for array in arrays]


def _dynamic(given: list[Any], taken: Sequence[Leaf]) -> list[Any]:
    """Returns the leaves of a call's arguments that are those of the program: without static ones; empty if they
    cannot be told."""
    numbers = [leaf for leaf in given if hasattr(leaf, "shape") or isinstance(leaf, Number)]
    arrays = [leaf for leaf in given if hasattr(leaf, "shape")]
    return next((found for found in (given, numbers, arrays) if _shapes(found) == _shapes(taken)), [])


def _without_data(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
