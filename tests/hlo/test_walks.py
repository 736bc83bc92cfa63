"""Walks through programs whose computations call others twice, level by level: small texts, endless walks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir
from shardtui.engine.base.call_graph import ENDLESS, walk_of
from shardtui.engine.base.user_error import UserError
from shardtui.engine.explain.explain import explain
from shardtui.engine.hlo.execution_counts import is_walkable, runs
from shardtui.engine.hlo.module import Module, parse
from shardtui.engine.hlo.peak_memory import peak_memory
from shardtui.engine.hlo.work import Works
from shardtui.engine.models.flops import flops, flops_by_scope
from shardtui.engine.profiling.predicted import predicted_breakdown
from shardtui.engine.spec.topology import load_topology

from ..hlo_texts import nested

ONCE = "  ROOT %c = s32[] call(%q), to_apply=%n.{0}\n"
TWICE = "  %c = s32[] call(%q), to_apply=%n.{0}\n  ROOT %d = s32[] call(%q), to_apply=%n.{0}\n"
LEVELS = 30


def scheduled(count: int, call: str) -> Module:
    entry = (
        f"  %p = s32[] parameter(0)\n  ROOT %f = s32[] call(%p), to_apply=%n.{count - 1}, " + '"estimated_cycles":"9"'
    )
    first = "%n.-1 (q: s32[]) -> s32[] {\n  ROOT %q = s32[] parameter(0)\n}\n\n"
    before = first.replace("n.-1", "n.start") + nested(count, call).replace("%n.-1", "%n.start")
    return parse(
        f"HloModule m, is_scheduled=true, num_partitions=8\n\n{before}ENTRY %e (p: s32[]) -> s32[] {{\n{entry}\n}}\n"
    )


def test_a_walk_is_counted_without_being_taken() -> None:
    levels = {f"{n}": [f"{n - 1}"] * 2 for n in range(1, 61)}
    sizes = dict.fromkeys(["0", *levels], 1)
    assert walk_of("60", sizes, levels) == (2**61 - 1, 61)
    assert walk_of("60", sizes, levels | {"0": ["30"]}) == (ENDLESS, ENDLESS)
    assert walk_of("60", {"60": 7}, {}) == (7, 1)


@pytest.mark.parametrize(
    ("count", "call", "walkable"),
    [
        (8, TWICE, True),
        (60, TWICE, False),
        (50, ONCE, True),
        (5000, ONCE, False),
        (2, "  ROOT %c = s32[] call(%q), to_apply=%n.1\n", False),
    ],
)
def test_a_module_is_followed_in_time_linear_in_its_text_or_not_at_all(count: int, call: str, walkable: bool) -> None:
    module = scheduled(count, call)
    assert is_walkable(module) == walkable
    assert (peak_memory(module, ()) is not None) == walkable
    if not walkable:
        with pytest.raises(UserError, match="call each other too often"):
            predicted_breakdown(module, {"data": 8}, load_topology("v5e:2x4"))


def test_the_names_of_a_value_are_followed_once_each() -> None:
    """Every name is made of the one before, twice."""
    names = "".join(f"  %r.{n} = f32[8] opt-barrier(%r.{n - 1}, %r.{n - 1})\n" for n in range(1, 19))
    uses = "".join(f"  %o.{n} = f32[8] opt-barrier(%r.{n - 1}, %o.{n - 1})\n" for n in range(1, 19))
    fused = (
        f"%f (a: f32[8]) -> f32[1] {{\n  %r.0 = f32[8] parameter(0)\n{names}{uses}  ROOT %s = f32[1] slice(%r.18)\n}}"
    )
    entry = "ENTRY %e (p: f32[8]) -> f32[1] {\n  %p = f32[8] parameter(0)\n  ROOT %g = f32[1] fusion(%p), calls=%f\n}\n"
    module = parse(f"HloModule m\n\n{fused}\n\n{entry}")
    where = module.computations["e"]
    assert Works(module, runs(module)).of(where, where.instructions["g"]).bytes in (8, 36)


def doubling(levels: int) -> Callable[[jax.Array], jax.Array]:
    """Returns a function of 2 ** levels products."""
    if not levels:
        return lambda x: x @ x
    inner = jax.jit(doubling(levels - 1))
    return lambda x: inner(inner(x))


def test_a_traced_program_is_counted_by_function() -> None:
    jaxpr = jax.make_jaxpr(doubling(LEVELS))(jnp.ones((2, 2)))
    assert flops(jaxpr) == 16 * 2**LEVELS
    assert sum(filter(None, flops_by_scope(jaxpr).values())) == 16 * 2**LEVELS


def stablehlo(levels: int) -> ir.Module:
    """Returns a module whose functions call each the one before twice; jax itself cannot lower one of so many calls."""
    start = "%0 = call @f{0}(%x) : (tensor<2xf32>) -> tensor<2xf32>"
    twice = f"{start}\n%1 = call @f{{0}}(%0) : (tensor<2xf32>) -> tensor<2xf32>"
    once = "%0 = stablehlo.sine %x : tensor<2xf32>"

    def function(name: str, body: str) -> str:
        result = "%1" if "%1" in body else "%0"
        return f"func.func {name}(%x: tensor<2xf32>) -> tensor<2xf32> {{\n{body}\nreturn {result} : tensor<2xf32>\n}}\n"

    inner = "".join(function(f"private @f{n}", twice.format(n - 1)) for n in range(1, levels + 1))
    text = function("public @main", start.format(levels)) + function("private @f0", once) + inner
    return ir.Module.parse(f"module {{\n{text}}}", mlir.make_ir_context())


def test_a_program_too_large_with_its_calls_written_out_is_not_explained() -> None:
    with pytest.raises(UserError, match="more than 300,000 operations with all calls written out"):
        explain(stablehlo(60), "doubling")
    assert explain(stablehlo(3), "small").program == "small"
