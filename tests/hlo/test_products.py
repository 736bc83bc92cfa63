"""What operations compute and move, in compiled texts and traced programs, by hand and against other readers."""

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import pallas
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.hlo.dataflow import Dataflow
from shardtui.engine.hlo.execution_counts import runs
from shardtui.engine.hlo.module import Module, parse
from shardtui.engine.hlo.products import Dim, multiplied, products, scope
from shardtui.engine.hlo.program_text import read
from shardtui.engine.hlo.work import Work, Works
from shardtui.engine.models.flops import flops, flops_by_scope, kernel_flops

from ..collective_programs import LAYERS, WIDTH
from ..hlo_texts import HOSTILE, MESH, loops, module

TEXTS = Path(__file__).parents[1] / "hlo"
PRODUCT = "  %y = f32[8,4] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
OPERANDS = "  %x = f32[8,16] parameter(1)\n  %w = f32[16,4] parameter(2)\n"


def counted(text: str, written: dict[str, float | None]) -> dict[str, float]:
    return {info.scope: info.flops_per_device for info in products(parse(text), written)}


@given(
    *(st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(-3, 5)),
    *(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
)
def test_multiplications_of_a_convolution(
    taken: int, kernel: int, made: int, pad: int, stride: int, dilation: int, kernel_dilation: int
) -> None:
    places = (at * kernel_dilation - pad + n * stride for at, n in itertools.product(range(kernel), range(made)))
    met = sum(place % dilation == 0 and 0 <= place // dilation < taken for place in places)
    assert multiplied(Dim(taken, kernel, made, pad, stride, dilation, kernel_dilation)) == met


def test_op_names_become_scopes() -> None:
    name = (
        "jit(step)/transpose(jvp(blocks))/while/body/closed_call/checkpoint/rematted_computation/attention/vmap(BN,S)"
    )
    assert scope(name, {"blocks", "attention"}) == "blocks/attention"
    assert scope("jvp()/jit(_einsum)") == ""
    assert scope("vmap(jvp(encoder))/block.3") == "encoder/block.3"


@pytest.mark.parametrize(
    ("product", "flops"),
    [
        (PRODUCT, 2 * 8 * 4 * 16),
        ("  %y = f32[8,4] convolution(%x, %w), dim_labels=bf_io->bf", 2 * 8 * 4 * 16),
        (
            '  %y = (f32[8,4], s8[64]) custom-call(%x, %w), custom_call_target="__cublas$gemm", backend_config='
            '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
            2 * 8 * 4 * 16,
        ),
        ("  %y = f32[8,4] dot(%x, %w), lhs_contracting_dims={7}, rhs_contracting_dims={0}", 0),
        ("  %y = f32[8,4] dot(%x), lhs_contracting_dims={1}", 0),
        ("  %y = f32[8,4] convolution(%x, %w), dim_labels=b0f_io->bf", 0),
        ('  %y = f32[8,4] custom-call(%x, %w), custom_call_target="__other"', 0),
    ],
)
def test_each_kind_of_product(product: str, flops: float) -> None:
    named = f'{product}, metadata={{op_name="jit(step)/mlp/dot_general"}}\n'
    assert counted(module([OPERANDS, named]), {"mlp": 1.0}) == {"mlp": flops}


@pytest.mark.parametrize(
    ("target", "operands", "result"),
    [
        ("Forward", ("[1,3,8]", "[5,3,4]"), "[1,5,5]"),
        ("BackwardInput", ("[1,5,5]", "[5,3,4]"), "[1,3,8]"),
        ("BackwardFilter", ("[1,3,8]", "[1,5,5]"), "[5,3,4]"),
    ],
)
def test_a_convolution_of_a_library_and_its_gradients(target: str, operands: tuple[str, str], result: str) -> None:
    inputs = "".join(f"  %p{at} = f32{shape} parameter({at})\n" for at, shape in enumerate(operands))
    call = f"  %y = (f32{result}, u8[9]) custom-call(%p0, %p1), window={{size=4}}, dim_labels=bf0_oi0->bf0, "
    named = f'custom_call_target="__cudnn$conv{target}", metadata={{op_name="jit(step)/mlp/conv"}}\n'
    assert counted(module([inputs, call + named]), {"mlp": 1.0}) == {"mlp": 2 * 4 * 5 * 5 * 3}


def test_products_count_every_iteration_and_those_with_only_an_outer_scope_make_it_one_part() -> None:
    inside = f'{OPERANDS}{PRODUCT}, metadata={{op_name="jit(step)/mlp/dot_general"}}\n'
    body = f"{inside}  %last = s32[] add(%i, %one)\n"
    assert counted(loops(body, 2), {"mlp": 1.0}) == {"mlp": 2 * 9 * 1024}
    assert counted(loops(body.replace("add(", "divide("), 1), {"mlp": 1.0}) == {"mlp": 0}, "the trip count is unknown"
    lines = [
        OPERANDS,
        f'{PRODUCT}, metadata={{op_name="jit(step)/blocks/mlp/dot_general"}}\n',
        PRODUCT.replace("%y", "%z"),
        '\n  %b = f32[32] bitcast(%z), metadata={op_name="jit(step)/blocks/add_any"}\n',
    ]
    written: dict[str, float | None] = {"blocks/mlp": 1024.0, "blocks/attention": 1024.0, "logits": 3.0}
    assert counted(module(lines), written) == {"blocks": 2048, "logits": 0}
    assert counted(module(lines), {**written, "blocks/attention": None}) == {"logits": 0}
    assert counted(module(lines[:2]), {"mlp": None, "logits": 3.0}) == {"logits": 0}


def test_a_program_compiled_for_tpu() -> None:
    """Its products are convolutions in fusions.

    One of its gathers is of the forward pass, and one overlaps the backward pass: nothing takes the value where it
    starts.
    """
    text = (TEXTS / "tpu-fsdp.hlo").read_text()
    (found,) = products(parse(text), {"": 1.0})
    assert found.flops_per_device == LAYERS * 3 * 2 * 128 * WIDTH * WIDTH
    assert found.source.startswith("/home/me/shardtui/tests/collective_programs.py:")
    assert gathers(text)[:2] == [(0, True), (0, False)]


def test_flops_of_the_traced_and_the_compiled_program_are_equal_unless_they_depend_on_data() -> None:
    """Scans, remat, scopes, convolutions and their gradients, split over eight devices."""
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    images = jax.ShapeDtypeStruct((16, 9, 9, 3), "float32", sharding=NamedSharding(mesh, P("data")))
    weights = {"kernel": (3, 3, 3, 4), "w": (2, 4, 4)}
    given = {name: jax.ShapeDtypeStruct(s, "float32", sharding=NamedSharding(mesh, P())) for name, s in weights.items()}

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        with jax.named_scope("stem"):
            x = jax.lax.conv_general_dilated(
                x, weights["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        @jax.checkpoint
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w), None

        with jax.named_scope("layers"):
            return jax.lax.scan(layer, x, weights["w"])[0].sum()

    traced = jax.jit(jax.grad(loss)).trace(given, images)
    written = flops_by_scope(traced.jaxpr)
    found = products(parse(traced.lower().compile().as_text() or ""), written)
    rows = 2 * 16 * 5 * 5 * 4 * 4
    assert written["layers"] == 2 * 4 * rows, "forward, recomputed, and twice backward"
    assert {info.scope: 8 * info.flops_per_device for info in found} == written
    x, mesh = jnp.ones((4, 4)), Mesh(np.array(jax.devices()), ("data",))

    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope("choice"):
            x = jax.lax.cond(x.sum() > 0, lambda x: x @ x, lambda x: x, x)
        with jax.named_scope("until"):
            x = jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x @ x, x)
        with jax.named_scope("ragged"):
            x = jax.lax.ragged_dot(x, jnp.ones((2, 4, 4)), jnp.array([1, 3]))
        with jax.named_scope("parts"):
            return jax.shard_map(lambda x: x @ x, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(x)

    assert flops_by_scope(jax.make_jaxpr(step)(x)) == {"choice": None, "until": None, "ragged": None, "parts": 8 * 128}


def test_kernels_count_by_their_grid_and_ragged_products_by_their_rows() -> None:
    x, kernel = jnp.ones((256, 128)), jnp.ones((128, 64))
    once = 2 * 256 * 128 * 64

    def multiply(x: Any, kernel: Any, out: Any) -> None:
        out[...] = x[...] @ kernel[...]

    def in_blocks(x: jax.Array, kernel: jax.Array, blocks: Any = 4) -> jax.Array:
        specs = [pallas.BlockSpec((64, 128), lambda i: (i, 0)), pallas.BlockSpec((128, 64), lambda i: (0, 0))]
        out = jax.ShapeDtypeStruct((256, 64), x.dtype)
        block = pallas.BlockSpec((64, 64), lambda i: (i, 0))
        call = pallas.pallas_call(
            multiply, out, grid=(blocks,), in_specs=specs, out_specs=block, interpret=True, name="blocks"
        )
        return call(x, kernel)

    known, unknown = jax.make_jaxpr(in_blocks)(x, kernel), jax.make_jaxpr(in_blocks)(x, kernel, 4)
    assert (flops(known), kernel_flops(known)) == (once, {"blocks": once / x.size})
    assert (flops(unknown), kernel_flops(unknown)) == (once / 4, {"blocks": once / 4 / x.size})
    ragged = jax.make_jaxpr(jax.lax.ragged_dot)(x, jnp.stack([kernel] * 3), jnp.array([100, 150, 6]))
    assert flops(ragged) == once


def test_a_transposed_convolution_counts_the_elements_that_it_is_given() -> None:
    def enlarge(images: jax.Array) -> jax.Array:
        return jax.lax.conv_transpose(images, jnp.ones((2, 2, 3, 5)), strides=(2, 2), padding="VALID")

    assert flops(jax.make_jaxpr(enlarge)(jnp.ones((4, 8, 8, 3)))) == 2 * 4 * 8 * 8 * (2 * 2 * 3 * 5)


def gathers(text: str) -> list[tuple[int | None, bool]]:
    """For each gather, the index of the argument that it gathers, and whether a product takes it."""
    found: Module = parse(text)
    flow = Dataflow(found)
    return [
        (flow.argument(where, each.operand), flow.is_multiplied(where, each.name))
        for where, each in found.instructions()
        if each.opcode == "all-gather"
    ]


GATHER = "  %g = f32[16,4] all-gather({}), replica_groups=[4,2]<=[8], dimensions={{0}}\n"
FUSED = """\
%fused (a: f32[8,4], i: s32[]) -> f32[8,4] {
  %i = s32[] parameter(1)
  %a = f32[2,8,4] parameter(0)
  %s = f32[1,8,4] dynamic-slice(%a, %i, %i, %i), dynamic_slice_sizes={1,8,4}
  ROOT %b = f32[8,4] bitcast(%s)
}

%multiplied (x: f32[8,16], w: f32[16,4]) -> f32[8,4] {
  %x = f32[8,16] parameter(0)
  %w = f32[16,4] parameter(1)
  %t = f32[16,4] copy(%w)
  ROOT %y = f32[8,4] dot(%x, %t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%scaled (x: f32[16,4]) -> f32[16,4] {
  %x = f32[16,4] parameter(0)
  ROOT %y = f32[16,4] multiply(%x, %x)
}

"""


def test_a_gather_is_traced_into_fusions() -> None:
    lines = [
        "  %x = f32[8,16] parameter(1)\n  %w = f32[2,8,4] parameter(2)\n  %i = s32[] constant(0)\n",
        "  %part = f32[8,4] fusion(%w, %i), kind=kLoop, calls=%fused\n",
        GATHER.format("%part"),
        "  %y = f32[8,4] fusion(%x, %g), kind=kOutput, calls=%multiplied\n",
    ]
    assert gathers(module(lines, FUSED)) == [(2, True)]
    lines[-1] = "  %y = f32[16,4] fusion(%g), kind=kLoop, calls=%scaled\n"
    assert gathers(module(lines, FUSED)) == [(2, False)]
    lines[1] = "  %part = f32[8,4] fusion(%w), kind=kLoop, calls=%scaled\n"
    assert gathers(module(lines, FUSED)) == [(None, False)], "the gathered value is computed"


LOOP = """\
%body (t: (s32[], f32[8,4], f32[8,4])) -> (s32[], f32[8,4], f32[8,4]) {
  %t = (s32[], f32[8,4], f32[8,4]) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %kept = f32[8,4] get-tuple-element(%t), index=1
  %old = f32[8,4] get-tuple-element(%t), index=2
  %new = f32[8,4] add(%old, %old)
  %x = f32[8,16] constant(0)
  GATHER
  %y = f32[8,4] dot(%x, %g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %next = (s32[], f32[8,4], f32[8,4]) tuple(%n, %kept, %new)
}

"""


@pytest.mark.parametrize(("operand", "argument"), [("%kept", 3), ("%old", None), ("%new", None)])
def test_a_gather_is_traced_out_of_a_loop_that_passes_its_operand_on(operand: str, argument: int | None) -> None:
    lines = [
        "  %w = f32[8,4] parameter(3)\n  %zero = s32[] constant(0)\n",
        "  %s = (s32[], f32[8,4], f32[8,4]) tuple(%zero, %w, %w)\n",
        "  %l = (s32[], f32[8,4], f32[8,4]) while(%s), condition=%until, body=%body\n",
    ]
    assert gathers(module(lines, LOOP.replace("  GATHER\n", GATHER.format(operand)))) == [(argument, True)]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_raises_nothing(name: str) -> None:
    read(HOSTILE[name](20_000), MESH, ["p"], {"": 1.0})


@given(st.text(max_size=300))
def test_any_text_raises_nothing(text: str) -> None:
    read(f"HloModule m\n\nENTRY %e (p: f32[8]) -> f32[8] {{\n  {text}\n}}\n", MESH, ["p"], {"": 1.0})


WORK = """HloModule jit_step, num_partitions=1

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
    module = parse(WORK)
    main = module.computations["main"]
    assert Works(module, runs(module)).of(main, main.instructions[name]) == work


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
    found = [
        Works(module, runs(module)).of(main, each) for each in main.instructions.values() if each.opcode not in free
    ]
    cost = compiled.cost_analysis()
    assert sum(work.bytes or 0 for work in found) == pytest.approx(cost["bytes accessed"])
