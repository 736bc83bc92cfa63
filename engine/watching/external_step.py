"""The compiled step of an external loop: its arguments, its results, and which of them are the training state."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, zip_longest
from numbers import Number
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered

from ..program.pytree_arrays import Leaf, Path, leaves


@dataclass(frozen=True)
class CompiledStep:
    compiled: Compiled
    args: tuple[Any, ...]
    """The arguments that it is called with."""
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

    def match(self, state: Sequence[Leaf]) -> dict[int, int]:
        """Returns which argument each leaf is, of those that are one array. Of an array at several places, they are
        paired in order; places of which there are fewer arguments share one."""
        ours, theirs = _places(state), _places(self.arguments)
        found: dict[int, int] = {}
        for identity in ours.keys() & theirs.keys():
            here, there = ours[identity], theirs[identity]
            found |= zip_longest(here, there[: len(here)], fillvalue=there[0])
        return found

    def resharded(self, state: Sequence[Leaf]) -> dict[int, Leaf]:
        """Returns the leaves whose layout the first step changes, from leaf index to the step's result."""
        taken = self.match(state)
        made = _returned(self.arguments, {*taken.values()}, self.results)
        pairs = {at: (self.arguments[to], self.results[made[to]]) for at, to in taken.items() if to in made}
        return {
            at: result
            for at, (argument, result) in pairs.items()
            if argument.sharding and not is_same_layout(argument, result)
        }

    def steady(self, step: Any, state: Sequence[Leaf]) -> "tuple[CompiledStep, list[Leaf]]":
        """Returns the program that runs from the second call on, and the layout of the state by then. It is another
        program if the first call reshards the state. jax reuses it for the second call of the jitted function `step`,
        so nothing is compiled twice."""
        resharded, taken = self.resharded(state), self.match(state)
        arrays, tree = jax.tree.flatten((self.args, {}))
        if not resharded or _shapes(arrays) != _shapes(self.arguments):
            return self, list(state)
        for at, result in resharded.items():
            described = jax.ShapeDtypeStruct(result.shape, result.dtype, sharding=result.sharding)
            arrays[taken[at]] = described
        args, _ = jax.tree.unflatten(tree, arrays)
        leaves_after = [
            replace(leaf, sharding=resharded[at].sharding) if at in resharded else leaf for at, leaf in enumerate(state)
        ]
        return compile_lowered(step.lower(*args), self.args), leaves_after


def compile_lowered(lowered: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> CompiledStep:
    """Compiles a step lowered by jax or Flax. `args`, `kwargs`: the real arguments, which hold arrays."""
    compiled, lowered = lowered.compile(), getattr(lowered, "lowered", lowered)
    return CompiledStep(getattr(compiled, "compiled", compiled), args, kwargs or {}, lowered=lowered)


def is_placed(leaf: Leaf) -> bool:
    """Returns whether the leaf is committed to a mesh, so that the step takes it with its own layout."""
    return leaf.is_committed and isinstance(leaf.sharding, NamedSharding)


def is_same_layout(a: Leaf, b: Leaf) -> bool:
    return a.sharding is not None and b.sharding is not None and a.sharding.is_equivalent_to(b.sharding, len(a.shape))


def _places(leaves: Sequence[Leaf]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for at, leaf in enumerate(leaves):
        places.setdefault(leaf.identity, []).append(at)
    return places


def _returned(arguments: Sequence[Leaf], state: Collection[int], results: Sequence[Leaf]) -> dict[int, int]:
    """Returns which result takes the place of each array in the arguments that hold state, whose indices are `state`.

    The results of an argument follow each other with its shapes and dtypes. Arguments with equal ones are paired with
    their results in order; if there are more or fewer of these, none is. The longest are paired first, as the moments
    of an optimizer look like the parameters.
    """
    alike: dict[tuple[Any, ...], list[list[int]]] = {}
    for _, group in groupby(range(len(arguments)), key=lambda at: arguments[at].path[:2]):
        if not {*state}.isdisjoint(span := [*group]):
            alike.setdefault(tuple(_shape_and_dtype(arguments[at]) for at in span), []).append(span)
    free: list[Any] = [*map(_shape_and_dtype, results)]
    found: dict[int, int] = {}
    for arrays in sorted(alike, key=len, reverse=True):
        begins = _begins(arrays, free)
        if len(begins) == len(alike[arrays]):
            for span, begin in zip(alike[arrays], begins, strict=True):
                found |= zip(span, range(begin, begin + len(span)), strict=True)
                free[begin : begin + len(span)] = [None] * len(span)
    return found


def _begins(part: tuple[Any, ...], whole: Sequence[Any]) -> list[int]:
    """Returns where the part begins in the whole, each time after its last end."""
    found: list[int] = []
    at = 0
    while at + len(part) <= len(whole):
        is_here = tuple(whole[at : at + len(part)]) == part
        found += [at] * is_here
        at += len(part) if is_here else 1
    return found


def _shape_and_dtype(leaf: Leaf) -> tuple[Any, ...]:
    return leaf.shape, str(leaf.dtype)


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Returns the shape of each argument; () for Python numbers."""
    return [tuple(getattr(array, "shape", ())) for array in arrays]


def _dynamic(given: list[Any], taken: Sequence[Leaf]) -> list[Any]:
    """Returns the leaves of a call's arguments that are those of the program: without static ones, and of `nnx.jit`,
    without a variable where it comes again; empty if they cannot be told."""
    numbers = [leaf for leaf in given if hasattr(leaf, "shape") or isinstance(leaf, Number)]
    arrays = [leaf for leaf in given if hasattr(leaf, "shape")]
    once = [*{id(leaf): leaf for leaf in arrays}.values()]
    return next((found for found in (given, numbers, arrays, once) if _shapes(found) == _shapes(taken)), [])


def _without_data(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
