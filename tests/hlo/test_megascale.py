"""Transfers between TPU slices, against programs whose traffic is known by calculation."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.megascale import WrongSlices
from shardtui.engine.hlo.module import Module, parse
from shardtui.engine.hlo.traffic import flows, overlapped_share
from shardtui.engine.parallel.mesh import build_mesh
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.collective import CollectiveInfo

from ..collective_programs import SLICE_SHARD, SlicesProgram, lower_hierarchy, slices_programs
from ..command import answered
from ..schemas import checked

TEXTS = Path(__file__).parents[1] / "hlo" / "slices"
PROGRAMS = [(program, slices) for program in slices_programs() for slices in (2, 4)]
TWO = {"replica": 2, "data": 4, "model": 2}


def path_of(name: str, slices: int) -> Path:
    return TEXTS / f"{slices} slices {name}.hlo".replace(" ", "-")


def read(name: str, slices: int) -> Module:
    return parse(path_of(name, slices).read_text())


def summary(infos: list[CollectiveInfo]) -> list[tuple[str, list[str], int | None, int, str | None]]:
    return [(info.kind, info.axes, info.count, info.bytes_each, info.network) for info in infos]


@pytest.mark.parametrize(("program", "slices"), PROGRAMS, ids=lambda each: getattr(each, "name", str(each)))
def test_hand_written_programs_over_slices(program: SlicesProgram, slices: int) -> None:
    """Reads the texts that `tests/long/tpu_texts.py` writes: slices of v5e, 2 × 4 chips."""
    found = inventory(read(program.name, slices), {"replica": slices, "data": 4, "model": 2})
    assert summary(found) == [program.traffic(slices)]
    assert found[0].group_size == (2 if program.kind == "collective-permute" else slices)
    assert found[0].bytes_per_device == program.times * found[0].bytes_each


HIERARCHY = [
    ("reduce-scatter", ["data"], 1, SLICE_SHARD, "ici"),
    ("all-gather", ["data"], 1, SLICE_SHARD, "ici"),
    ("all-reduce", ["data"], 1, SLICE_SHARD // 4, "dcn"),
]
"""An all-reduce over an axis of 4 devices in each slice."""


@pytest.mark.parametrize("slices", [2, 4])
def test_an_all_reduce_over_slices_is_hierarchical(slices: int) -> None:
    found = inventory(read("hierarchy", slices), {"data": 4 * slices, "model": 2})
    assert summary(found) == HIERARCHY
    assert [info.group_size for info in found] == [4, 4, slices]
    assert [(flow.kind, flow.network) for flow in flows(found)] == [(kind, net) for kind, _, _, _, net in HIERARCHY]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
def test_what_the_compiler_makes_now_is_read_like_the_texts() -> None:
    devices = find_slice(load_topology("2*v5e:2x4"))
    for program in slices_programs():
        text = program.lower(build_mesh(TWO, devices)).compile().as_text() or ""
        assert summary(inventory(parse(text), TWO)) == [program.traffic(2)], program.name
    text = lower_hierarchy(build_mesh({"data": 8, "model": 2}, devices)).compile().as_text() or ""
    assert summary(inventory(parse(text), {"data": 8, "model": 2})) == HIERARCHY


def test_a_mesh_of_other_slices_and_a_target_of_no_slice_are_rejected() -> None:
    module = read("psum", 4)
    for mesh in ({"replica": 2, "data": 4, "model": 2}, {"data": 4, "model": 3}):
        with pytest.raises(WrongSlices, match=r"it is for 4 or more slices of 8 devices, but the mesh has"):
            inventory(module, mesh)
    text = path_of("ppermute", 2).read_text().replace("{100000->200000}", "{7->200000}")
    with pytest.raises(ValueError, match="cannot parse its target"):
        inventory(parse(text), TWO)


def test_a_transfer_is_overlapped_if_the_slice_computes_before_it_ends() -> None:
    text = path_of("psum", 2).read_text()
    assert overlapped_share(flows(inventory(parse(text), TWO))) == 0
    between = "  %work = f32[64,512]{1,0:T(8,128)} fusion(%param.1), kind=kLoop, calls=%add\n  %send-done ="
    computing = text.replace("  %send-done =", between)
    assert overlapped_share(flows(inventory(parse(computing), TWO))) == 1


def test_inspect_reads_a_program_over_slices() -> None:
    command = ("inspect", "--hlo", str(path_of("hierarchy", 2)), "--mesh")
    report = checked("inspect-hlo", answered(*command, "data=8,model=2", "--json").stdout)
    assert [each["network"] for each in report["collectives"]] == ["ici", "ici", "dcn"]
    assert "data on DCN" in answered(*command, "data=8,model=2").stdout
    wrong = answered(*command, "data=4,model=2")
    assert wrong.returncode == 2
    assert "it is for 2 or more slices of 8 devices, but the mesh has 8: give its own mesh" in wrong.stderr
