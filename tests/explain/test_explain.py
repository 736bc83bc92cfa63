"""Chains, conflicts and collectives of small programs, each with what follows from its code by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from shardtui.engine.base.user_error import UserError
from shardtui.engine.explain import passes
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import UNKNOWN, ValueOrigin, by_flow

from .small_programs import COLUMNS, FLOAT, ROWS, Layout, compiled, explained, lower, value

pytestmark = pytest.mark.usefixtures("mesh")


def chain(value: ValueOrigin, axis: str) -> list[tuple[str, str]]:
    return [(link.kind, link.what) for link in value.origin if link.axis == axis and link.kind != "conflict"]


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def test_an_operand_brings_an_axis_from_an_argument() -> None:
    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        return checkpoint_name(x @ w, "hidden")

    hidden = value(explained(program, ROWS, COLUMNS), "hidden")
    assert hidden.axes == [["data"], ["model"]]
    assert chain(hidden, "data") == [("operand", "operand 0 of the product, x"), ("input", "argument x")]
    assert chain(hidden, "model") == [("operand", "operand 1 of the product, w"), ("input", "argument w")]
    assert hidden.source == line_of(program, 1)


def test_a_constraint_reaches_back_and_names_its_line() -> None:
    def program(x: jax.Array) -> jax.Array:
        first = checkpoint_name(jnp.sin(x), "first")
        return jax.lax.with_sharding_constraint(first * 2, P(None, "model"))

    found = explained(program, ((8, 16), P()))
    *_, end = [link for link in value(found, "first").origin if link.axis == "model"]
    assert (end.kind, end.what, end.source) == ("constraint", "constraint to (–, model)", line_of(program, 2))


@pytest.mark.parametrize(("pairs", "gap"), [(12, "1 more operation"), (13, "3 more operations")])
def test_the_middle_of_a_long_chain_is_left_out(pairs: int, gap: str) -> None:
    def program(x: jax.Array) -> jax.Array:
        x = jnp.tanh(x)
        for _ in range(pairs):
            x = jnp.sin(x)
            x = jnp.cos(x)
        return checkpoint_name(x, "last")

    links = [what for _, what in chain(value(explained(program, ROWS), "last"), "data")]
    assert (len(links), links[12], links[-1]) == (24 + 2, gap, "argument x")


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return x * 2


doubled.defvjp(lambda x: (x * 2, None), lambda _, gradient: (gradient * 2,))


def inner(x: jax.Array) -> jax.Array:
    return checkpoint_name(jnp.sin(x), "inner")


CONTROL_FLOW: dict[str, Callable[[jax.Array], jax.Array]] = {
    "scan": lambda x: jax.lax.scan(lambda carry, _: (inner(carry), None), x, None, length=3)[0],
    "while": lambda x: jax.lax.while_loop(lambda carry: carry[0, 0] < 1, inner, x),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, inner, lambda x: x, x),
    "remat": lambda x: jax.grad(jax.checkpoint(lambda x: jnp.sin(inner(x)).sum()))(x),
    "custom_vjp": lambda x: jax.grad(lambda x: jnp.sin(doubled(inner(x))).sum())(x),
    "nested jit": lambda x: jax.jit(inner)(x) + 1,
    "square": lambda x: checkpoint_name(jnp.square(x), "inner") + 1,
}


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_chains_cross_control_flow(name: str) -> None:
    found = value(explained(CONTROL_FLOW[name], ROWS), "inner")
    assert found.axes == [["data"], []]
    assert chain(found, "data")[-1] == ("input", "argument x")


def test_a_shard_map_ends_a_chain() -> None:
    def program(x: jax.Array) -> jax.Array:
        @partial(jax.shard_map, in_specs=P("data", "model"), out_specs=P("data"))
        def total(part: jax.Array) -> jax.Array:
            return jax.lax.psum(part, "model")

        return checkpoint_name(total(jnp.sin(x)) * 2, "after")

    found = explained(program, ((8, 16), P()))
    assert chain(value(found, "after"), "data")[-1] == ("shard_map", "out_specs of the shard_map")
    (written,) = [each for each in found.collectives if each.kind == "all-reduce"]
    assert (written.axes, written.count, written.bytes) == (["model"], 1, 8 // 4 * 16 // 2 * 4)
    assert written.because == [f"the code calls it at test_explain.py:{program.__code__.co_firstlineno + 3}"]


def test_a_sum_over_a_split_dim_needs_an_all_reduce() -> None:
    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    found = explained(program, ((8, 16), P("data", "model")), ((16, 32), P("model")))
    (reduced,) = found.collectives
    assert (reduced.kind, reduced.axes, reduced.count, reduced.bytes) == ("all-reduce", ["model"], 1, 8 // 4 * 32 * 4)
    at = f"test_explain.py:{program.__code__.co_firstlineno + 1}"
    assert reduced.because == [
        f"the product at {at} sums over dim 1 of operand 0, x, which is split over model",
        f"the product at {at} sums over dim 0 of operand 1, w, which is split over model",
        "x has model from argument x",
        "w has model from argument w",
    ]


def test_both_sides_of_a_conflict_are_named_with_what_became_of_the_loser() -> None:
    """Fully sharded: batch and weights are split over one axis, so the weights are gathered."""

    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(checkpoint_name(x @ w, "hidden"), P("data"))

    found = explained(program, ((64, 16), P("data")), ((16, 32), P(None, "data")))
    hidden = value(found, "hidden")
    assert hidden.axes == [["data"], []]
    (conflict,) = [link for link in hidden.origin if link.kind == "conflict"]
    assert (conflict.dim, conflict.axis) == (1, "data")
    assert conflict.what == (
        "operand 1 of the product, w, is split over data: data already splits dim 0 here; "
        "there w goes through an all-gather over data, 2.05 kB"
    )
    (gathered,) = found.collectives
    assert (gathered.kind, gathered.axes, gathered.bytes) == ("all-gather", ["data"], 16 * 32 * 4)
    assert "data splits dim 0 of operand 0 (argument x)" in gathered.because[0]


def test_a_collective_in_a_loop_of_unknown_length_has_no_count() -> None:
    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda carry: carry[0, 0] < 1, lambda carry: jnp.tanh(carry @ w), x)

    found = explained(program, ((8, 16), P("data", "model")), ((16, 16), P("model")))
    assert any(each.count is None for each in found.collectives)


def test_a_counter_that_is_computed_from_another_value_tells_no_count() -> None:
    def program(x: jax.Array, w: jax.Array) -> tuple[int, int, jax.Array]:
        def body(carry: tuple[int, int, jax.Array]) -> tuple[int, int, jax.Array]:
            _, other, value = carry
            return other + 1, other + 5, jnp.tanh(value @ w)

        return jax.lax.while_loop(lambda carry: carry[0] < 10, body, (0, 0, x))

    found = explained(program, ((8, 16), P("data", "model")), ((16, 16), P("model")))
    assert any(each.kind == "all-reduce" and each.count is None for each in found.collectives), "it is 4, not 10"


def test_a_conflict_names_the_collective_and_not_what_is_unknown() -> None:
    found = explained(lambda x, y: x.reshape(128) + y, ((8, 16), P("data", "model")), ((128,), P("data")))
    assert any(each.kind == UNKNOWN for each in found.collectives)
    (conflict,) = [link for link in value(found, "x").origin if link.kind == "conflict"]
    assert conflict.what.endswith("; there x goes through an all-gather over model, 128 B")


def test_a_print_is_one_of_what_it_prints() -> None:
    def program(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x * 2

    (printed,) = explained(program, ROWS).collectives
    assert (printed.kind, printed.axes, printed.source) == (UNKNOWN, ["data"], line_of(program, 1))


def asked(*spec: Any) -> Callable[[jax.Array], jax.Array]:
    """A program that constrains its argument."""
    return lambda x: jax.lax.with_sharding_constraint(x, P(*spec))


def mapped(body: Callable[[jax.Array], jax.Array], into: P, out: P) -> Callable[[jax.Array], jax.Array]:
    return jax.shard_map(body, in_specs=into, out_specs=out, check_vma=False)


def scattered(x: jax.Array) -> jax.Array:
    return jax.lax.psum_scatter(x, BOTH, tiled=True)


def exchanged(x: jax.Array) -> jax.Array:
    return jax.lax.all_to_all(x, BOTH, 1, 0, tiled=True)


def passed_on(x: jax.Array) -> jax.Array:
    return jax.lax.ppermute(x, BOTH, [(i, (i + 1) % 8) for i in range(8)])


def looked_up(table: jax.Array) -> jax.Array:
    """An embedding: rows of a table whose rows are split."""
    return table[jax.numpy.arange(16) * 3]


DATA, MODEL, BOTH = ("data",), ("model",), ("data", "model")
X, WHOLE = (64, 32), 64 * 32 * FLOAT
PART = WHOLE // 8
ONE_COLLECTIVE = [
    (jnp.matmul, [(X, P(None, "model")), ((32, 128), P("model"))], "all-reduce", MODEL, 64 * 128 * FLOAT),
    (lambda x, g: x.T @ g, [ROWS, ((8, 32), P("data"))], "all-reduce", DATA, 16 * 32 * FLOAT),
    (lambda x: x.sum(axis=0), [(X, P(BOTH))], "all-reduce", BOTH, 32 * FLOAT),
    (lambda x: x.max(axis=0), [(X, P("data"))], "all-reduce", DATA, 32 * FLOAT),
    (jax.nn.softmax, [(X, P(None, "model"))], "all-reduce", MODEL, 2 * 64 * FLOAT),
    (looked_up, [((128, 32), P("model"))], "all-reduce", MODEL, 16 * 32 * FLOAT),
    (asked(), [(X, P("model"))], "all-gather", MODEL, WHOLE),
    (asked(), [(X, P(BOTH))], "all-gather", BOTH, WHOLE),
    (asked(None, "data"), [(X, P("data"))], "all-to-all", DATA, 2 * PART),
    (asked(None, BOTH), [(X, P(BOTH))], "all-to-all", BOTH, PART),
    (asked(("model", "data")), [(X, P(BOTH))], "collective-permute", BOTH, PART),
    (mapped(scattered, P(), P(BOTH)), [(X, P())], "reduce-scatter", BOTH, WHOLE),
    (mapped(exchanged, P(BOTH), P(None, BOTH)), [(X, P(BOTH))], "all-to-all", BOTH, PART),
    (mapped(passed_on, P(BOTH), P(BOTH)), [(X, P(BOTH))], "collective-permute", BOTH, PART),
]
"""Function, arguments; kind, axes and bytes on one device: of what is reduced, of what is gathered, of what moves."""


@pytest.mark.parametrize(("function", "layouts", "kind", "axes", "size"), ONE_COLLECTIVE)
def test_one_collective_is_estimated_to_the_byte(
    function: Callable[..., Any], layouts: list[Layout], kind: str, axes: tuple[str, ...], size: int
) -> None:
    lowered = lower(function, *layouts)
    found = explain(lowered.compiler_ir("stablehlo"), "test")
    assert by_flow(found.collectives) == {(kind, axes): size}
    assert compiled(lowered, found).differs == []


@pytest.mark.parametrize(
    ("function", "layouts"),
    [
        (lambda x, w: x @ w + jnp.sin(x) @ w, [((64, 16), P("data")), ((16, 32), P(None, "data"))]),
        (lambda x, w: jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0], [ROWS, ((3, 16, 16), P(None, "data"))]),
    ],
    ids=["two uses", "loop"],
)
def test_bytes_of_what_is_used_more_than_once_are_those_of_the_compiler(
    function: Callable[..., Any], layouts: list[Layout]
) -> None:
    lowered = lower(function, *layouts)
    found = explain(lowered.compiler_ir("stablehlo"), "test")
    assert by_flow(found.collectives) == by_flow(compiled(lowered, found).collectives or ()) != {}
    assert compiled(lowered, found).differs == []


def test_a_saved_activation_keeps_the_layout_that_was_asked_for_it() -> None:
    """What a loop saves for the backward pass is a broadcast to one layer, across which Shardy carries axes late."""

    def program(x: jax.Array, weights: jax.Array) -> jax.Array:
        def loss(weights: jax.Array) -> jax.Array:
            def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
                x = jax.lax.with_sharding_constraint(jnp.tanh(x), P("data"))
                return jax.lax.with_sharding_constraint(x @ w, P("data")), None

            return jax.lax.scan(layer, x, weights)[0].sum()

        return jax.lax.with_sharding_constraint(jax.grad(loss)(weights), P(None, "data"))

    lowered = lower(program, ((32, 16), P("data")), ((3, 16, 16), P(None, "data")))
    found = explain(lowered.compiler_ir("stablehlo"), "test")
    assert not [each for each in found.collectives if each.kind == "all-to-all"]
    assert compiled(lowered, found).differs == []


def test_an_involuntary_rematerialization_is_named_with_its_line_and_both_layouts() -> None:
    def program(x: jax.Array) -> jax.Array:
        hidden = checkpoint_name(jnp.sin(x), "hidden")
        return jax.lax.with_sharding_constraint(hidden, P(None, "model"))

    lower(program, ((64, 32), P("data"))).compile()
    jax.clear_caches()  # the compilation cache still has the program, without its warnings
    lowered = lower(program, ((64, 32), P("data")))
    found = explain(lowered.compiler_ir("stablehlo"), "test")
    (each,) = compiled(lowered, found).rematerializations
    assert (each.value, each.before, each.after) == ("x", [["data"], []], [[], ["model"]])
    assert each.source == line_of(program, 1)
    assert "data: argument x" in each.because
    assert any("the sine, hidden, is split over model" in reason for reason in each.because)
    because = [reason for collective in found.collectives for reason in collective.because]
    asked = f"the constraint at test_explain.py:{program.__code__.co_firstlineno + 2} asks for (–, model)"
    assert f"hidden comes as (data, model), and {asked}" in because


def test_passes_that_are_missing_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PIPELINE", "sdy-no-such-pipeline")
    with pytest.raises(UserError, match=r"^jaxlib \S+ lacks the passes that explain a program: ") as error:
        explained(lambda x: x + 1, ROWS)
    assert len(error.value.problems) == 1
    assert "\n" not in error.value.problems[0]


def test_explaining_leaves_the_program_as_it_was() -> None:
    lowered = lower(lambda x, w: x @ w, ROWS, COLUMNS)
    before = lowered.as_text()
    explain(lowered.compiler_ir("stablehlo"), "test")
    assert lowered.as_text() == before
