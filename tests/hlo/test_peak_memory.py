"""What fills the memory at the peak: programs counted by hand, and the compiler's own figures."""

import io
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from shardtui.engine.hlo.array_types import elements, leaves, memory_space
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.peak_memory import MOST_BUFFERS, MOST_POINTS, Peak, padded_bytes, peak_memory
from shardtui.engine.planning.ahead_of_time import compile_cost, find_slice
from shardtui.engine.program.memory import predict
from shardtui.engine.program.program import Program
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.descriptions import PeakBuffer, PeakMemory
from shardtui.tui.cli.profile_report import peak_table
from shardtui.tui.state.step_words import curve_rows

from ..conftest import built_in_task
from ..programs import KINDS

HEAD = "HloModule m, is_scheduled=true, entry_computation_layout={{}}, num_partitions=1{0}\n\n"
TOLERANCE = 0.055


def peak_of(entry: str, before: str = "", alias: str = "", names: tuple[str, ...] = ()) -> Peak:
    aliases = f", input_output_alias={{ {alias} }}" if alias else ""
    found = peak_memory(parse(f"{HEAD.format(aliases)}{before}ENTRY %e (p: f32[8]) -> f32[8] {{\n{entry}}}\n"), names)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("array", "size"),
    [
        ("f32[100]{0}", 400),
        ("f32[]", 4),
        ("f32[]{:T(128)}", 512),
        ("f32[3,5]{1,0:T(8,128)}", 8 * 128 * 4),
        ("f32[3,5]{0,1:T(8,128)}", 8 * 128 * 4),
        ("f32[200,5]{0,1:T(8,128)}", 8 * 256 * 4),
        ("bf16[12,8,12,1024,64]{4,3,2,1,0:T(8,128)(2,1)}", 12 * 8 * 12 * 1024 * 128 * 2),
        ("bf16[4,3,4,16]{3,2,1,0:T(4,128)(2,1)S(1)}", 4 * 3 * 4 * 128 * 2),
        ("pred[9]{0}", 9),
        ("s4[16]{0}", 8),
        ("token[]", 0),
    ],
)
def test_bytes_of_an_array(array: str, size: int) -> None:
    assert padded_bytes(array) == size


def test_arrays_of_nested_tuples() -> None:
    type_ = "(f32[8]{0:T(128)}, (s32[]{:T(128)}, (bf16[2,3]{1,0}, token[])), /*index=2*/pred[]{:T(512)S(4)})"
    assert leaves(type_) == (
        *("f32[8]{0:T(128)}", "s32[]{:T(128)}", "bf16[2,3]{1,0}", "token[]", "pred[]{:T(512)S(4)}"),
    )
    assert elements(type_) == (1, 3, 1)
    assert [memory_space(each) for each in leaves(type_)] == [0, 0, 0, 0, 4]


ARGUMENT = "  %p = f32[100]{0} parameter(0)\n"


def test_values_are_live_until_they_are_read_for_the_last_time() -> None:
    """%a is needed by %b and %d, %b only by %c: when %c is computed, the argument, %a, %b and %c are live."""
    found = peak_of(
        f"{ARGUMENT}  %a = f32[100]{{0}} sine(%p)\n  %b = f32[200]{{0}} pad(%a)\n  %c = f32[50]{{0}} slice(%b)\n"
        "  ROOT %d = f32[100]{0} concatenate(%a, %c)\n"
    )
    assert found.memory.bytes == 400 + 400 + 800 + 200
    assert [(buffer.layout, buffer.kind, buffer.bytes) for buffer in found.buffers] == [
        ("f32[200]{0}", "temporary", 800),
        ("f32[100]{0}", "argument", 400),
        ("f32[100]{0}", "temporary", 400),
        ("f32[50]{0}", "temporary", 200),
    ]
    assert (found.memory.at, found.buffers[0].begin, found.buffers[0].end) == (0.5, 0.25, 0.5)
    assert found.memory.curve == [800, 1600, 1800, 1400, 800]


def test_an_output_takes_the_place_of_a_donated_argument() -> None:
    entry = f"{ARGUMENT}  ROOT %a = f32[100]{{0}} sine(%p)\n"
    assert peak_of(entry).memory.bytes == 800
    donated = peak_of(entry, alias="{}: (0, {}, may-alias)", names=("weights",))
    assert donated.memory.bytes == 400
    (buffer,) = donated.buffers
    assert (buffer.name, buffer.kind, buffer.begin, buffer.end) == ("weights", "argument", 0, 1)


def test_an_update_of_a_slice_happens_in_place_and_says_what_is_written() -> None:
    fused = (
        "%f (q: f32[10,100], r: f32[100]) -> f32[10,100] {\n  %q = f32[10,100]{1,0} parameter(0)\n"
        "  %r = f32[100]{0} parameter(1)\n  %u = f32[1,100]{1,0} bitcast(%r)\n"
        "  ROOT %w = f32[10,100]{1,0} dynamic-update-slice(%q, %u)\n}\n\n"
    )
    found = peak_of(
        f"{ARGUMENT}  %s = f32[10,100]{{1,0}} broadcast(%p)\n"
        '  %a = f32[100]{0} sine(%p), metadata={op_name="jit(step)/mlp/sin"}\n'
        "  ROOT %d = f32[10,100]{1,0} fusion(%s, %a), kind=kLoop, calls=%f\n",
        fused,
    )
    assert found.memory.bytes == 4000 + 400 + 400
    assert (found.buffers[0].layout, found.buffers[0].op_name) == ("f32[10,100]{1,0}", "jit(step)/mlp/sin")


@pytest.mark.parametrize(
    ("inside", "last", "size"),
    [
        ("negate(%q)", "slice(%c)", 400 + 400 + 200),
        ("reverse(%q), dimensions={0}", "slice(%c)", 400 + 400 + 400),  # reads other elements than it writes
        ("negate(%q)", "custom-call(%c, %b)", 400 + 400 + 400 + 200),  # %b is read again
    ],
)
def test_an_elementwise_result_takes_the_memory_of_what_nothing_reads_later(inside: str, last: str, size: int) -> None:
    parameter = "  %q = f32[100]{0} parameter(0)\n"
    fused = f"%f (q: f32[100]) -> f32[100] {{\n{parameter}  ROOT %r = f32[100]{{0}} {inside}\n}}\n\n"
    found = peak_of(
        f"{ARGUMENT}  %a = f32[100]{{0}} sine(%p)\n  %b = f32[100]{{0}} cosine(%a)\n"
        f"  %c = f32[100]{{0}} fusion(%b), kind=kLoop, calls=%f\n  ROOT %d = f32[50]{{0}} {last}\n",
        fused,
    )
    assert found.memory.bytes == size


WITH_REDUCTION = """\
%f (q: bf16[4,50], r: f32[100]) -> (bf16[200], f32[4]) {
  %q = bf16[4,50]{1,0} parameter(0)
  %r = f32[100]{0} parameter(1)
  %wide = f32[4,50]{1,0} convert(%q)
  %sum = f32[4]{0} reduce(%wide, %zero), dimensions={1}, to_apply=%add
  %flat = f32[200]{0} bitcast(%wide)
  %narrow = bf16[200]{0} convert(%flat)
  ROOT %t = (bf16[200]{0}, f32[4]{0}) tuple(%narrow, %sum)
}

"""


def test_a_fusion_reuses_memory_under_another_shape_and_beside_reductions() -> None:
    found = peak_of(
        f"{ARGUMENT}  %a = bf16[4,50]{{1,0}} bitcast-convert(%p)\n"
        "  %b = (bf16[200]{0}, f32[4]{0}) fusion(%a, %p), kind=kInput, calls=%f\n"
        "  ROOT %c = bf16[200]{0} get-tuple-element(%b), index=0\n",
        WITH_REDUCTION,
    )
    assert found.memory.bytes == 400 + 400 + 16


BODY = """\
%body (t: (s32[], f32[100])) -> (s32[], f32[100]) {
  %t = (s32[], f32[100]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[100]{0} get-tuple-element(%t), index=1
  %wide = f32[1000]{0} pad(%x)
  %y = f32[100]{0} slice(%wide)
  ROOT %next = (s32[], f32[100]{0}) tuple(%i, %y)
}

%until (u: (s32[], f32[100])) -> pred[] {
  %u = (s32[], f32[100]{0}) parameter(0)
  %j = s32[] get-tuple-element(%u), index=0
  ROOT %less = pred[] compare(%j, %j), direction=LT
}

"""


def test_a_loop_updates_its_state_in_place() -> None:
    found = peak_of(
        f"{ARGUMENT}  %zero = s32[] constant(0)\n  %x0 = f32[100]{{0}} sine(%p)\n"
        "  %state = (s32[], f32[100]{0}) tuple(%zero, %x0)\n"
        "  %w = (s32[], f32[100]{0}) while(%state), condition=%until, body=%body\n"
        "  ROOT %out = f32[100]{0} get-tuple-element(%w), index=1\n",
        BODY,
    )
    assert found.memory.bytes - 4 == 400 + 400 + 4000, "the counter, the argument, the state, and %wide in the body"


def test_what_takes_no_main_memory_is_not_counted() -> None:
    entry = (
        "  %p = f32[1024]{0:T(1024)} parameter(0)\n"
        "  %s = (f32[1024]{0:T(1024)S(1)}, f32[1024]{0:T(1024)}, u32[]{:S(2)}) copy-start(%p)\n"
        "  %d = f32[1024]{0:T(1024)S(1)} copy-done(%s)\n  ROOT %a = f32[1024]{0:T(1024)} sine(%d)\n"
    )
    assert peak_of(entry).memory.bytes == 2 * 4096
    found = peak_of(
        f"{ARGUMENT}  %k = f32[999]{{0}} constant({{...}})\n  %a = f32[100]{{0}} sine(%p)\n"
        "  %b = f32[10,10]{1,0} bitcast(%a)\n  %t = (f32[10,10]{1,0}, f32[100]{0}) tuple(%b, %p)\n"
        "  ROOT %g = f32[10,10]{1,0} get-tuple-element(%t), index=0\n"
    )
    assert found.memory.bytes == 800
    assert [buffer.kind for buffer in found.buffers] == ["argument", "output"]
    text = "HloModule m\n\nENTRY %e (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8] parameter(0)\n}\n"
    assert peak_memory(parse(text), ()) is None


def test_the_curve_of_a_long_program_keeps_the_most_of_each_part() -> None:
    """Every fourth value is twice as large, and each is needed until the next one is computed."""
    sizes = [100 * (1 + (number % 4 == 0)) for number in range(1, 801)]
    lines = [f"  %v{number} = f32[{size}]{{0}} pad(%v{number - 1})\n" for number, size in enumerate(sizes, 1)]
    found = peak_of(
        "  %v0 = f32[100]{0} parameter(0)\n" + "".join(lines)[:-1].replace("  %v800", "  ROOT %v800") + "\n"
    )
    assert len(found.memory.curve) == MOST_POINTS
    assert max(found.memory.curve) == found.memory.bytes == 400 + 400 + 800
    assert set(found.memory.curve[1:-1]) == {1600}


def test_the_curve_is_drawn_from_zero() -> None:
    peak = PeakMemory(bytes=80, at=0.5, op_name="", source="", curve=[0, 20, 80, 40])
    assert curve_rows(peak, 4, 1) == [" ▃█▅"]
    assert curve_rows(peak, 4, 2) == ["  █ ", " ▅██"]
    assert curve_rows(peak, 2, 1) == ["▃█"]
    assert curve_rows(msgspec.structs.replace(peak, curve=[]), 4, 1) == []


REPRESENTATIVE = ("dp", "fsdp-tp2", "dp-tp2-pp2")


@pytest.mark.parametrize(
    "name", [name if name in REPRESENTATIVE else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_rebuilt_peaks_on_cpu(name: str, programs: dict[str, Program]) -> None:
    """The compiler's figure, here a sum, also has what its allocator loses between buffers."""
    described = programs[name].description
    memory, at, buffers = described.memory, described.at_peak, described.peak_buffers
    assert memory and at
    assert at.bytes == pytest.approx(memory.peak, rel=TOLERANCE)
    assert len(buffers) == MOST_BUFFERS
    sizes = [buffer.bytes for buffer in buffers]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= at.bytes == max(at.curve)
    assert at.curve.index(at.bytes) == pytest.approx(at.at * len(at.curve), abs=2)
    assert all(0 <= buffer.begin <= at.at <= buffer.end <= 1 for buffer in buffers)
    known = {array.name for array in described.arrays}
    assert all(buffer.name in known for buffer in buffers if buffer.kind == "argument")
    assert any("/attention/" in buffer.op_name or "/mlp/" in buffer.op_name for buffer in buffers)
    assert any(buffer.source for buffer in buffers)


def test_the_table_says_what_is_predicted_and_what_the_compiler_says() -> None:
    layout, at = "bf16[8,64]{1,0:T(8,128)(2,1)}", {"source": "/home/me/model.py:12", "begin": 0.1, "end": 0.9}
    rest: dict[str, Any] = {"kind": "temporary", "bytes": 2_000_000, "padding": 1_000_000, "layout": layout} | at
    where = "jit(step)/jvp(blocks)/while"
    kernel = PeakBuffer(name="blocks.mlp.up.kernel", op_name=where, **rest)
    computed = PeakBuffer(name="", op_name=f"{where}/body/mlp/tanh", **rest)
    peak = PeakMemory(
        bytes=9_000_000, at=0.5, op_name="jit(step)/mlp/dot_general", source="/home/me/model.py:7", curve=[9, 9_000_000]
    )
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(peak_table("fsdp", peak, [kernel, computed], 10_000_000))
    text = " ".join(console.export_text().split())
    assert "fsdp: largest buffers at the peak, predicted: 50 % through the program, at model.py:7" in text
    assert f"2 MB 1 MB 10 % – 90 % temporary model.py:12 {layout} copy of blocks.mlp.up.kernel" in text
    assert f"{layout} jvp(blocks)/mlp/tanh" in text
    assert "over the step ▁█ up to 9 MB" in text
    assert "4 MB of 9 MB live then, rebuilt from the order of the program; the compiler's own peak is 10 MB" in text


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
def test_rebuilt_peaks_on_tpu() -> None:
    task = built_in_task("gpt2", "layers=2", "batch_size=32")
    cost = compile_cost(task, load_preset("fsdp-tp2"), load_topology("v5e:2x4"))
    assert cost.at_peak
    assert cost.at_peak.bytes == pytest.approx(cost.peak_bytes, rel=TOLERANCE)
    assert any(buffer.padding for buffer in cost.peak_buffers), "heads of 64 are padded to 128"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize(
    ("rows", "width", "size"),
    [(1024, 1024, 0), (65536, 8192, 2**31)],
    ids=["all in VMEM, of which the compiler says the peak", "in HBM"],
)
def test_temporaries_on_tpu_are_in_main_memory(rows: int, width: int, size: int) -> None:
    whole = NamedSharding(Mesh(np.array(find_slice(load_topology("v5e:2x4"))), ("x",)), PartitionSpec())
    x, w = (jax.ShapeDtypeStruct((each, width), jnp.float32, sharding=whole) for each in (rows, width))
    step = jax.jit(lambda x, w: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum()).lower(x, w).compile()
    found = predict(step, (), "tpu")
    assert found
    assert found.temporaries == pytest.approx(size, abs=2**20)
    assert found.peak == found.arguments + found.outputs - found.aliased + found.temporaries
    assert found.peak <= step.memory_analysis().peak_memory_in_bytes
