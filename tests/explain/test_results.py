"""Results of a program lie as the compiled program returns them, and say who asked for that."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.base import formatting
from shardtui.engine.explain.compiled import with_compiled
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import UNKNOWN, Explanation, ValueOrigin

from ..random_programs import program_of_results
from .small_programs import arguments, value

on_the_mesh = pytest.mark.usefixtures("mesh")
OUT = "the sharding asked for {} by out_shardings"


def results(found: Explanation) -> dict[str, ValueOrigin]:
    return {value.name: value for value in found.values if value.role == "result"}


def explained(jitted: jax.stages.Wrapped, *given: jax.ShapeDtypeStruct) -> Explanation:
    lowered = jitted.lower(*given)
    return with_compiled(lowered, explain(lowered.compiler_ir("stablehlo"), "test"), "cpu")


def as_compiled(found: Explanation) -> bool:
    return all(value.compiled_axes == value.axes for value in results(found).values())


@pytest.mark.parametrize("seed", range(8))
def test_random_results_lie_as_compiled(seed: int) -> None:
    program = program_of_results(seed)
    found = explained(program.jitted, program.argument)
    wrong = {name: (each.axes, each.compiled_axes) for name, each in results(found).items()}
    assert as_compiled(found), f"{program.summary}: {wrong}"


@on_the_mesh
def test_a_result_that_is_asked_for_otherwise_than_it_is_computed_names_the_reshard_and_who_asked() -> None:
    mesh = jax.sharding.get_mesh()
    out = [NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P()), None]

    def program(x: jax.Array) -> list[jax.Array]:
        hidden = jax.lax.with_sharding_constraint(jnp.sin(x), P("data"))
        return [hidden, x, hidden * 2]

    found = explained(jax.jit(program, out_shardings=out), *arguments(((8, 16), P("data"))))
    first, second, third = results(found).values()
    assert [each.axes for each in (first, second, third)] == [[[], ["model"]], [[], []], [["data"], []]]
    assert as_compiled(found)
    (end,) = [link for link in first.origin if link.axis == "model"]
    assert (end.kind, end.what) == ("constraint", OUT.format("result[0]"))
    kept_out = [link.what for link in second.origin if link.kind == "conflict"]
    asked = "the result is asked for otherwise by out_shardings"
    gathered = f"there x goes through an all-gather over data, {formatting.size(8 * 16 * 4)}"
    assert kept_out == [f"operand 1 of the return, x, is split over data: {asked}; {gathered}"]
    assert [link.kind for link in third.origin if link.axis == "data"][-1] == "constraint"
    because = [reason for each in found.collectives for reason in each.because]
    assert "x comes as (data, –), and result[1] is asked for as (–, –) by out_shardings" in because


def test_tokens_that_order_prints_are_no_values() -> None:
    def program(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        jax.debug.print("{}", x.sum(), ordered=True)
        return x * 2, x

    found = explained(jax.jit(program), jax.ShapeDtypeStruct((8,), "float32"))
    assert [each.name for each in found.values if each.role == "argument"] == ["x"]
    assert list(results(found)) == ["result[0]", "result[1]"]


@on_the_mesh
def test_collectives_that_are_unknown_differ_from_no_estimate() -> None:
    of_rows = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))

    def program(x: jax.Array) -> jax.Array:
        gathered = jax.lax.with_sharding_constraint(jnp.sin(x), P())
        return jax.lax.with_sharding_constraint(gathered * 2, NamedSharding(of_rows, P("rows")))

    found = explained(jax.jit(program), *arguments(((8, 16), P("data"))))
    assert found.collectives and found.compiled, "it has two meshes"
    assert (found.compiled.collectives, found.compiled.differs) == (None, [])


@on_the_mesh
def test_an_argument_without_a_sharding_has_that_of_the_result_that_it_is_returned_as() -> None:
    mesh = jax.sharding.get_mesh()
    jitted = jax.jit(lambda x, y: (x + 1, y), out_shardings=(None, NamedSharding(mesh, P("data"))), donate_argnums=0)
    found = explained(jitted, *[jax.ShapeDtypeStruct((8,), "float32")] * 2)
    (link,) = value(found, "y").origin
    assert (link.kind, link.what, link.value) == ("constraint", OUT.format("result[1]"), "result[1]")
    assert as_compiled(found)


@on_the_mesh
def test_an_axis_crosses_a_reshape_of_a_reshape_that_it_does_not_divide_in_between_unless_that_is_used() -> None:
    def program(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        between = y.reshape(3, 8)
        return [x.reshape(3, 8).reshape(24), between, between.reshape(24)]

    split = ((24,), P("data"))
    found = explained(jax.jit(program), *arguments(split, split))
    assert [each.axes for each in results(found).values()] == [[["data"]], [[], []], [["data"]]]
    assert as_compiled(found)
    known = [(each.kind, each.bytes) for each in found.collectives if each.kind != UNKNOWN]
    assert known == [("all-gather", 24 * 4)]
