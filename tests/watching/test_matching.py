"""Leaves of a state are matched with arguments of a step by their position in the tree, or reported as ambiguous."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.program.pytree_arrays import Leaf, leaves
from shardtui.engine.watching.external_step import by_structure


def shaped(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def listed(tree: Any) -> list[Leaf]:
    return list(leaves(tree))


def matched(state: Any, *args: Any, **options: Any) -> tuple[dict[str, str], set[str]]:
    """Returns the matches by path, from state to arguments, and the ambiguous leaves of the state."""
    ours, others = listed(state), listed((args, options))
    found = by_structure(ours, others)
    name = {at: ".".join(map(str, leaf.path)) for at, leaf in enumerate(ours)}
    return {name[at]: ".".join(map(str, others[to].path)) for at, to in found.matched.items()}, {
        name[at] for at in found.ambiguous
    }


W = shaped(8, 8)
ADAM = optax.adam(1e-3)


def test_names_decide_between_subtrees_of_one_shape() -> None:
    state = {"params": {"w": W}, "average": {"w": W}}
    found, ambiguous = matched(state, x=W, average={"w": W}, params={"w": W})
    assert found == {"params.w": "1.params.w", "average.w": "1.average.w"}
    assert not ambiguous


@pytest.mark.parametrize("args", [({"w": W}, {"w": W}, W), ({"w": W}, W)])
def test_indistinguishable_subtrees_are_ambiguous(args: tuple[Any, ...]) -> None:
    """Two subtrees for two arguments of unknown order, and two subtrees for one argument."""
    found, ambiguous = matched(({"w": W}, {"w": W}), *args)
    assert found == {}
    assert ambiguous == {"0.w", "1.w"}


def test_a_leaf_without_candidates_is_neither_matched_nor_ambiguous() -> None:
    assert matched({"w": W, "n": shaped()}, shaped(8, 9)) == ({}, set())
    assert matched({"w": shaped(4, dtype="int32")}, shaped(4)) == ({}, set())
    assert by_structure([], []).matched == {}


def test_flax_modules_match_the_arguments_of_nnx_jit() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layer = nnx.Linear(8, 8, rngs=rngs)

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)

    @nnx.jit
    def step(model: Net, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
        loss, gradients = nnx.value_and_grad(lambda model: model.layer(x).sum())(model)
        optimizer.update(model, gradients)
        return loss

    taken = step.lower(model, optimizer, jnp.ones((8, 8))).compile().compiled
    avals = jax.tree.map(lambda aval: shaped(*aval.shape, dtype=aval.dtype), taken.in_avals)
    state, others = listed((model, optimizer)), listed(avals)
    assert by_structure(state, others).matched == {at: at for at in range(len(state))}


TREES = st.recursive(
    st.sampled_from([W, shaped(8), shaped(), shaped(8, dtype="int32")]),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    max_leaves=12,
)


@given(TREES, TREES)
def test_a_leaf_never_matches_another_argument(state: Any, batch: Any) -> None:
    """Whatever the state and the batch are, a leaf matches its own argument or is ambiguous."""
    ours = listed(state)
    for args, before in (((state, batch), 0), ((batch, state), len(listed(batch)))):
        found = by_structure(ours, listed((args, {})))
        assert {other - number for number, other in found.matched.items()} <= {before}
        assert {*found.matched, *found.ambiguous} == {*range(len(ours))}
        assert all(before + number in found.ambiguous[number] for number in found.ambiguous)
