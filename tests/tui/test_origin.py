"""The origin dialog over recorded runs, driven by keys; a real engine process runs the partitioner's passes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shardtui.engine.explain.explanation import StepRequest
from shardtui.engine.wire.events import Inspection
from shardtui.engine.wire.framing import encode_json
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.lookups import explained_step
from shardtui.tui.screens.arrays import ArraysScreen
from shardtui.tui.screens.lint import LintScreen
from shardtui.tui.screens.origin import OriginScreen
from shardtui.tui.screens.traffic import TrafficScreen
from shardtui.tui.state.origin_pages import FindingPage
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.finding_list import FindingList
from textual.pilot import Pilot
from textual.widgets import OptionList

from ..conftest import TINY, tiny_config
from ..processes import children
from . import recordings
from .test_app import until
from .test_views import over, press, record

UP = "blocks.mlp.up"


@pytest.fixture
def described() -> list[Inspection]:
    return recordings.described("pitfall-first-dim", "fsdp-tp2")


def dialog(app: ShardtuiApp) -> OriginScreen:
    assert isinstance(app.screen, OriginScreen)
    return app.screen


def texts(app: ShardtuiApp) -> list[str]:
    return [line.text for line in dialog(app).shown]


async def open_array(app: ShardtuiApp, pilot: Pilot, name: str) -> None:
    await press(pilot, "2")
    assert isinstance(app.screen, ArraysScreen)
    app.screen.select(name)
    await press(pilot, "enter")


def put_on(app: ShardtuiApp, text: str) -> None:
    at = next(number for number, line in enumerate(texts(app)) if text in line)
    dialog(app).query_one(OptionList).highlighted = at


async def explained(app: ShardtuiApp) -> None:
    await until(lambda: dialog(app).pages, "the explanation")


def test_a_chain_is_walked_by_keys_and_kept(home: Path, described: list[Inspection]) -> None:
    others = children(os.getpid())

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await open_array(app, pilot, UP)
        assert "explaining …" in screen_text(app), "it opens at once"
        await explained(app)
        await pilot.pause()
        text = screen_text(app)
        assert f"origin of {UP} · fsdp-tp2" in text
        assert "Estimated by the partitioner's passes" in text
        assert texts(app)[1] == "as compiled"
        assert "dim 2 mlp: over model" in texts(app)
        put_on(app, "← the result of the constraint that takes it, blocks.mlp.hidden")
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
        assert dialog(app).pages, "an explanation is kept"
        assert {*children(os.getpid())} <= {*others}
        await press(pilot, "q")
        assert isinstance(app.screen, ArraysScreen)

    over(record(described, "walk"), scenario)


def test_another_rule_is_tried(home: Path, described: list[Inspection]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await open_array(app, pilot, UP)
        await explained(app)
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
        assert len(dialog(app).pages) == 3
        await press(pilot, "t", "escape", "escape", "escape")
        assert f"origin of {UP} · fsdp-tp2" in screen_text(app)

    over(record(described, "try"), scenario)


def test_a_collective_says_why_it_is_needed(home: Path) -> None:
    """Of a program compiled now: an estimate is for the same line of the source."""

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "4")
        assert isinstance(app.screen, TrafficScreen)
        found = app.screen.infos.items()
        key = next(key for key, info in found if (info.kind, info.axes, info.count) == ("all-reduce", ["model"], 2))
        app.screen.table.select(key)
        await press(pilot, "enter")
        await explained(app)
        assert texts(app)[0].startswith("compiled: all-reduce over model, 2 ops, ")
        assert texts(app)[1].startswith("estimated: all-reduce over model, 2 ×, ")
        assert texts(app)[2].startswith("  because the product at attention.py:")

    over(record(recordings.inspections(TINY, 8, "fsdp-tp2"), "collective"), scenario, (80, 24))


def test_a_finding_ends_at_the_rule_at_fault(home: Path, described: list[Inspection]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await press(pilot, "5")
        assert isinstance(app.screen, LintScreen)
        key = next(key for key, found in app.screen.query_one(FindingList).findings.items() if found.code == "S106")
        options = app.screen.query_one(OptionList)
        options.highlighted = options.get_option_index(key)
        await press(pilot, "o")
        await explained(app)
        page = dialog(app).first
        assert isinstance(page, FindingPage)
        (name,) = page.finding.arrays
        at = texts(app).index("where to change it: its chains end at")
        assert texts(app)[at + 1].startswith(f'  argument {name}: override "*.kernel" → model (2): ')
        put_on(app, f"  argument {name}: ")
        await press(pilot, "enter")
        assert f"origin of {name} · pitfall-first-dim" in screen_text(app)

    over(record(described[:1], "finding"), scenario)


def test_a_step_that_cannot_be_explained_is_one_message(home: Path, described: list[Inspection]) -> None:
    """Such as that of a replay whose preset was a file."""
    directory = record(described[:1], "gone")
    lines = directory.events.read_bytes().replace(b'"source":"built-in"', b'"source":"/nowhere/mine.toml"')
    directory.events.write_bytes(lines)

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await open_array(app, pilot, UP)
        await until(lambda: "--preset /nowhere/mine.toml: no such file" in screen_text(app), "the message")
        await press(pilot, "t", "enter")
        assert not dialog(app).pages
        await press(pilot, "escape")
        assert isinstance(app.screen, ArraysScreen)

    over(directory, scenario)


def test_the_process_ends_with_the_app(home: Path, described: list[Inspection]) -> None:
    others = children(os.getpid())

    async def scenario(app: ShardtuiApp, pilot: Pilot) -> None:
        await open_array(app, pilot, UP)
        await until(lambda: {*children(os.getpid())} - {*others}, "the process")

    over(record(described[:1], "end"), scenario)
    assert {*children(os.getpid())} <= {*others}


def test_the_process_ends_when_its_parent_is_gone() -> None:
    step = StepRequest(config=tiny_config(), is_simulated=True)
    command = [sys.executable, "-m", "shardtui.engine", "why", encode_json(step).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.close()
        assert (process.wait(30), process.stdout.read()) == (1, b"")


def test_a_run_without_a_configuration_has_no_step() -> None:
    assert explained_step(RunState(preset="dp")) is None
