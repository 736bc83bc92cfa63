"""Where the time of a step that never ran goes: by hand-written schedules, and by those of the TPU compiler."""

import re
from pathlib import Path

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.module import parse
from shardtui.engine.profiling.predicted import predicted_breakdown
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.step_breakdown import StepBreakdown

from ..cycles import estimated_cycles

TEXTS = Path(__file__).parents[1] / "hlo"
MESH = {"data": 4, "model": 2}
SLICE = load_topology("v5e:2x4")
HEAD = """\
HloModule m, is_scheduled=true, num_partitions=8

%doubled (d: f32[8000000]) -> f32[8000000] {
  %d = f32[8000000]{0} parameter(0)
  ROOT %sum = f32[8000000]{0} add(%d, %d)
}

"""
LOOP = """\
%body (s: (s32[], f32[8000000])) -> (s32[], f32[8000000]) {
  %s = (s32[], f32[8000000]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %y = f32[8000000]{0} get-tuple-element(%s), index=1
  %g = f32[8000000]{0} fusion(%y), kind=kLoop, calls=%doubled, backend_config={"estimated_cycles":"3000000"}
  ROOT %t = (s32[], f32[8000000]) tuple(%next, %g)
}

%condition (u: (s32[], f32[8000000])) -> pred[] {
  %u = (s32[], f32[8000000]) parameter(0)
  %j = s32[] get-tuple-element(%u), index=0
  %limit = s32[] constant(5)
  ROOT %less = pred[] compare(%j, %limit), direction=LT
}

"""
ENTRY = "ENTRY %main (x: f32[8000000]) -> f32[8000000] {\n  %x = f32[8000000]{0} parameter(0)\n"
START = """\
  %a = (f32[8000000]{0}, f32[16000000]{0}) all-gather-start(%x), channel_id=1, replica_groups=[4,2]<=[8], dimensions={0}
"""
DONE = "  %agd = f32[16000000]{0} all-gather-done(%a)\n"
GATHER = "  %ag = f32[16000000]{0} all-gather(%x), channel_id=2, replica_groups=[4,2]<=[8], dimensions={0}\n"
FUSION = '  %f = f32[8000000]{0} fusion(%x), kind=kLoop, calls=%doubled, backend_config={"estimated_cycles":"300000"}\n'
KERNEL = '  %k = f32[8000000]{0} custom-call(%x), custom_call_target="tpu_custom_call"\n'
WHILE = """\
  %zero = s32[] constant(0)
  %begin = (s32[], f32[8000000]) tuple(%zero, %x)
  %w = (s32[], f32[8000000]) while(%begin), condition=%condition, body=%body
"""
END = "  ROOT %r = f32[8000000]{0} bitcast(%x)\n}\n"
FUSED, GATHERED = 0.0002, 32e6 / 50e9
"""Seconds: 300,000 cycles at 1.5 GHz; half of 64 MB over a link of 50 GB/s."""


def predicted(*lines: str) -> StepBreakdown:
    return predicted_breakdown(parse(HEAD + LOOP + ENTRY + "".join(lines) + END), MESH, SLICE)


def parts(breakdown: StepBreakdown) -> dict[str, float]:
    return {part.name: part.seconds for part in breakdown.parts if part.seconds}


def test_operations_follow_each_other() -> None:
    breakdown = predicted(FUSION, GATHER)
    expected = {"other fusions": FUSED, "all-gather over model: exposed": GATHERED}
    assert parts(breakdown) == pytest.approx(expected)
    assert breakdown.step_seconds == pytest.approx(FUSED + GATHERED)
    assert (breakdown.predicted_for, breakdown.clock_seconds, breakdown.steps) == ("v5e:2x4", None, 1)
    assert [(each.name, each.count) for each in breakdown.operations] == [("ag", 1), ("f", 1)]
    assert breakdown.timeline and len(breakdown.timeline.devices) == 1


def test_an_asynchronous_collective_passes_behind_work() -> None:
    breakdown = predicted(START, FUSION, DONE)
    assert breakdown.step_seconds == pytest.approx(GATHERED)
    (found,) = breakdown.collectives
    assert found.hidden_seconds == pytest.approx(FUSED)
    assert found.exposed_seconds == pytest.approx(GATHERED - FUSED)
    assert found.waiting_seconds == 0


def test_two_collectives_share_the_links() -> None:
    breakdown = predicted(START, GATHER, DONE)
    assert breakdown.step_seconds == pytest.approx(2 * GATHERED)


def test_a_loop_runs_as_often_as_it_says() -> None:
    breakdown = predicted(WHILE)
    assert breakdown.step_seconds == pytest.approx(5 * 0.002)
    assert [(each.name, each.count) for each in breakdown.operations] == [("g", 5)]


def test_a_transfer_between_slices_takes_the_rate_of_dcn() -> None:
    """64 × 512 float32 all-reduced over two slices: a device sends 131,072 bytes at 25 Gb/s."""
    module = parse((TEXTS / "slices" / "2-slices-psum.hlo").read_text())
    mesh = {"replica": 2, **MESH}
    breakdown = predicted_breakdown(module, mesh, load_topology("2*v5e:2x4"))
    (found,) = breakdown.collectives
    seconds = 64 * 512 * 4 / (25e9 / 8)
    assert (found.kind, found.axes, found.bytes) == ("all-reduce", ["replica"], 64 * 512 * 4)
    assert (found.exposed_seconds, found.predicted_seconds) == pytest.approx((seconds, seconds))
    assert breakdown.predicted_for == "2 × v5e:2x4"
    assert any(part.name == "all-reduce over replica on DCN: exposed" for part in breakdown.parts)
    with pytest.raises(UserError, match=re.escape("is for 8 devices, but v5e:4x4 has 16")):
        predicted_breakdown(module, mesh, load_topology("v5e:4x4"))


def test_what_has_no_estimate_is_named() -> None:
    breakdown = predicted(FUSION, KERNEL)
    assert breakdown.skipped == ["k"]
    assert parts(breakdown) == pytest.approx({"other fusions": FUSED})


@pytest.mark.parametrize(
    ("text", "mesh", "topology", "message"),
    [
        (HEAD + ENTRY + GATHER + END, MESH, "v5e:2x4", "m has no estimated cycles: give the text of a program that"),
        (HEAD + ENTRY + FUSION + END, MESH, "v5e:4x4", "m is for 8 devices, but v5e:4x4 has 16"),
        (HEAD + ENTRY + FUSION + END, {}, "v5e:2x4", "no --mesh, but m is for 8: give the mesh it was compiled for"),
        (HEAD + ENTRY + FUSION + END, {"data": 4}, "v5e:2x4", "--mesh data 4 has 4 devices, but m is for 8: give the"),
    ],
)
def test_what_cannot_be_predicted(text: str, mesh: dict[str, int], topology: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        predicted_breakdown(parse(text), mesh, load_topology(topology))


@pytest.mark.parametrize("name", ["psum-in-a-loop", "psum-in-two-loops", "fsdp", "all_gather-in-a-loop"])
def test_the_work_of_a_compiled_program_takes_its_estimated_cycles(name: str) -> None:
    module = parse((TEXTS / f"tpu-{name}.hlo").read_text())
    breakdown = predicted_breakdown(module, {"data": 8}, SLICE)
    work = sum(seconds for part, seconds in parts(breakdown).items() if "exposed" not in part)
    assert work == pytest.approx((estimated_cycles(module) or 0) / SLICE.chip.clock_rate)
    assert any(each.exposed_seconds or each.hidden_seconds for each in breakdown.collectives)
