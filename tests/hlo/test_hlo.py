"""Module texts that no compiler prints are read correctly or rejected, in time linear in their length."""

import faulthandler
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.hlo.array_types import arrays
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.device_groups import axes_of
from shardtui.engine.hlo.execution_counts import runs
from shardtui.engine.hlo.module import LIBRARIES, closing, parse
from shardtui.engine.models import decoder
from shardtui.engine.parallel import constraints
from shardtui.tui.cli.main import main

from ..hlo_texts import HOSTILE, MESH, START, collectives, loops, module, nested, reduced, repeated

SIZE = 300_000
TIMEOUT = 11
"""Seconds, for a busy machine: a text takes half of one. Reading in quadratic time would take a minute."""
TEXTS = Path(__file__).parents[1] / "hlo"
PEAK_OF_INVENTORY = f"""
import sys, tracemalloc
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse

text = sys.stdin.read()
tracemalloc.start()
inventory(parse(text), {MESH})
print(tracemalloc.get_traced_memory()[1])
"""
Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Inspect]:
    """Runs the command in this process: exit code, stdout and stderr. The process ends if it takes too long."""

    def inspected(text: str, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "module.hlo"
        path.write_text(text)
        code = main(["inspect", f"--hlo={path}", "--mesh=data=4,model=2", *options])
        return code, *capsys.readouterr()

    faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=sys.__stderr__)
    yield inspected
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_or_rejected_in_linear_time(name: str, inspect: Inspect) -> None:
    code, printed, said = inspect(HOSTILE[name](SIZE))
    assert code in (0, 2)
    assert len(said) < 1000
    assert len(printed) < SIZE
    assert code == 0 or "not the text of a compiled module" in said


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ("replica_groups=mesh[aaaa", "cannot parse its groups: replica_groups=mesh"),
        ("replica_groups=mesh[aaaa] {'a'}", "cannot parse its mesh: aaaa"),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7},{0,1}}", "its groups list 10 devices, but the mesh has 8"),
        ("replica_groups={{0,8}}", "its groups name a device outside the mesh of 8"),
        ("replica_groups=[1,100000000]<=[100000000]", r"groups of \[1,100000000\] devices, but the mesh has 8"),
        ("replica_groups=[1,100000000]<=[8]", r"groups of \[1,100000000\] devices, but the mesh has 8"),
        ("replica_groups=[4,2]<=[4,4]", r"an iota \[4, 4\] in order \[0, 1\] for 8 devices"),
        ("replica_groups=[4,2]<=[4,2]T(1,1)", r"in order \[1, 1\]"),
        ("replica_groups=mesh['a'=4] {'a'}", "an iota .4. in order .0. for 8 devices"),
        ("replica_groups={{" + "9" * 5000 + "}}", "a number of 5,000 digits"),
        ("source_target_pairs={{0,1},{2}}", "cannot parse its pairs"),
        ("source_target_pairs={" + "{0,1}," * 65 + "{1,0}}", "it has 66 source-target pairs for 8 devices"),
    ],
)
def test_invalid_groups_are_rejected_with_the_name_of_the_instruction(attributes: str, says: str) -> None:
    with pytest.raises(ValueError, match=rf"^r\.7: .*{says}"):
        inventory(parse(module([reduced("%p", attributes, 7)])), MESH)


def test_arrays_too_large_for_any_device_are_rejected() -> None:
    huge = module([reduced("%p", "replica_groups={}", type_=f"f32[{2**62},8]")])
    with pytest.raises(ValueError, match=r"r\.0: an array of f32 in 2 dims takes more than 2⁶³ bytes"):
        inventory(parse(huge), MESH)
    assert arrays(f"(f32[{2**62},8,0], s4[3]{{0}}, bf16[<=2], pred[])") == (
        12 + 32 + 8,
        ["f32", "s4", "bf16", "pred"],
        [[2**62, 8, 0], [3], [2], []],
    )


@pytest.mark.parametrize("path", sorted(TEXTS.glob("*.hlo")), ids=lambda path: path.stem)
def test_uncalled_copies_of_a_module_add_no_collectives(path: Path) -> None:
    """Copies that nothing calls run 0 times and are otherwise equal to the original."""
    text = path.read_text()
    alone, among = (inventory(parse(each), MESH) for each in (text, repeated(text, 200_000)))
    assert [info for info in among if info.count != 0] == [info for info in alone if info.count != 0]
    assert len(among) % len(alone) == 0


def test_thousands_of_collectives_are_all_read_in_little_memory() -> None:
    total = 5000
    text = collectives(total)
    found = inventory(parse(text), MESH)
    command = [sys.executable, "-c", PEAK_OF_INVENTORY]  # tracemalloc may crash a process with other threads
    peak = int(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
    assert len(text) < peak < 15 * len(text)
    assert [info.name for info in found] == [f"r.{at}" for at in range(total)]
    op_name = "jit(step)/jvp(blocks)/while/body/mlp/dot_general"
    expected = ("all-reduce", ["model"], 2, 1, 32, 32, 32, "f32", [[8]], op_name, "", False)
    assert all(msgspec.structs.astuple(info)[: len(expected)] == expected for info in found)


def test_the_table_shows_the_largest_collectives_and_json_all(inspect: Inspect) -> None:
    text = collectives(2000).replace("%p)", "%large)", 1).replace("  %r.0 =", "  %large = f32[16] sine(%p)\n  %r.0 =")
    _, shown, _ = inspect(text)
    assert "and 1,500 more, none larger: --json lists all" in shown
    assert shown.count("dot_general") == 500
    assert "64 B" in shown
    assert len(json.loads(inspect(text, "--json")[1])["collectives"]) == 2000


def counted(text: str, name: str) -> int | None:
    return runs(parse(text))[name]


@pytest.mark.parametrize(
    ("advance", "trips"),
    [
        ("  %last = s32[] add(%i, %one)\n", 9),
        ("  %two = s32[] constant(2)\n  %j = s32[] copy(%i)\n  %last = s32[] add(%two, %j)\n", 5),
        ("  %none = s32[] constant(0)\n  %last = s32[] add(%i, %none)\n", None),
        ("  %last = s32[] add(%i, %i)\n", None),
        ("  %last = s32[] add(%one, %one)\n", None),
        ("  %last = s32[] subtract(%i, %one)\n", None),
        ("  %x = s32[] copy(%i)\n", None),
    ],
)
def test_a_loop_is_counted_if_its_counter_grows_by_a_constant(advance: str, trips: int | None) -> None:
    assert counted(loops(advance, 3), "body") == (None if trips is None else 3 * trips)


@pytest.mark.parametrize(("start", "trips"), [("constant(40)", 40), ("constant(-1)", 0), ("sine(%p)", None)])
def test_the_bound_of_a_loop_may_be_carried_unchanged(start: str, trips: int | None) -> None:
    text = loops("  %m = s32[] get-tuple-element(%t), index=1\n  %last = s32[] add(%i, %one)\n", 1)
    text = text.replace("%end = s32[] constant(9)", "%end = s32[] get-tuple-element(%c), index=1")
    text = text.replace(START, f"  %limit = s32[] {start}\n{START.replace('%zero)', '%zero, %limit)')}")
    carried = text.replace("tuple(%last)", "tuple(%last, %m)")
    assert counted(carried, "body") == trips
    assert counted(carried.replace("(%last, %m)", "(%last, %last)"), "body") is None
    assert counted(carried.replace("direction=LT", "direction=GT"), "body") is None


def test_calls_are_followed_through_long_chains() -> None:
    calls = nested(5000, "  ROOT %c = s32[] call(%q), to_apply=%n.{}\n")
    assert counted(module(["  %c = s32[] call(%p), to_apply=%n.4999\n"], calls), "n.0") == 1
    twice = nested(100, "  %c = s32[] call(%q), to_apply=%n.{0}\n  ROOT %d = s32[] call(%q), to_apply=%n.{0}\n")
    found = runs(parse(module(["  %c = s32[] call(%p), to_apply=%n.99\n"], twice)))
    assert [found[f"n.{n}"] for n in (99, 98, 37, 36, 0)] == [1, 2, 2**62, None, None]
    found = runs(parse(HOSTILE["a computation that calls itself"](0)))
    assert (found["e"], found["n"]) == (1, None)


def frames(parents: list[int], files: list[str]) -> str:
    listed = "".join(f'{n} "{file}"\n' for n, file in enumerate(files, 1))
    places = "".join(f"{n} {{file_name_id={n} line={n}0}}\n" for n in range(1, len(files) + 1))
    stack = "".join(f"{n} {{file_location_id={n} parent_frame_id={p}}}\n" for n, p in enumerate(parents, 1))
    return f"FileNames\n{listed}\nFileLocations\n{places}\nStackFrames\n{stack}\n"


def test_the_source_is_the_innermost_line_outside_libraries() -> None:
    files = ["/u/main.py", "/x-packages/jax/a.py", "/u/own.py", "/x-packages/flax/b.py", "/x-packages/optax/c.py"]
    tables = frames([1, 2, 3, 4, 1], files)
    lines = [reduced("%p", f"replica_groups={{}}, metadata={{stack_frame_id={n}}}", n) for n in range(1, 7)]
    found = inventory(parse(module(lines, tables=tables)), MESH)
    assert [info.source for info in found] == [
        "/u/main.py:10",
        "/u/main.py:10",
        "/u/own.py:30",
        "/u/own.py:30",
        "/x-packages/optax/c.py:50",
        "",
    ]


@given(st.text("()a", max_size=40))
def test_closing_finds_the_matching_parenthesis(text: str) -> None:
    depths = [1 + text[:end].count("(") - text[:end].count(")") for end in range(1, len(text) + 1)]
    assert closing(text) == (depths.index(0) if 0 in depths else len(text))


def places(mesh: dict[str, int]) -> Iterator[dict[str, int]]:
    for number in range(8):
        rest, place = number, {}
        for axis, size in reversed(mesh.items()):
            rest, place[axis] = divmod(rest, size)
        yield place


@given(st.permutations(range(8)), st.lists(st.integers(0, 8), max_size=3), st.sampled_from([(8,), (4, 2), (2, 2, 2)]))
def test_axes_of_groups_are_where_members_differ(members: list[int], cuts: list[int], sizes: tuple[int, ...]) -> None:
    mesh = dict(zip("abc", sizes, strict=False))
    ends = [0, *sorted(cuts), 8]
    groups = [tuple(members[start:end]) for start, end in itertools.pairwise(ends)]
    place = list(places(mesh))
    assert axes_of(groups, mesh) == [
        axis for axis in mesh if any(place[a][axis] != place[b][axis] for group in groups for a in group for b in group)
    ]


def test_constraints_are_no_line_of_a_reader() -> None:
    assert LIBRARIES.search(constraints.__file__)
    assert LIBRARIES.search("/elsewhere/site-packages/shardtui/engine/parallel/constraints.py")
    assert not LIBRARIES.search(decoder.__file__)
