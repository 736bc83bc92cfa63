"""What operations compute and move, by hand and compared with XLA's own count."""

import jax
import jax.numpy as jnp
import pytest
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.work import Work, Works

TEXT = """HloModule jit_step, num_partitions=1

%takes_a_slice (p.0: f32[16,8,4], p.1: s32[]) -> f32[8,4] {
  %p.0 = f32[16,8,4]{2,1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,8,4]{2,1,0} dynamic-slice(%p.0, %p.1, %zero, %zero), dynamic_slice_sizes={1,8,4}
  ROOT %bitcast = f32[8,4]{1,0} bitcast(%slice)
}

%updates_a_slice (q.0: f32[16,8,4], q.1: f32[8,4], q.2: s32[]) -> f32[16,8,4] {
  %q.0 = f32[16,8,4]{2,1,0} parameter(0)
  %q.1 = f32[8,4]{1,0} parameter(1)
  %q.2 = s32[] parameter(2)
  %none = s32[] constant(0)
  %row = f32[1,8,4]{2,1,0} bitcast(%q.1)
  ROOT %update = f32[16,8,4]{2,1,0} dynamic-update-slice(%q.0, %row, %q.2, %none, %none)
}

%multiplies (r.0: f32[8,4], r.1: f32[4,2]) -> (f32[8,2], f32[8,4]) {
  %r.0 = f32[8,4]{1,0} parameter(0)
  %r.1 = f32[4,2]{1,0} parameter(1)
  %dot = f32[8,2]{1,0} dot(%r.0, %r.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %twice = f32[8,4]{1,0} add(%r.0, %r.0)
  ROOT %both = (f32[8,2]{1,0}, f32[8,4]{1,0}) tuple(%dot, %twice)
}

ENTRY %main (a: f32[16,8,4], b: s32[], c: f32[4,2]) -> f32[16,8,4] {
  %a = f32[16,8,4]{2,1,0} parameter(0)
  %b = s32[] parameter(1)
  %c = f32[4,2]{1,0} parameter(2)
  %near = f32[4,2]{1,0:T(8,128)S(1)} copy(%c)
  %taken = f32[8,4]{1,0} fusion(%a, %b), kind=kLoop, calls=%takes_a_slice
  %product = (f32[8,2]{1,0}, f32[8,4]{1,0}) fusion(%taken, %near), kind=kOutput, calls=%multiplies
  %second = f32[8,4]{1,0} get-tuple-element(%product), index=1
  %unknown = f32[8,4]{1,0} fusion(%second), kind=kCustom, calls=%elsewhere
  ROOT %kept = f32[16,8,4]{2,1,0} fusion(%a, %second, %b), kind=kLoop, calls=%updates_a_slice
}
"""


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("taken", Work(None, 128 + 4 + 128)),  # the slice and its index, and the result
        ("kept", Work(None, 128 + 4 + 128)),  # the update and its index, and the slice that it replaces
        ("product", Work(2 * 8 * 4 * 2, 128 + 64 + 128)),  # one operand is on the chip
        ("near", Work(None, 32)),  # read from memory, written on the chip
        ("unknown", Work(None, None)),
    ],
)
def test_work_by_hand(name: str, work: Work) -> None:
    module = parse(TEXT)
    main = module.computations["main"]
    assert Works(module).of(main, main.instructions[name]) == work


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a @ b,
        lambda a, b: jnp.tanh(a) + b,
        lambda a, b: (a.T @ b).sum(axis=0),
        lambda a, b: jax.lax.dynamic_update_slice(a, b[:4] * 2, (jnp.int32(3), 0)),
        lambda a, b: jnp.concatenate([a, b])[5:9],
    ],
)
def test_the_sum_is_that_of_xla(function: object) -> None:
    compiled = jax.jit(function).lower(jnp.ones((64, 64)), jnp.ones((64, 64))).compile()  # type: ignore[arg-type]
    module = parse(compiled.as_text() or "")
    main = module.computations[module.entry]
    free = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
    found = [Works(module).of(main, each) for each in main.instructions.values() if each.opcode not in free]
    cost = compiled.cost_analysis()
    assert sum(work.bytes or 0 for work in found) == pytest.approx(cost["bytes accessed"])
