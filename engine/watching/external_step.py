"""The compiled step of an external loop: its arguments, its results, and which of them are the training state."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered

from ..program.leaves import Leaf, leaves
from .matching import Matching, by_identity, by_structure


@dataclass(frozen=True)
class Step:
    """A compiled training step."""

    compiled: Compiled
    args: tuple[Any, ...] | None = None
    """The arguments that it is called with; None if `watch` was not given them."""
    lowered: Lowered | None = None
    """What was compiled; None if `watch` was given a compiled step."""

    @cached_property
    def arguments(self) -> list[Leaf]:
        """Its arguments, flattened in order; those that the step does not use have no sharding."""
        shardings = self.compiled.in_tree.flatten_up_to(self.compiled.input_shardings)
        avals = list(leaves(jax.tree.map(_without_data, self.compiled.in_avals)))
        arrays = jax.tree.leaves((self.args, {}))
        if _shapes(arrays) == _shapes(avals):
            avals = [replace(aval, identity=id(array)) for aval, array in zip(avals, arrays, strict=True)]
        return [replace(aval, sharding=sharding) for aval, sharding in zip(avals, shardings, strict=True)]

    def uses(self, argument: int | None) -> bool:
        """Returns whether the compiled program takes the argument of this index; False for None."""
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
        """Returns the leaves whose layout the first step changes, from leaf index to the step's result.

        None if several results with different layouts match the leaf.
        """
        taken, made = self.match(state).matched, by_structure(state, self.results)
        found: dict[int, Leaf | None] = {}
        for at, argument in ((at, self.arguments[number]) for at, number in taken.items()):
            options = [made.matched[at]] if at in made.matched else made.ambiguous.get(at, [])
            results = [self.results[option] for option in options]
            if results and argument.sharding and not any(is_same_layout(argument, result) for result in results):
                is_unambiguous = all(is_same_layout(results[0], other) for other in results)
                found[at] = results[0] if is_unambiguous else None
        return found

    def steady(self, step: Any, state: Sequence[Leaf]) -> "tuple[Step, list[Leaf]]":
        """Returns the program that runs from the second call on, and the layout of the state by then.

        It is another program if the first call reshards the state. jax reuses it for the second call of the jitted
        function `step`, so nothing is compiled twice.
        """
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


def compile_step(step: Any, args: tuple[Any, ...], arrays: tuple[Any, ...] | None = None) -> Step:
    """Compiles a function jitted by jax or Flax. `arrays`: the real arguments, if `args` holds abstract ones."""
    return compile_lowered(step.lower(*args), arrays or args)


def compile_lowered(lowered: Any, args: tuple[Any, ...] | None) -> Step:
    """Compiles what jax or Flax lowered."""
    compiled = lowered.compile()
    return Step(getattr(compiled, "compiled", compiled), args, getattr(lowered, "lowered", lowered))


def is_placed(leaf: Leaf) -> bool:
    """Returns whether the leaf is committed to a mesh, so that the step takes it with its own layout."""
    return leaf.is_committed and isinstance(leaf.sharding, NamedSharding)


def is_same_layout(a: Leaf, b: Leaf) -> bool:
    """Returns whether both have a sharding and the two are equivalent."""
    return a.sharding is not None and b.sharding is not None and a.sharding.is_equivalent_to(b.sharding, len(a.shape))


def _can_match(leaf: Leaf, argument: Leaf) -> bool:
    return not is_placed(leaf) or argument.sharding is None or is_same_layout(leaf, argument)


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Returns the shape of each argument; () for Python numbers."""
    return [tuple(getattr(array, "shape", ())) for array in arrays]


def _without_data(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
