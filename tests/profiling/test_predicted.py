"""Where the time of a step that never ran goes: by hand-written schedules, and by those of the TPU compiler."""

import math
import re
from pathlib import Path

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.execution_counts import runs
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.work import cycles_of
from shardtui.engine.profiling.predicted import predict, predicted_breakdown
from shardtui.engine.profiling.program import Program
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.step_breakdown import StepBreakdown

from ..hlo import test_overlap as schedules

TEXTS = Path(__file__).parents[1] / "hlo"
MESH = {"data": 4, "model": 2}
SLICE = load_topology("v5e:2x4")
FUSION = '  %f = f32[8]{0} fusion(%x), kind=kLoop, calls=%doubled, backend_config={"estimated_cycles":"300000"}\n'
SMALL = (
    *(schedules.HEAD, schedules.LOOP.replace("BODY\n", FUSION.replace("%f", "%g").replace("300000", "3000000"))),
    *(schedules.ENTRY, schedules.START, schedules.DONE, schedules.KERNEL, schedules.WHILE, FUSION),
    "  %ag = f32[16]{0} all-gather(%x), channel_id=2, replica_groups=[4,2]<=[8], dimensions={0}\n",
)
HEAD, LOOP, ENTRY, START, DONE, KERNEL, WHILE, FUSION, GATHER = (
    text.replace("f32[8]", "f32[8000000]").replace("f32[16]", "f32[16000000]") for text in SMALL
)
END = "  ROOT %r = f32[8000000]{0} bitcast(%x)\n}\n"
FUSED, GATHERED = 0.0002, 32e6 / 50e9
"""Seconds: 300,000 cycles at 1.5 GHz; half of 64 MB over a link of 50 GB/s."""


def predicted(*lines: str) -> StepBreakdown:
    return predicted_breakdown(parse(HEAD + LOOP + ENTRY + "".join(lines) + END), MESH, SLICE)


def parts(breakdown: StepBreakdown) -> dict[str, float]:
    return {part.name: part.seconds for part in breakdown.parts if part.seconds}


def test_operations_follow_each_other_and_collectives_share_links_and_pass_behind_work() -> None:
    breakdown = predicted(FUSION, GATHER)
    expected = {"other fusions": FUSED, "all-gather over model: exposed": GATHERED}
    assert parts(breakdown) == pytest.approx(expected)
    assert breakdown.step_seconds == pytest.approx(FUSED + GATHERED)
    assert (breakdown.predicted_for, breakdown.clock_seconds, breakdown.steps) == ("v5e:2x4", None, 1)
    assert [(each.name, each.count) for each in breakdown.operations] == [("ag", 1), ("f", 1)]
    assert breakdown.timeline and len(breakdown.timeline.devices) == 1
    breakdown = predicted(START, FUSION, DONE)
    assert breakdown.step_seconds == pytest.approx(GATHERED)
    (found,) = breakdown.collectives
    assert found.hidden_seconds == pytest.approx(FUSED)
    assert found.exposed_seconds == pytest.approx(GATHERED - FUSED)
    assert found.waiting_seconds == 0
    breakdown = predicted(START, GATHER, DONE)
    assert breakdown.step_seconds == pytest.approx(2 * GATHERED)
    breakdown = predicted(WHILE)
    assert breakdown.step_seconds == pytest.approx(5 * 0.002)
    assert [(each.name, each.count) for each in breakdown.operations] == [("g", 5)]
    breakdown = predicted(FUSION, KERNEL)
    assert breakdown.skipped == ["k"], "it has no estimate"
    assert parts(breakdown) == pytest.approx({"other fusions": FUSED})


def test_an_asynchronous_collective_ends_with_its_done_not_with_an_update() -> None:
    wide = [text.replace("[8]", "[8000000]").replace("[16]", "[16000000]") for text in schedules.SCATTER]
    wrapped = schedules.WRAPPED.replace("f32[8]", "f32[8000000]").replace("f32[16]", "f32[16000000]")
    made, start, update, done = wide
    lines = [made, start, FUSION, update, FUSION.replace("%f", "%g"), done]
    breakdown = predicted_breakdown(parse(HEAD + wrapped + LOOP + ENTRY + "".join(lines) + END), MESH, SLICE)
    (found,) = breakdown.collectives
    assert found.hidden_seconds == pytest.approx(2 * FUSED)
    assert found.exposed_seconds == pytest.approx(GATHERED - 2 * FUSED)


@pytest.mark.parametrize(
    ("groups", "size", "links"), [("[16,4]<=[64]", 4, 2), ("[16,4]<=[4,16]T(1,0)", 4, 2), ("[32,2]<=[64]", 2, 1)]
)
def test_a_group_over_a_part_of_an_axis_has_only_the_links_between_its_members(
    groups: str, size: int, links: int
) -> None:
    """Along z, along x, and two neighbours, of an axis that uses all six links of a chip."""
    gather = GATHER.replace("[4,2]<=[8]", groups).replace("16000000", str(8_000_000 * size))
    text = HEAD.replace("num_partitions=8", "num_partitions=64") + ENTRY + FUSION + gather + END
    slice_ = load_topology("v5p:4x4x4")
    breakdown = predicted_breakdown(parse(text), {"fsdp": 64}, slice_)
    seconds = (size - 1) * 32e6 / (links * slice_.chip.link_rate)
    assert parts(breakdown)["all-gather over fsdp: exposed"] == pytest.approx(seconds)


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


@pytest.mark.parametrize(
    ("text", "mesh", "topology", "message"),
    [
        (HEAD + ENTRY + GATHER + END, MESH, "v5e:2x4", "m has no estimated cycles: give the text of a program that"),
        (HEAD + ENTRY + FUSION.replace("300000", str(2**64 - 1)) + END, MESH, "v5e:2x4", "m has no estimated cycles"),
        (HEAD + LOOP + ENTRY + END, MESH, "v5e:2x4", "the operations of m take no time: there is nothing to divide"),
        (HEAD + ENTRY + FUSION + END, MESH, "v5e:4x4", "m is for 8 devices, but v5e:4x4 has 16"),
        (HEAD + ENTRY + FUSION + END, {}, "v5e:2x4", "no --mesh, but m is for 8: give the mesh it was compiled for"),
        (HEAD + ENTRY + FUSION + END, {"data": 4}, "v5e:2x4", "--mesh data 4 has 4 devices, but m is for 8: give the"),
    ],
)
def test_what_cannot_be_predicted(text: str, mesh: dict[str, int], topology: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        predicted_breakdown(parse(text), mesh, load_topology(topology))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no HLO", "it does not start with `HloModule`"),
        (HEAD + ENTRY + FUSION + GATHER.replace("[4,2]<=[8]", "{{0,9}}") + END, "ag: its groups name a device outside"),
        (HEAD + ENTRY + FUSION.replace("300000", "3" * 5000) + END, "a number of 5,000 digits"),
    ],
    ids=["another text", "groups", "digits"],
)
def test_a_text_that_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.hlo"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(f"{path}: {message}")):
        predict(str(path), MESH, "v5e:2x4")


@pytest.mark.parametrize("name", ["psum-in-a-loop", "psum-in-two-loops", "fsdp", "all_gather-in-a-loop"])
def test_the_work_of_a_compiled_program_takes_its_estimated_cycles(name: str) -> None:
    text = (TEXTS / f"tpu-{name}.hlo").read_text()
    module = parse(text)
    breakdown = predicted_breakdown(module, {"data": 8}, SLICE)
    work = sum(seconds for part, seconds in parts(breakdown).items() if "exposed" not in part)
    times, listed = runs(module), map(int, re.findall(r'"estimated_cycles":"(\d+)"', text))
    cycles = sum(cycles_of(each) * (times[where.name] or 0) for where, each in module.instructions())
    assert work == pytest.approx(cycles / SLICE.chip.clock_rate)
    assert cycles == 5 * max(listed) if name == "psum-in-a-loop" else cycles >= max(listed)
    assert any(each.exposed_seconds or each.hidden_seconds for each in breakdown.collectives)


WHOLE_MESH = {"data": 4, "seq": 1, "model": 2}


def test_every_collective_of_the_inventory_has_one_operation_that_begins_it() -> None:
    read = {
        path.stem: Program(parse(path.read_text()), WHOLE_MESH, 8, set()) for path in sorted(TEXTS.glob("tpu-*.hlo"))
    }
    for name, program in read.items():
        begins = [each for each in program.operations.values() if each.collective and each.is_begin]
        found = [(program.collectives[each.collective].kind, each.part.rpartition(" ")[2]) for each in begins]
        assert len(found) == len(inventory(program.module, WHOLE_MESH)), name
    operations = read["tpu-fsdp"].operations
    begin, middle, end = (operations[name] for name in ("async-collective-start", "fusion.27", "async-collective-done"))
    assert begin.part == end.part == "all-gather over data", "a collective of fusions is one"
    assert begin.collective == end.collective == "async-collective-start"
    assert (begin.is_begin, end.is_begin) == (True, False)
    assert (middle.part, middle.collective) == ("matrix products", "")
    assert operations["fusion.25"].part == "reduce-scatter over data", "one with a slice"


@pytest.mark.parametrize(
    ("head", "groups", "mesh", "partners"),
    [
        ("num_partitions=8", "[4,2]<=[8], use_global_device_ids=true", MESH, (2, 3)),
        ("replica_count=2, num_partitions=4", "{{0},{1}}", {"data": 2, "model": 4}, (0, 1, 2, 3)),
        ("replica_count=2, num_partitions=4", "{{0,1}}", {"data": 2, "model": 4}, (*range(8),)),
        (
            "num_partitions=8",
            "{{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true",
            {"replica": 2, **MESH},
            (8, 9, 10, 11),
        ),
        ("num_partitions=8", "[2,4]<=[8], use_global_device_ids=true", {"replica": 2, **MESH}, (8, 9, 10, 11)),
    ],
    ids=["devices", "partitions", "replicas", "lists in slices", "an iota in slices"],
)
def test_partners_are_devices_of_the_whole_mesh(
    head: str, groups: str, mesh: dict[str, int], partners: tuple[int, ...]
) -> None:
    """Groups may count replicas of a `pmap`, or the devices of one slice."""
    reduced = f"  %r = f32[8] all-reduce(%x), channel_id=1, replica_groups={groups}, to_apply=%add\n"
    between = (TEXTS / "slices" / "2-slices-psum.hlo").read_text() if "replica" in mesh else ""
    send = "".join(re.findall(r" %send = .*\n", between))
    module = parse(
        f"HloModule m, {head}\n\nENTRY %main () -> f32[8] {{\n  %x = f32[8] parameter(0)\n{reduced} {send}}}\n"
    )
    assert Program(module, mesh, math.prod(mesh.values()), set()).partners("r", partners[0]) == partners
