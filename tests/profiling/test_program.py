"""The operations of programs that the TPU compiler made: what of a step each belongs to."""

from pathlib import Path

from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.profiling.program import Program

HLO = Path(__file__).parent.parent / "hlo"
MESH = {"data": 4, "seq": 1, "model": 2}


def read(name: str) -> Program:
    module = parse((HLO / f"tpu-{name}.hlo").read_text())
    return Program(module, MESH, 8, set())


def test_a_collective_that_fusions_begin_continue_and_end_is_one() -> None:
    operations = read("fsdp").operations
    begin, middle, end = (operations[name] for name in ("async-collective-start", "fusion.27", "async-collective-done"))
    assert begin.part == end.part == "all-gather over data"
    assert begin.collective == end.collective == "async-collective-start"
    assert (begin.is_begin, end.is_begin) == (True, False)
    assert (middle.part, middle.collective) == ("matrix products", "")


def test_a_fusion_of_an_all_reduce_and_a_slice_is_a_reduce_scatter() -> None:
    assert read("fsdp").operations["fusion.25"].part == "reduce-scatter over data"


def test_every_collective_of_the_inventory_has_one_operation_that_begins_it() -> None:
    for path in HLO.glob("tpu-*.hlo"):
        program = read(path.stem.removeprefix("tpu-"))
        begins = [each for each in program.operations.values() if each.collective and each.is_begin]
        found = sorted((program.collectives[each.collective].kind, each.part.rpartition(" ")[2]) for each in begins)
        assert len(found) == len(inventory(program.module, MESH)), path.name
