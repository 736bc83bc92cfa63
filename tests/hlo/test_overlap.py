"""Which collectives are overlapped with computation, in hand-written schedules and in those of the TPU compiler."""

import pytest
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.traffic import flows, overlapped_share
from shardtui.engine.wire.collective import CollectiveInfo

from ..hlo_texts import ADD
from .test_collectives import MESH, TEXTS, summary

HEAD = f"""\
HloModule m, is_scheduled=true, num_partitions=8

{ADD}%doubled (d: f32[8]) -> f32[8] {{
  %d = f32[8]{{0}} parameter(0)
  ROOT %sum = f32[8]{{0}} add(%d, %d)
}}

"""
ENTRY = "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8]{0} parameter(0)\n"
START = (
    "  %ags = (f32[8]{0}, f32[16]{0}) all-gather-start(%x), channel_id=1, replica_groups=[4,2]<=[8], dimensions={0}\n"
)
DONE = "  %agd = f32[16]{0} all-gather-done(%ags)\n"
FUSION = "  %f = f32[8]{0} fusion(%x), kind=kLoop, calls=%doubled\n"
PRODUCT = "  %p = f32[] dot(%x, %x), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
KERNEL = '  %k = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call"\n'
MOVES = '  %c = f32[8]{0} copy(%x)\n  %w = f32[8]{0} custom-call(), custom_call_target="AllocateBuffer"\n'
SYNCHRONOUS = "  %ar = f32[8]{0} all-reduce(%x), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add\n"
END = "  ROOT %r = f32[8]{0} copy(%x)\n}\n"
SENT = 32
"""Bytes that a device sends to gather 64 bytes from groups of two."""


def read(text: str) -> list[CollectiveInfo]:
    return inventory(parse(text), MESH)


def overlapped(text: str) -> dict[str, int]:
    """Returns the bytes overlapped by kind of collective."""
    return {flow.kind: flow.bytes_overlapped or 0 for flow in flows(read(text))}


@pytest.mark.parametrize("between", [FUSION, PRODUCT, KERNEL, MOVES + FUSION])
def test_computation_between_start_and_done_overlaps(between: str) -> None:
    assert overlapped(HEAD + ENTRY + START + between + DONE + END) == {"all-gather": SENT}


@pytest.mark.parametrize("between", ["", MOVES, SYNCHRONOUS])
def test_without_computation_between_nothing_overlaps(between: str) -> None:
    found = overlapped(HEAD + ENTRY + FUSION + START + between + DONE + PRODUCT + END)
    assert set(found.values()) == {0}


def test_a_synchronous_collective_does_not_overlap_and_a_module_without_a_schedule_says_nothing() -> None:
    found = read(HEAD + ENTRY + START + FUSION + SYNCHRONOUS + DONE + END)
    assert {info.kind: info.overlapped for info in found} == {"all-gather": True, "all-reduce": False}
    reduced = 2 * 32 * 3 // 4
    assert overlapped_share(flows(found)) == SENT / (SENT + reduced)
    text = HEAD.replace("is_scheduled=true, ", "") + ENTRY + START + FUSION + DONE + END
    assert overlapped(text) == {"all-gather": 0}


def test_two_that_cross_each_end_by_their_own_done() -> None:
    other = (
        START.replace("ags", "other")
        .replace("channel_id=1", "channel_id=3")
        .replace("[4,2]<=[8]", "[2,4]<=[4,2]T(1,0)")
    )
    text = HEAD + ENTRY + START + other + DONE + FUSION + "  %od = f32[32]{0} all-gather-done(%other)\n" + END
    assert {info.group_size: info.overlapped for info in read(text)} == {2: False, 4: True}


WRAPPED = """\
%wrapped (p: f32[16]) -> f32[8] {
  %p = f32[16]{0} parameter(0)
  ROOT %rs = f32[8]{0} reduce-scatter(%p), channel_id=3, replica_groups=[4,2]<=[8], dimensions={0}, to_apply=%add
}

"""
SCATTER = [
    "  %w = f32[16]{0} concatenate(%x, %x), dimensions={0}\n",
    "  %s = ((f32[16]{0}), f32[8]{0}) async-start(%w), calls=%wrapped\n",
    "  %u = ((f32[16]{0}), f32[8]{0}) async-update(%s), calls=%wrapped\n",
    "  %d = f32[8]{0} async-done(%u), calls=%wrapped\n",
]


@pytest.mark.parametrize(("place", "expected"), [(1, 0), (2, 32), (3, 32), (4, 0)])
def test_async_start_runs_until_its_done_beyond_updates(place: int, expected: int) -> None:
    lines = [*SCATTER[:place], FUSION, *SCATTER[place:]]
    assert overlapped(HEAD + WRAPPED + ENTRY + "".join(lines) + END) == {"reduce-scatter": expected}


def test_start_and_done_count_once_and_tuples_are_summed() -> None:
    reduced = (
        "  %y = bf16[4]{0} convert(%x)\n"
        "  %ars = (f32[8]{0}, bf16[4]{0}) all-reduce-start(%x, %y), channel_id=2, replica_groups={}, to_apply=%add\n"
        "  %ard = (f32[8]{0}, bf16[4]{0}) all-reduce-done(%ars)\n"
    )
    found = read(HEAD + WRAPPED + ENTRY + START + DONE + reduced + "".join(SCATTER) + END)
    assert sorted(summary(found)) == [
        ("all-gather", ["model"], 1, 64),
        ("all-reduce", ["data", "model"], 1, 40),
        ("reduce-scatter", ["model"], 1, 64),
    ]
    assert {info.name for info in found} == {"ags", "ars", "s"}


LOOP = """\
%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {
  %b = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %x = f32[8]{0} get-tuple-element(%b), index=1
BODY
  ROOT %next = (s32[], f32[8]{0}) tuple(%j, %x)
}

%until (c: (s32[], f32[8])) -> pred[] {
  %c = (s32[], f32[8]{0}) parameter(0)
  %n = s32[] get-tuple-element(%c), index=0
  %last = s32[] constant(5)
  ROOT %less = pred[] compare(%n, %last), direction=LT
}

"""
WHILE = """\
  %zero = s32[] constant(0)
  %state = (s32[], f32[8]{0}) tuple(%zero, %x)
  %loop = (s32[], f32[8]{0}) while(%state), condition=%until, body=%body
"""


def test_in_a_loop_every_trip_counts() -> None:
    body = LOOP.replace("BODY\n", START + FUSION + DONE)
    assert overlapped(HEAD + body + ENTRY + WHILE + END) == {"all-gather": 5 * SENT}


@pytest.mark.parametrize(("body", "expected"), [(FUSION, SENT), (MOVES, 0)])
def test_a_loop_between_start_and_done_overlaps_if_it_computes(body: str, expected: int) -> None:
    text = HEAD + LOOP.replace("BODY\n", body) + ENTRY + START + WHILE + DONE + END
    assert overlapped(text) == {"all-gather": expected}


GATHER = "all-gather(%p), channel_id=7, replica_groups=[4,2]<=[8], dimensions={0}"
FUSIONS = f"""\
%starting (p: f32[8]) -> (f32[8], f32[16]) {{
  %p = f32[8]{{0}} parameter(0)
  %ag = f32[16]{{0}} {GATHER}
  ROOT %start = (f32[8]{{0}}, f32[16]{{0}}) custom-call(%ag), custom_call_target="AsyncCollectiveStart"
}}

%continuing (p: f32[8]) -> (f32[16], f32[]) {{
  %p = f32[8]{{0}} parameter(0)
  %ag = f32[16]{{0}} {GATHER}
  %product = f32[] dot(%p, %p), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  ROOT %both = (f32[16]{{0}}, f32[]) tuple(%ag, %product)
}}

%ending (p: f32[8]) -> f32[16] {{
  %p = f32[8]{{0}} parameter(0)
  %ag = f32[16]{{0}} {GATHER}
  ROOT %done = f32[16]{{0}} custom-call(%p, %ag), custom_call_target="AsyncCollectiveDone"
}}

"""
FIRST = "  %first = (f32[8]{0}, f32[16]{0}) fusion(%x), kind=kCustom, calls=%starting\n"
CONTINUED = "  %part = (f32[16]{0}, f32[]) fusion(%x), kind=kOutput, calls=%continuing\n"
LAST = "  %last = f32[16]{0} fusion(%x), kind=kCustom, calls=%ending\n"


@pytest.mark.parametrize(("between", "expected"), [("", 0), (MOVES, 0), (CONTINUED, SENT), (FUSION, SENT)])
def test_fusions_of_the_tpu_compiler_that_start_continue_and_end(between: str, expected: int) -> None:
    assert overlapped(HEAD + FUSIONS + ENTRY + FIRST + between + LAST + END) == {"all-gather": expected}


def test_an_asynchronous_collective_that_spans_a_loop_counts_once() -> None:
    loop = LOOP.replace("BODY\n", CONTINUED)
    found = read(HEAD + FUSIONS + loop + ENTRY + FIRST + WHILE + LAST + END)
    assert summary(found) == [("all-gather", ["model"], 1, 64)]


def test_a_program_of_the_tpu_compiler() -> None:
    """Its backward pass gathers layers of 2 MiB by fusions, in 4 trips and groups of 4, during the product before."""
    found = read((TEXTS / "tpu-fsdp.hlo").read_text())
    assert [(info.kind, "transpose" in info.op_name) for info in found if info.overlapped] == [("all-gather", True)]
    gathers = next(flow for flow in flows(found) if flow.kind == "all-gather")
    assert (gathers.bytes_sent, gathers.bytes_overlapped) == (2 * 4 * 2**21 * 3 // 4, 4 * 2**21 * 3 // 4)
