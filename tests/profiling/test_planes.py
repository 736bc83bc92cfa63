"""Traces as TPUs and GPUs write them, with every microsecond known."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base.user_error import UserError
from shardtui.engine.profiling import breakdown as breakdown_module
from shardtui.engine.profiling.breakdown import read_breakdown
from shardtui.engine.profiling.timeline import Activity, Rank, sweep
from shardtui.engine.spec.topology import Chip
from shardtui.engine.wire.step_breakdown import StepBreakdown

from .xspaces import Space, Timed

MODULE = "jit_step(7)"
FUSION = "%fusion.1 = f32[8,8]{1,0:T(8,128)} fusion(f32[8,8]{1,0} %p.1), kind=kOutput, calls=%computation"
START = (
    "%all-gather-start.1 = (f32[4,8]{1,0}, f32[8,8]{1,0}) all-gather-start(f32[4,8]{1,0} %p.2), channel_id=1, "
    "replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true"
)
DONE = "%all-gather-done.1 = f32[8,8]{1,0} all-gather-done((f32[4,8]{1,0}, f32[8,8]{1,0}) %all-gather-start.1)"
REDUCE = (
    "%all-reduce.2 = f32[8,8]{1,0} all-reduce(f32[8,8]{1,0} %p.3), channel_id=2, replica_groups={{0,1}}, "
    "use_global_device_ids=true, to_apply=%add"
)
COPY = "%copy.4 = f32[8,8]{1,0} copy(f32[8,8]{1,0} %p.4)"
STEP = 100
"""Microseconds from one step to the next."""

GPU_TEXT = """HloModule jit_step, num_partitions=2

%fused (p.0: f32[8,8]) -> f32[8,8] {
  %p.0 = f32[8,8]{1,0} parameter(0)
  ROOT %add.1 = f32[8,8]{1,0} add(%p.0, %p.0)
}

ENTRY %main (p.1: f32[8,8]) -> f32[8,8] {
  %p.1 = f32[8,8]{1,0} parameter(0)
  %all-reduce-start.1 = f32[8,8]{1,0} all-reduce-start(%p.1), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %gemm.1 = f32[8,8]{1,0} custom-call(%p.1, %p.1), custom_call_target="__cublas$gemm"
  %all-reduce-done.1 = f32[8,8]{1,0} all-reduce-done(%all-reduce-start.1)
  ROOT %fusion.1 = f32[8,8]{1,0} fusion(%all-reduce-done.1), kind=kLoop, calls=%fused
}
"""


def operations(step: int, late: int) -> list[Timed]:
    """The core's operations in a step, whose all-reduce begins `late` microseconds later; it always ends at 70."""
    at = step * STEP
    times = [(START, 10, 12), (FUSION, 12, 32), (DONE, 32, 40), (REDUCE, 40 + late, 70), (COPY, 70, 80)]
    return [(name, at + begin, at + end) for name, begin, end in times]


def tpu(steps: int = 3, cut: int = 0) -> Space:
    """Two TPUs. Device 1 begins the all-reduce 10 µs late. `cut`: operations missing at the end of device 1."""
    space = Space()
    for device, late in ((0, 0), (1, 10)):
        plane = space.plane(f"/device:TPU:{device}")
        plane.line("XLA Modules", [(MODULE, step * STEP + 10, step * STEP + 80) for step in range(steps)], run_id=7)
        events = [event for step in range(steps) for event in operations(step, late)]
        plane.line("XLA Ops", events[: len(events) - cut * device])
        plane.line("Async XLA Ops", [(START, step * STEP + 10, step * STEP + 40) for step in range(steps)])
        plane.line("XLA TraceMe", [("barrier-cores", 0, 1)])
        plane.describe(FUSION, hlo_category="convolution fusion", tf_op="jit(step)/blocks/mlp/dot_general:")
        plane.describe(FUSION, source="/home/me/model.py:12")
    return space


def parts(breakdown: StepBreakdown) -> dict[str, float]:
    """Microseconds by part, without those that are zero."""
    return {part.name: round(part.seconds * 1e6, 6) for part in breakdown.parts if part.seconds}


def test_the_step_of_a_tpu_is_divided_among_its_parts_and_operations_have_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy reads and writes 256 bytes in 10 µs; an all-reduce sends 256 in 20 µs, after 5 µs of waiting."""
    chip = Chip(flops=1e12, memory=0, memory_rate=1e9, link_rate=2.5e8, clock_rate=1.0, kinds=())
    monkeypatch.setattr(breakdown_module, "chip_of", lambda kind: chip)
    breakdown = read_breakdown(tpu().write(tmp_path), {"data": 2})
    assert breakdown.steps == 3
    # from 10 to 280: three steps of 70 and two pauses of 30
    assert breakdown.step_seconds == pytest.approx(90e-6)
    assert parts(breakdown) == {
        "matrix products": 20,
        "copies": 10,
        "all-gather over data: exposed": 10,
        "all-reduce over data: waiting": 5,  # device 0 waits 10, device 1 not at all
        "all-reduce over data: exposed": 20,
        "host": 20,
        "idle": 5,  # device 1, until it begins the all-reduce
    }
    assert [sum(device.seconds) for device in breakdown.devices] == pytest.approx([90e-6, 90e-6])
    collectives = {each.name: each for each in breakdown.collectives}
    gather, reduce = collectives["all-gather-start.1"], collectives["all-reduce.2"]
    assert (gather.hidden_seconds, gather.exposed_seconds) == pytest.approx((20e-6, 10e-6))
    assert (gather.count, reduce.count) == (1, 1)
    assert (gather.predicted_seconds, reduce.predicted_seconds) == pytest.approx((128 / 5e8, 2 * 128 / 5e8))
    assert [(wait.device, wait.count) for wait in breakdown.waits] == [(1, 1)]
    assert breakdown.waits[0].seconds == pytest.approx(10e-6)
    operations = {each.name: each for each in breakdown.operations}
    copy, sums, fusion = operations["copy.4"], operations["all-reduce.2"], operations["fusion.1"]
    assert (copy.flops, copy.bytes, sums.bytes, fusion.bytes) == (None, 512, 256, None)
    assert (copy.bytes_per_second, sums.bytes_per_second) == pytest.approx((512 / 10e-6, 256 / 20e-6), rel=1e-3)
    assert (copy.bandwidth_share, sums.bandwidth_share) == pytest.approx((0.0512, 0.0256), rel=1e-3)
    assert (copy.roofline_seconds, sums.roofline_seconds) == pytest.approx((512e-9, 512e-9))
    assert (fusion.part, fusion.module, fusion.source) == ("matrix products", "blocks/mlp", "/home/me/model.py:12")
    breakdown = read_breakdown(tpu().write(tmp_path), {})
    assert "all-reduce: waiting" in parts(breakdown)
    assert {tuple(each.axes) for each in breakdown.collectives} == {()}, "none without a mesh"


def test_the_chip_and_unknown_lines_are_named_and_a_collective_is_in_progress_from_its_start(tmp_path: Path) -> None:
    space = tpu()
    space.plane("/device:TPU:2").say(device_type_string="TPU v6 Lite")
    (copy,) = [each for each in read_breakdown(space.write(tmp_path), {"data": 2}).operations if each.name == "copy.4"]
    assert copy.roofline_seconds == pytest.approx(512 / 1638e9, rel=1e-3)
    space = tpu()
    for plane in space.message.planes:
        del plane.lines[2]  # the asynchronous operations
    breakdown = read_breakdown(space.write(tmp_path), {"data": 2})
    (gather,) = [each for each in breakdown.collectives if each.kind == "all-gather"]
    assert (gather.hidden_seconds, gather.exposed_seconds) == pytest.approx((20e-6, 10e-6))
    space = tpu()
    space.plane("/device:NPU:0").line("what", [("is this", 0, 1)])
    space.message.planes[0].lines[3].name = b"A New Line"
    breakdown = read_breakdown(space.write(tmp_path), {"data": 2})
    assert breakdown.skipped == ["/device:TPU:0: A New Line", "/device:NPU:0"]


def test_a_step_that_is_cut_on_one_device_does_not_count(tmp_path: Path) -> None:
    for cut in (1, 4):
        breakdown = read_breakdown(tpu(steps=4, cut=cut).write(tmp_path), {"data": 2})
        assert (breakdown.steps, breakdown.step_seconds) == (3, pytest.approx(90e-6))


def test_a_device_that_was_traced_from_the_second_step_on_is_aligned(tmp_path: Path) -> None:
    space = tpu(steps=4)
    for line in space.message.planes[1].lines:
        late = [event for event in line.events if event.offset_ps >= STEP * 10**6]
        del line.events[:]
        line.events.extend(late)
    breakdown = read_breakdown(space.write(tmp_path), {"data": 2})
    assert breakdown.steps == 3
    assert parts(breakdown)["all-reduce over data: waiting"] == 5


def gpu(sampled: int = 0) -> Space:
    """Two GPUs that reduce behind a product: 30 µs in progress, of which 20 hidden. `sampled`: microseconds of another
    program after the steps."""
    space = Space()
    for device in (0, 1):
        plane = space.plane(f"/device:GPU:{device}")
        for at in (0, STEP, 2 * STEP):
            plane.kernels("Stream #13(NCCL)", [("all-reduce-start.1", at + 10, at + 40)], "jit_step")
            compute = [("gemm.1", at + 10, at + 30), ("fusion.1", at + 40, at + 60)]
            plane.kernels("Stream #7(Compute)", compute, "jit_step")
            plane.line("Stream #8(MemcpyH2D)", [("MemcpyH2D", at + 60, at + 65)])
        if sampled:
            plane.kernels("Stream #7(Compute)", [("gemm.7", 3 * STEP, 3 * STEP + sampled)], "jit_run")
    return space


def test_the_step_of_a_gpu_is_divided_among_its_parts_also_beside_a_longer_program(tmp_path: Path) -> None:
    breakdown = read_breakdown(gpu().write(tmp_path), {"model": 2}, GPU_TEXT)
    assert breakdown.steps == 3
    assert breakdown.step_seconds == pytest.approx(250e-6 / 3)
    found = parts(breakdown)
    assert (found["matrix products"], found["other fusions"]) == pytest.approx((20, 20))
    assert found["all-reduce over model: exposed"] == pytest.approx(10)
    assert found["other programs"] == pytest.approx(5 * 2 / 3)  # the copies between steps: the last is after the end
    assert sum(found.values()) == pytest.approx(250 / 3)
    assert breakdown.collectives[0].hidden_seconds == pytest.approx(20e-6)
    beside = read_breakdown(gpu(sampled=10 * STEP).write(tmp_path), {"model": 2}, GPU_TEXT)
    assert (beside.program, beside.steps, parts(beside)) == ("jit_step", 3, found), "the text says which is the step"


CONVOLUTION = """HloModule jit_conv

ENTRY %main (x: f32[2,3,8], k: f32[5,3,1]) -> f32[2,5,8] {
  %x = f32[2,3,8]{2,1,0} parameter(0)
  %k = f32[5,3,1]{2,1,0} parameter(1)
  %conv.1 = (f32[2,5,8]{2,1,0}, u8[64]{0}) custom-call(%x, %k), window={size=1}, dim_labels=bf0_oi0->bf0, \
custom_call_target="__cudnn$convForward"
  ROOT %result = f32[2,5,8]{2,1,0} get-tuple-element(%conv.1), index=0
}
"""


def test_a_convolution_of_a_gpu_library_is_one_product_of_several_kernels(tmp_path: Path) -> None:
    """As in a trace of an MI300X."""
    space = Space()
    plane = space.plane("/device:GPU:7")
    for at in (0, STEP, 2 * STEP):
        for kernel, begin, end in (("Im3d2Col", 10, 20), ("Cijk_Ailk_Bljk_BBS_BH", 22, 50)):
            events = [(kernel, at + begin, at + end)]
            plane.line("Stream #1(Kernel)", events, hlo_op="conv.1", hlo_module="jit_conv", program_id="15")
    breakdown = read_breakdown(space.write(tmp_path), {}, CONVOLUTION)
    assert (breakdown.steps, parts(breakdown)["matrix products"]) == (3, pytest.approx(38))
    (found,) = breakdown.operations
    assert (found.count, found.flops) == (1, 2 * 2 * 8 * 5 * 3)


@pytest.mark.parametrize(
    ("content", "text", "mesh", "problem"),
    [
        (b"\x0a\xff\xff\xff\xff", "", {}, "not a whole trace"),
        (b"PNG, but not a trace", "", {}, "not a whole trace"),
        (b"", "", {}, "no operation of a device"),
        (None, GPU_TEXT.replace("jit_step", "jit_other"), {"model": 2}, "--hlo is the text of jit_other"),
        (None, "no HLO", {"model": 2}, "cannot be read"),
        (None, "", {"model": 2}, "no text of jit_step"),
        (None, GPU_TEXT.replace("fusion.1", "f").replace(".1 =", ".9 ="), {"model": 2}, "of another program"),
        (None, GPU_TEXT, {"model": 1}, "has 1 device, but jit_step ran on 2"),
        (None, GPU_TEXT.replace("{{0,1}}", "{{0,9}}"), {"model": 2}, "outside the mesh"),
        (
            None,
            GPU_TEXT.replace("%gemm.1 = f32[8", f"%gemm.1 = f32[{2**62}"),
            {"model": 2},
            "read: gemm.1: an array of",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, content: bytes | None, text: str, mesh: dict[str, int], problem: str
) -> None:
    path = gpu().write(tmp_path)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=problem) as refused:
        read_breakdown(path, mesh, text)
    assert len(refused.value.problems) == 1


def test_every_prefix_of_a_trace_is_read_or_refused(tmp_path: Path) -> None:
    whole = (path := tpu().write(tmp_path)).read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with contextlib.suppress(UserError):
            assert sum(part.share for part in read_breakdown(path, {"data": 2}).parts) == pytest.approx(1)


def test_a_step_may_take_no_time_but_not_all_of_them(tmp_path: Path) -> None:
    def traced(*spans: tuple[int, int]) -> StepBreakdown:
        plane = (space := Space()).plane("/device:TPU:0")
        for line, name in (("XLA Modules", MODULE), ("XLA Ops", COPY)):
            plane.line(line, [(name, begin, end) for begin, end in spans])
        return read_breakdown(space.write(tmp_path), {})

    breakdown = traced((10, 20), (110, 110), (210, 220))
    assert parts(breakdown) == {"copies": pytest.approx(20 / 3), "host": pytest.approx(190 / 3)}
    assert breakdown.timeline and breakdown.timeline.devices[0].work == []
    with pytest.raises(UserError, match="the operations of jit_step take no time"):
        traced((10, 10))


ACTIVITIES = st.lists(
    st.builds(
        lambda begin, length, rank, key: Activity(begin, begin + length, rank, f"{rank.name}{key}"),
        *(st.integers(-5, 30), st.integers(0, 10), st.sampled_from(Rank), st.sampled_from("ab")),
    ),
    max_size=12,
)


@given(ACTIVITIES)
def test_each_moment_goes_to_the_activities_of_the_first_rank(activities: list[Activity]) -> None:
    swept = sweep(activities, (0, 20))
    counted: dict[tuple[str, Rank], float] = {}
    hidden: dict[str, int] = {}
    idle = 0
    for moment in range(20):
        now = {(each.rank, each.key) for each in activities if each.begin <= moment < each.end}
        if not now:
            idle += 1
            continue
        first = min(rank for rank, _ in now)
        chosen = [key for rank, key in now if rank == first]
        for key in chosen:
            counted[key, first] = counted.get((key, first), 0) + 1 / len(chosen)
        if first == Rank.WORK:
            for key in {key for rank, key in now if rank in (Rank.EXPOSED, Rank.WAITING)}:
                hidden[key] = hidden.get(key, 0) + 1
    assert dict(swept.counted) == pytest.approx(counted)
    assert dict(swept.hidden) == hidden
    assert sum(end - begin for begin, end in swept.gaps) == idle
    assert round(sum(swept.counted.values()) + idle, 6) == 20
