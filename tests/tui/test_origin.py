"""Origins of layouts: the dialog over recorded runs, and the UI of `shardtui explain` over a program, without a run.

A real engine process runs the partitioner's passes.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.base.processes import children
from shardtui.engine.explain.explanation import (
    CompiledProgram,
    Explanation,
    Link,
    Rematerialization,
    StepRequest,
    ValueOrigin,
)
from shardtui.engine.hlo.finding import Finding
from shardtui.engine.wire.events import Inspection
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.explainer import Rules
from shardtui.tui.lookups import explained_step
from shardtui.tui.screens.arrays import ArraysScreen
from shardtui.tui.screens.origin import OriginScreen
from shardtui.tui.state.origin_pages import ValuePage
from shardtui.tui.state.program_findings import program_findings
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.export import screen_text
from textual.pilot import Pilot

from ..conftest import TINY, tiny_config
from ..processes import awaited, is_alive
from ..terminal import Terminal
from . import recordings
from .test_app import finished, until
from .test_views import press, record_inspections

UP = "blocks.mlp.up"


@pytest.fixture
def described() -> list[Inspection]:
    return recordings.described("pitfall-first-dim", "fsdp-tp2")


def texts(app: ShardtuiApp) -> list[str]:
    return [line.text for page in app.screen.pages[-1:] for line in page.lines]


async def open_array(app: ShardtuiApp, pilot: Pilot, name: str) -> None:
    await press(pilot, "2")
    app.screen.select(name)
    await press(pilot, "enter")


def put_on(app: ShardtuiApp, text: str) -> None:
    at = next(number for number, line in enumerate(texts(app)) if text in line)
    app.screen.query_one("OptionList").highlighted = at


def put_on_finding(app: ShardtuiApp, code: str) -> Finding:
    """Puts the cursor of Lint on the first finding with this code."""
    options, findings = app.screen.query_one("OptionList"), app.screen.query_one("FindingList").findings
    key, found = next((key, found) for key, found in findings.items() if found.code == code)
    options.highlighted = options.get_option_index(key)
    return found


async def explained(app: ShardtuiApp) -> None:
    await until(lambda: app.screen.pages, "the explanation")


@pytest.mark.core
async def test_a_chain_is_walked_by_keys_and_kept_and_another_rule_is_tried(
    home: Path, described: list[Inspection]
) -> None:
    others = children(os.getpid())
    async with finished(record_inspections(described, "walk")) as (app, pilot):
        await open_array(app, pilot, UP)
        assert "explaining …" in screen_text(app), "it opens at once"
        await explained(app)
        await pilot.pause()
        text = screen_text(app)
        assert f"origin of {UP} · fsdp-tp2" in text and "Estimated by the partitioner's passes" in text
        assert texts(app)[1] == "as compiled"
        assert "dim 2 mlp: over model" in texts(app)
        put_on(app, "← constraint of blocks.mlp.hidden")
        await press(pilot, "enter")
        assert "origin of blocks.mlp.hidden" in screen_text(app)
        assert any("← constraint of blocks.mlp.hidden" in line and "rule mlp → model" in line for line in texts(app))
        put_on(app, "all-reduce over model")
        await press(pilot, "enter")
        assert "  because the product at blocks.py" in "\n".join(texts(app))
        await press(pilot, "backspace", "escape")
        assert f"origin of {UP} · fsdp-tp2" in screen_text(app)
        await press(pilot, "escape")
        assert isinstance(app.screen, ArraysScreen)
        await press(pilot, "enter")
        assert app.screen.pages, "an explanation is kept"
        assert {*children(os.getpid())} <= {*others}
        await press(pilot, "q")
        assert isinstance(app.screen, ArraysScreen)

        await open_array(app, pilot, UP)
        await press(pilot, "t", *"mlp", "enter")
        assert "'mlp' is not AXIS=MESHAXES, such as mlp=model" in screen_text(app)
        await press(pilot, "equals_sign", "enter")
        await until(lambda: "what changes with mlp= · fsdp-tp2" in screen_text(app), "what changes")
        assert "  blocks.mlp.hidden (fsdp, –, model) → (fsdp, –, –)" in texts(app)
        assert any(line.startswith("  all-reduce over model: ") for line in texts(app))
        put_on(app, "blocks.mlp.hidden ")
        await press(pilot, "enter")
        assert "origin of blocks.mlp.hidden with mlp=" in screen_text(app)
        assert 'dim 2 mlp: rule → "": unsharded' in texts(app)
        await press(pilot, "t", *"mlp=nowhere", "enter")
        await until(lambda: "nowhere: not an axis of the mesh of fsdp-tp2" in screen_text(app), "the problem")
        assert len(app.screen.pages) == 3
        await press(pilot, "t", "escape", "escape", "escape")
        assert f"origin of {UP} · fsdp-tp2" in screen_text(app)


@pytest.mark.slow
async def test_a_collective_says_why_it_is_needed(home: Path) -> None:
    """Of a program compiled now: an estimate is for the same line of the source."""
    directory = record_inspections(recordings.inspections(TINY, 8, "fsdp-tp2"), "collective")
    async with finished(directory, (80, 24)) as (app, pilot):
        await press(pilot, "4")
        found = app.screen.table.given.items()
        key = next(key for key, info in found if (info.kind, info.axes, info.count) == ("all-reduce", ["model"], 2))
        app.screen.table.select(key)
        await press(pilot, "enter")
        await explained(app)
        assert texts(app)[0].startswith("compiled: all-reduce over model, 2 ops, ")
        assert texts(app)[1].startswith("estimated: all-reduce over model, 2 ×, ")
        assert texts(app)[2].startswith("  because the product at attention.py:")


async def test_a_finding_leads_to_its_array_and_ends_at_the_rule_at_fault(
    home: Path, described: list[Inspection]
) -> None:
    async with finished(record_inspections(described[:1], "finding")) as (app, pilot):
        await press(pilot, "5")
        text = screen_text(app)
        assert "S105 redundant-compute" in text and "FLOP of matrix products, but a step needs" in text
        (name,) = put_on_finding(app, "S106").arrays
        await press(pilot, "enter")
        await until(lambda: isinstance(app.screen, ArraysScreen), "the Arrays view")
        pane = app.screen.query_one("ShardingPane")
        await until(lambda: pane.subject and pane.subject.array.name == name, "the array")
        await press(pilot, "5")
        put_on_finding(app, "S106")
        await press(pilot, "o")
        await explained(app)
        at = texts(app).index("where to change it: its chains end at")
        assert texts(app)[at + 1].startswith(f'  argument {name}: override "*.kernel" → model (2): ')
        put_on(app, f"  argument {name}: ")
        await press(pilot, "enter")
        assert f"origin of {name} · pitfall-first-dim" in screen_text(app)


async def test_a_step_that_cannot_be_explained_is_one_message(home: Path, described: list[Inspection]) -> None:
    """Such as that of a replay whose preset was a file."""
    directory = record_inspections(described[:1], "gone")
    lines = directory.events.read_bytes().replace(b'"source":"built-in"', b'"source":"/nowhere/mine.toml"')
    directory.events.write_bytes(lines)
    async with finished(directory) as (app, pilot):
        await open_array(app, pilot, UP)
        await until(lambda: "--preset /nowhere/mine.toml: no such file" in screen_text(app), "the message")
        await press(pilot, "t", "enter")
        assert not app.screen.pages
        await press(pilot, "escape")
        assert isinstance(app.screen, ArraysScreen)


async def test_the_dialog_may_be_closed_before_the_answer(home: Path, described: list[Inspection]) -> None:
    """To end the process that computes it takes longer than to remove the widgets."""
    ended = asyncio.Event()
    async with finished(record_inspections(described[:1], "closed")) as (app, pilot):

        async def explain(rules: Rules) -> list[Explanation]:
            try:
                await asyncio.Event().wait()
            finally:
                with contextlib.suppress(asyncio.CancelledError):
                    await until(lambda: not dialog.children, "the end of the widgets")
                ended.set()
            return []

        dialog = OriginScreen(ValuePage(UP), "dp", described[0].compiled.mesh, explain)
        await app.push_screen(dialog)
        await until(lambda: "explaining …" in screen_text(app), "the dialog")
        await press(pilot, "escape")
        await asyncio.wait_for(ended.wait(), 60)
        await press(pilot, "2")
        assert isinstance(app.screen, ArraysScreen)


async def test_the_process_ends_with_the_app(home: Path, described: list[Inspection]) -> None:
    others = children(os.getpid())
    async with finished(record_inspections(described[:1], "end")) as (app, pilot):
        await open_array(app, pilot, UP)
        await until(lambda: {*children(os.getpid())} - {*others}, "the process")
    assert {*children(os.getpid())} <= {*others}


def test_a_run_without_a_configuration_is_not_explained() -> None:
    assert explained_step(RunState(preset="dp")) is None


def test_the_process_ends_when_its_parent_is_gone() -> None:
    step = StepRequest(config=tiny_config(), is_simulated=True)
    command = [sys.executable, "-m", "shardtui.engine", "why", encode_json(step).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.close()
        assert (process.wait(30), process.stdout.read()) == (1, b"")


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


def test_on_a_topology_the_cost_and_what_fills_the_memory_are_shown(folder: Path) -> None:
    terminal = opened(folder, "program", "--topology", "v5e:2x4")
    terminal.until(lambda text: "v5e:2x4: " in text and "traced" in text and "m Memory" in text, "the cost")
    terminal.press("m", "memory of a step, predicted", "at the peak", "params['down']")
    terminal.press(ESCAPE, "m Memory")
    terminal.send("q")
    assert terminal.exit_code() == 0


def test_a_program_that_cannot_be_explained_is_refused_after_the_ui_has_closed(folder: Path) -> None:
    terminal = opened(folder, "number")
    assert terminal.exit_code(90) == 2
    assert b"explain net.py:number" in terminal.output.split(b"\x1b[?1049l")[-1]
    assert b"it returns int" in terminal.output
    assert b"Traceback" not in terminal.output


@pytest.mark.parametrize("ends", ["key", pytest.param("hang-up", marks=pytest.mark.core)])
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
