"""Bytes, result shapes and groups of collectives in each form of XLA's text, counted by hand for one device."""

import pytest
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.wire.collective import CollectiveInfo

from .test_collectives import read

MESH = {"data": 2, "model": 4}
MODEL = "channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true"
OPERANDS = """\
  %x = f32[16,64]{1,0} parameter(0)
  %y = bf16[8]{0} parameter(1)
  %rows = bf16[64,32]{1,0} parameter(2)
  %into = f32[64,64]{1,0} parameter(3)
  %at = s32[4]{0} parameter(4)
  %start = (s32[], s32[]) parameter(5)
  %after = token[] after-all()
"""
X, Y, ROWS = 16 * 64 * 4, 8 * 2, 64 * 32 * 2
"""Bytes of the operands."""
AT = "%at, %at, %at, /*index=5*/%at"
PAIRS = "channel_id=1, source_target_pairs={{0,4},{4,0},{1,5},{5,1}}"
WRAPPED = f"""\
%wrapped (a: f32[16,64]) -> f32[4,64] {{
  %a = f32[16,64]{{1,0}} parameter(0)
  ROOT %rs = f32[4,64]{{1,0}} reduce-scatter(%a), {MODEL}, dimensions={{0}}, to_apply=%add
}}

"""

IN_PLACE = f"{PAIRS}, slice_sizes={{{{4,64}}}}"
"""A slice of 4 × 64 of the first operand goes into the second, at two starts."""
SENT = "channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}"
SHORT = "channel_id=1, replica_groups=[2,4]<=[8]"

# Result and opcode, operands, attributes; kind, bytes, shapes of the results.
OVER_MODEL = [
    ("f32[16,64] all-reduce", "%x", MODEL, "all-reduce", X, [[16, 64]]),
    ("(f32[16,64], bf16[8]) all-reduce", "%x, %y", MODEL, "all-reduce", X + Y, [[16, 64], [8]]),
    ("(f32[16,64], bf16[8]) all-reduce-start", "%x, %y", MODEL, "all-reduce", X + Y, [[16, 64], [8]]),
    ("((f32[16,64]), f32[16,64], u32[]) all-reduce-start", "%x", MODEL, "all-reduce", X, [[16, 64]]),
    ("f32[64,64] all-gather", "%x", MODEL, "all-gather", 4 * X, [[64, 64]]),
    ("(f32[16,64], f32[64,64]) all-gather-start", "%x", MODEL, "all-gather", 4 * X, [[64, 64]]),
    (
        "((f32[16,64]{1,0:T(8,128)}, bf16[8]), /*index=1*/(f32[64,64]{1,0:T(8,128)S(1)}, bf16[32])) all-gather-start",
        *("%x, %y", MODEL, "all-gather", 4 * (X + Y), [[64, 64], [32]]),
    ),
    ("f32[4,64] reduce-scatter", "%x", MODEL, "reduce-scatter", X, [[4, 64]]),
    ("((f32[16,64]), f32[4,64]) reduce-scatter-start", "%x", MODEL, "reduce-scatter", X, [[4, 64]]),
    ("((f32[16,64]), f32[4,64], u32[]) async-start", "%x", "calls=%wrapped", "reduce-scatter", X, [[4, 64]]),
    ("f32[16,64] all-to-all", "%x", SHORT, "all-to-all", X, [[16, 64]]),
    ("(bf16[8], bf16[8]) all-to-all", "%y, %y", MODEL, "all-to-all", 2 * Y, [[8], [8]]),
    ("((f32[16,64]), f32[16,64], u32[]) all-to-all-start", "%x", MODEL, "all-to-all", X, [[16, 64]]),
    ("bf16[64,32] ragged-all-to-all", f"%rows, %rows, {AT}", SHORT, "ragged-all-to-all", ROWS, [[64, 32]]),
    (
        "((bf16[64,32], f32[64,64], s32[4], s32[4], s32[4], /*index=5*/s32[4]), f32[64,64]) ragged-all-to-all-start",
        *(f"%rows, %into, {AT}", MODEL, "ragged-all-to-all", ROWS, [[64, 64]]),
    ),
    ("f32[16,64] collective-broadcast", "%x", MODEL, "collective-broadcast", X, [[16, 64]]),
    ("(f32[16,64], u32[], token[]) send", "%x, %after", SENT, "collective-permute", X, [[16, 64]]),
]
OVER_DATA = [
    ("f32[16,64] collective-permute", "%x", PAIRS, "collective-permute", X, [[16, 64]]),
    (
        "(f32[16,64], f32[16,64], u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start",
        *("%x", PAIRS, "collective-permute", X, [[16, 64]]),
    ),
    ("(f32[16,64], bf16[8]) collective-permute", "%x, %y", PAIRS, "collective-permute", X + Y, [[16, 64], [8]]),
    (
        "f32[64,64] collective-permute",
        *("%x, %into, %start, %start", IN_PLACE, "collective-permute", 4 * 64 * 4, [[64, 64]]),
    ),
]
FORMS = [(*form, axes) for axes, forms in (("model", OVER_MODEL), ("data", OVER_DATA)) for form in forms]


def text(line: str, head: str = "num_partitions=8") -> str:
    return (
        f"HloModule m, {head}\n\n%add (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n}}\n\n{WRAPPED}"
        f"ENTRY %e (p: f32[8]) -> f32[8] {{\n{OPERANDS}{line}\n}}\n"
    )


def called(module: str) -> CollectiveInfo:
    """Returns the collective `%c`."""
    (found,) = (info for info in inventory(parse(module), MESH) if info.name == "c")
    return found


def test_a_permutation_without_pairs_is_no_collective() -> None:
    """The compiler leaves one in a pipeline of one stage."""
    line = "  %c = f32[16,64] collective-permute(%x), channel_id=1, source_target_pairs={}"
    assert "c" not in {info.name for info in inventory(parse(text(line)), MESH)}


@pytest.mark.parametrize(("head", "operands", "attributes", "kind", "size", "shapes", "axis"), FORMS)
@pytest.mark.parametrize("typed", [False, True])
def test_forms(
    head: str, operands: str, attributes: str, kind: str, size: int, shapes: list[list[int]], axis: str, typed: bool
) -> None:
    """Older texts repeat the types of operands. Texts of XLA's own tests leave out the `%`, which is tried, too."""
    line = f"  %c = {head}({operands.replace('%x', 'f32[16,64]{1,0} %x') if typed else operands}), {attributes}"
    for module in (text(line), text(line).replace("%", "")):
        info = called(module)
        assert (info.kind, info.axes, info.bytes_each, info.shapes) == (kind, [axis], size, shapes)


@pytest.mark.parametrize(
    ("groups", "head", "axes", "size"),
    [
        ("channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true", "", ["data"], 2),
        ("channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true", "", ["data"], 2),
        ("channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'a','b'}, use_global_device_ids=true", "", [*MESH], 8),
        ("channel_id=1, replica_groups=mesh['a'=8] {'a':(2)4}, use_global_device_ids=true", "", ["model"], 4),
        ("channel_id=1, replica_groups=mesh['a'=8] {'a':(4)2}, use_global_device_ids=true", "", ["model"], 2),
        ("channel_id=1, replica_groups={{0}}", "", [*MESH], 8),  # all partitions of the one replica
        ("channel_id=1, replica_groups={}, use_global_device_ids=true", "", [*MESH], 8),
        ("replica_groups={{0}}", "", [], 0),
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_count=8", ["model"], 4),
        ("replica_groups={{0,1}}", "replica_count=2, num_partitions=4", ["data"], 2),
        ("channel_id=1, replica_groups={{0},{1}}", "replica_count=2, num_partitions=4", ["model"], 4),
        ("channel_id=1, replica_groups={{0,1}}", "replica_count=2, num_partitions=4", [*MESH], 8),
    ],
)
def test_groups_of_devices_partitions_and_replicas(groups: str, head: str, axes: list[str], size: int) -> None:
    line = f"  %c = f32[16,64] all-reduce(%x), {groups}, to_apply=%add"
    found = [info for info in inventory(parse(text(line, head or "num_partitions=8")), MESH) if info.name == "c"]
    assert [(info.axes, info.group_size, info.bytes_each) for info in found] == ([(axes, size, X)] if axes else [])


@pytest.mark.parametrize(
    ("opcode", "groups"),
    [
        ("all-to-all", "replica_groups={{0,1,2,3}}"),
        ("collective-permute", "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"),
    ],
)
def test_permutations_and_exchanges_with_a_channel_are_among_the_partitions_of_each_replica(
    opcode: str, groups: str
) -> None:
    line = f"  %c = f32[16,64] {opcode}(%x), channel_id=1, {groups}"
    assert called(text(line, "replica_count=2, num_partitions=4")).axes == ["model"]


def test_shapes_of_results_in_texts_of_the_tpu_compiler() -> None:
    mesh = {"data": 4, "model": 2}
    assert inventory(read("ppermute"), mesh)[0].shapes == [[128, 512]]
    scattered = [info for info in inventory(read("fsdp"), mesh) if info.kind == "reduce-scatter"]
    assert [info.shapes for info in scattered] == [[[256, 1024]]]
