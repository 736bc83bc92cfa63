"""Which leaf of a state is which argument of a step: by its place, or nothing is said."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.program.leaves import Leaf, leaves
from shardtui.engine.watching.matching import by_identity, by_structure


def shaped(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def listed(tree: Any) -> list[Leaf]:
    return list(leaves(tree))


def matched(state: Any, *args: Any, **options: Any) -> tuple[dict[str, str], set[str]]:
    """From names to names, and what is unclear."""
    ours, others = listed(state), listed((args, options))
    found = by_structure(ours, others)
    name = {at: ".".join(map(str, leaf.path)) for at, leaf in enumerate(ours)}
    return {name[at]: ".".join(map(str, others[to].path)) for at, to in found.others.items()}, {
        name[at] for at in found.unclear
    }


W = shaped(8, 8)
ADAM = optax.adam(1e-3)


def test_the_whole_state_is_an_argument() -> None:
    state = {"params": {"w": W}, "mu": {"w": W}}
    assert matched(state, state, W) == ({"params.w": "0.0.params.w", "mu.w": "0.0.mu.w"}, set())
    assert matched(state, W, state)[0]["mu.w"] == "0.1.mu.w"


def test_parts_of_it_are_arguments() -> None:
    params = {"w": W, "b": shaped(8)}
    opt = jax.eval_shape(ADAM.init, params)
    for state in ((params, opt), {"params": params, "opt_state": opt}):
        found, unclear = matched(state, params, opt, W)
        assert not unclear
        assert {to.split(".")[1] for name, to in found.items() if name.split(".")[0] in ("0", "params")} == {"0"}
        assert len(found) == 2 + 5
        assert matched(state, opt, params, W)[0] == {name: swapped(to) for name, to in found.items()}


def swapped(path: str) -> str:
    head, argument, *rest = path.split(".")
    return ".".join((head, {"0": "1", "1": "0"}[argument], *rest))


def test_names_decide_between_parts_of_one_shape() -> None:
    state = {"params": {"w": W}, "average": {"w": W}}
    found, unclear = matched(state, x=W, average={"w": W}, params={"w": W})
    assert found == {"params.w": "1.params.w", "average.w": "1.average.w"}
    assert not unclear


@pytest.mark.parametrize("args", [({"w": W}, {"w": W}, W), ({"w": W}, W)])
def test_nothing_is_said_where_nothing_tells(args: tuple[Any, ...]) -> None:
    """Two parts for two arguments whose order nobody knows; two parts for one."""
    found, unclear = matched(({"w": W}, {"w": W}), *args)
    assert found == {}
    assert unclear == {"0.w", "1.w"}


def test_what_is_no_argument_is_neither() -> None:
    assert matched({"w": W, "n": shaped()}, shaped(8, 9)) == ({}, set())
    assert matched({"w": shaped(4, dtype="int32")}, shaped(4)) == ({}, set())
    assert by_structure([], []).others == {}


def test_an_array_is_itself() -> None:
    w, v = jnp.ones(3), jnp.ones(3)
    assert by_identity(listed({"a": v, "b": w}), listed((w, v, jnp.ones(3)))).others == {0: 1, 1: 0}


def test_modules_of_flax_are_matched_as_nnx_jit_takes_them() -> None:
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
    assert by_structure(state, others).others == {at: at for at in range(len(state))}


TREES = st.recursive(
    st.sampled_from([W, shaped(8), shaped(), shaped(8, dtype="int32")]),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    max_leaves=12,
)


@given(TREES, TREES)
def test_a_leaf_is_never_taken_for_one_of_another_part(state: Any, batch: Any) -> None:
    """Whatever the state and the batch are: it is its own argument, or nothing is said."""
    ours = listed(state)
    for args, before in (((state, batch), 0), ((batch, state), len(listed(batch)))):
        found = by_structure(ours, listed((args, {})))
        assert {other - number for number, other in found.others.items()} <= {before}
        assert {*found.others, *found.unclear} == {*range(len(ours))}
        assert all(before + number in found.unclear[number] for number in found.unclear)
