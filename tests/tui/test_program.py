"""`shardtui explain` in a terminal: the UI over a program, without a run."""

from pathlib import Path

import pytest
from shardtui.engine.base.processes import children
from shardtui.engine.explain.explanation import CompiledProgram, Explanation, Link, Rematerialization, ValueOrigin
from shardtui.tui.state.program_findings import program_findings

from ..processes import awaited, is_alive
from ..terminal import Terminal

PROGRAM = """
import time
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def split(shape, *spec):
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(jax.sharding.get_mesh(), P(*spec)))

def loss(params, x):
    hidden = jnp.tanh(x @ params["up"])
    return jnp.mean((hidden @ params["down"]) ** 2)

def program():
    params = {"up": split((512, 2048), None, "model"), "down": split((2048, 512))}
    return jax.jit(jax.grad(loss)), (params, split((64, 512)))

def number():
    return 3

def slow():
    time.sleep(600)
"""

ESCAPE, ENTER, DOWN = "\x1b", "\r", "\x1b[B"
STEPS: tuple[tuple[str, list[str]] | tuple[str, list[str], str], ...] = (
    ("/", ["filter: "]),
    ("params..up", ["params..up", "│ params['up'] "], "o Sort"),
    (ENTER, ["o Sort"]),
    (ENTER, ["origin of params['up'] · net.py:program", "← argument params['up']"]),
    (ESCAPE, ["o Sort"]),
    ("2", ["collectives, estimated", "net.py:11"]),
    (ENTER, ["origin of all-reduce over model", "because the product at net.py:11 sums over dim 1"]),
    (ESCAPE, ["o Sort"]),
    ("3", ["S101", "params['down'] is replicated over the 2 devices", "S104"], "/ Filter"),
    (DOWN, ["S104"]),
    (ENTER, ["origin of S104", "x 64 × 512 (–, –) ›"]),
    (ESCAPE, ["S101"]),
    ("4", ["temporaries", "per device"]),
    ("?", ["A program of your own"]),
    (ESCAPE, ["temporaries"]),
)
"""Keys, and what the screen then shows, and no longer: the focus has moved once the footer has other keys."""


@pytest.fixture
def folder(home: Path) -> Path:
    (home / "net.py").write_text(PROGRAM)
    return home


def opened(folder: Path, function: str, *options: str) -> Terminal:
    return Terminal("explain", f"net.py:{function}", "--mesh", "data=4,model=2", *options, folder=folder)


def test_values_collectives_and_findings_have_their_origin(folder: Path) -> None:
    terminal = opened(folder, "program", "--compile")
    terminal.until(lambda text: "explaining …" in text and "Collectives" in text, "the first frame")
    terminal.until(lambda text: "values: " in text and "Compiled" in text, "the explanation")
    for keys, expected, *gone in STEPS:
        terminal.press(keys, *expected, gone=gone)
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert terminal.is_restored()


def test_a_program_that_cannot_be_explained_is_refused_after_the_ui_has_closed(folder: Path) -> None:
    terminal = opened(folder, "number")
    assert terminal.exit_code(90) == 2
    assert b"explain net.py:number" in terminal.output.split(b"\x1b[?1049l")[-1]
    assert b"it returns int" in terminal.output
    assert b"Traceback" not in terminal.output


@pytest.mark.parametrize("ends", ["key", "hang-up"])
def test_the_process_that_explains_ends_with_the_ui(folder: Path, ends: str) -> None:
    terminal = opened(folder, "slow")
    terminal.until(lambda text: "explaining … 1 s" in text, "the wait")
    engines = children(terminal.process.pid)
    assert len(engines) == 1
    if ends == "key":
        terminal.send("q")
        assert terminal.exit_code() == 0
    else:
        terminal.hang_up()
        terminal.process.wait(timeout=20)
    awaited(lambda: not any(map(is_alive, engines)), "the end of the engine")


def test_text_is_printed_if_asked_for(folder: Path) -> None:
    terminal = opened(folder, "program", "--text")
    assert terminal.exit_code(90) == 0
    assert b"\x1b[?1049h" not in terminal.output
    assert b"collectives, estimated" in terminal.output


def value(name: str, *axes: list[str], role: str = "argument", dtype: str = "f32") -> ValueOrigin:
    origin = [
        Link(dim=dim, axis=axis, kind="input", what=f"argument {name}", source="")
        for dim, split in enumerate(axes)
        for axis in split
    ]
    source = "a.py:3" if role == "value" else ""
    shape = [1024, 1024]
    return ValueOrigin(name=name, shape=shape, dtype=dtype, axes=[*axes], role=role, source=source, origin=origin)


def codes(*values: ValueOrigin, compiled: CompiledProgram | None = None) -> list[tuple[str, list[str]]]:
    explained = Explanation(
        program="a.py:f", mesh={"data": 4, "model": 2}, values=list(values), collectives=[], compiled=compiled
    )
    return [(found.code, found.arrays) for found in program_findings(explained)]


def test_what_is_replicated_is_found_among_parts_of_one_argument() -> None:
    batch, split = value("x", ["data"], []), value("params['a']", [], ["model"])
    assert codes(batch, split, value("params['b']", [], [])) == [("S101", ["params['b']"])]
    assert codes(batch, split, value("other", [], [])) == []
    assert codes(batch, split, value("params.tanh", [], [], role="value")) == [], "it is no argument"
    assert codes(batch, split, value("params['c']", ["model:(1)2"], [])) == [], "split over a part of the axis"


def test_idle_axes_and_rematerializations_are_found() -> None:
    warned = Rematerialization(
        value="h", shape=[8, 8], before=[["data"], []], after=[[], ["model"]], source="a.py:4", because=[]
    )
    compiled = CompiledProgram(
        collectives=[], differs=[], rematerializations=[warned], argument_bytes=0, output_bytes=0, temporary_bytes=0
    )
    found = codes(value("x", ["data"], []), value("y", [], []), compiled=compiled)
    assert found == [("S104", ["y"]), ("S107", ["h"])]


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("i1", 1), ("i4", 1), ("complex<f32>", 8)])
def test_captured_arrays_have_the_bytes_of_their_dtype(dtype: str, width: int) -> None:
    captured = value("captured[0]", [], [], role="captured", dtype=dtype)
    explained = Explanation(program="a.py:f", mesh={"data": 1}, values=[captured], collectives=[])
    assert [found.bytes_per_device for found in program_findings(explained)] == [1024 * 1024 * width]
