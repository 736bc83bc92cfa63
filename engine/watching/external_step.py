"""A compiled step that is not ours: what it takes, what it gives, and which of these are the state that it trains."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled

from ..program.leaves import Leaf, leaves
from .matching import Matching, by_identity, by_structure


@dataclass(frozen=True)
class Step:
    compiled: Compiled
    args: tuple[Any, ...] | None = None
    """What it is called with, where that was given."""

    @cached_property
    def arguments(self) -> list[Leaf]:
        """By their places; those that the step does not use have no sharding."""
        shardings = self.compiled.in_tree.flatten_up_to(self.compiled.input_shardings)
        avals = list(leaves(jax.tree.map(_without_data, self.compiled.in_avals)))
        arrays = jax.tree.leaves((self.args, {}))
        if _shapes(arrays) == _shapes(avals):
            avals = [replace(aval, identity=id(array)) for aval, array in zip(avals, arrays, strict=True)]
        return [replace(aval, sharding=sharding) for aval, sharding in zip(avals, shardings, strict=True)]

    def uses(self, argument: int | None) -> bool:
        return argument is not None and self.arguments[argument].sharding is not None

    @cached_property
    def results(self) -> list[Leaf]:
        shardings = jax.tree.leaves(self.compiled.output_shardings)
        made = list(leaves(jax.tree.map(_without_data, self.compiled.out_info)))
        if len(made) != len(shardings):
            return []
        return [replace(leaf, sharding=sharding) for leaf, sharding in zip(made, shardings, strict=True)]

    def taken(self, state: Sequence[Leaf]) -> Matching:
        """Which argument each leaf is: the one that is the same array, or else the one in the same place."""
        same = by_identity(state, self.arguments)
        return same if same.others else by_structure(state, self.arguments, _may_be)

    def laid_out_anew(self, state: Sequence[Leaf]) -> dict[int, Leaf | None]:
        """By the number of a leaf the result that it is, where that lies otherwise than the argument: from the second
        step on it lies so. None where it is one result or another."""
        taken, made = self.taken(state).others, by_structure(state, self.results)
        found: dict[int, Leaf | None] = {}
        for at, argument in ((at, self.arguments[number]) for at, number in taken.items()):
            options = [made.others[at]] if at in made.others else made.unclear.get(at, [])
            results = [self.results[option] for option in options]
            if results and argument.sharding and not any(lie_alike(argument, result) for result in results):
                is_clear = all(lie_alike(results[0], other) for other in results)
                found[at] = results[0] if is_clear else None
        return found

    def steady(self, step: Any, state: Sequence[Leaf]) -> "tuple[Step, list[Leaf]]":
        """What runs from the second call of `step`, a jitted function, on, and how the state lies then. It is another
        program where the first one lays the state out anew. jax takes it for that call: it is not compiled twice."""
        anew = {at: result for at, result in self.laid_out_anew(state).items() if result}
        arrays, tree = jax.tree.flatten((self.args, {}))
        if not anew or _shapes(arrays) != _shapes(self.arguments):
            return self, list(state)
        for at, result in anew.items():
            described = jax.ShapeDtypeStruct(result.shape, result.dtype, sharding=result.sharding)
            arrays[self.taken(state).others[at]] = described
        args, _ = jax.tree.unflatten(tree, arrays)
        lies = [replace(leaf, sharding=anew[at].sharding) if at in anew else leaf for at, leaf in enumerate(state)]
        return compile_step(step, args, known_as=self.args), lies


def compile_step(step: Any, args: tuple[Any, ...], known_as: tuple[Any, ...] | None = None) -> Step:
    """Of a jitted function, also of Flax's. `known_as`: the arrays in the place of descriptions among `args`."""
    compiled = step.lower(*args).compile()
    return Step(getattr(compiled, "compiled", compiled), known_as or args)


def is_told(leaf: Leaf) -> bool:
    """The step takes it where it lies."""
    return leaf.is_committed and isinstance(leaf.sharding, NamedSharding)


def lie_alike(a: Leaf, b: Leaf) -> bool:
    return a.sharding is not None and b.sharding is not None and a.sharding.is_equivalent_to(b.sharding, len(a.shape))


def _may_be(leaf: Leaf, argument: Leaf) -> bool:
    return not is_told(leaf) or argument.sharding is None or lie_alike(leaf, argument)


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Of Python's numbers, too."""
    return [tuple(getattr(array, "shape", ())) for array in arrays]


def _without_data(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
