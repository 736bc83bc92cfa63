"""The list of earlier runs: its figures, what opens it, and its keys."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base.formatting import rough_seconds
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.config import CheckpointConfig, WatchedRun
from shardtui.engine.wire import event_log, run_directory
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.event_log import deciding_events
from shardtui.engine.wire.events import Event
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.cli import run as run_command
from shardtui.tui.cli.main import main
from shardtui.tui.screens.confirm import AskName, Confirm
from shardtui.tui.screens.runs import RunsScreen
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import Phase, RunState
from shardtui.tui.state.run_summary import summarise
from shardtui.tui.terminal.export import screen_text
from textual.pilot import Pilot

from ..conftest import least_config, tiny_config
from ..recorded import events_in, record, recorded_run, restored, started, steps, switched
from .test_app import shown, status, stop, until

STOPPED = wire.EngineStopped(step=1, reason="stopped")
EVENTS = st.one_of(
    st.just(started()),
    st.sampled_from(["dp", "tp"]).map(lambda preset: wire.TrainingStarted(preset=preset)),
    st.integers(1, 9).map(lambda step: steps(step, 2.0)),
    st.just(wire.MemoryMeasured(source="allocator", bytes_in_use=1, peak_bytes=None, limit_bytes=None)),
    st.just(wire.Paused(step=1)),
    st.just(wire.Resumed(step=1)),
    st.just(switched("dp", "fsdp")),
    st.integers(1, 9).map(restored),
    st.just(STOPPED),
    st.just(wire.Failed(problems=["no memory"], refused=False)),
)


@given(st.lists(EVENTS, max_size=12))
def test_the_deciding_events_lead_to_the_same_state_as_all_events(tmp_path: Path, events: list[Event]) -> None:
    directory = RunDirectory(tmp_path)
    record(directory, *events)
    every, deciding = RunState(), RunState()
    apply_all(every, events_in(directory.events))
    apply_all(deciding, deciding_events(directory.events))
    assert (deciding.phase, deciding.preset, deciding.step) == (every.phase, every.preset, every.step)
    if events and isinstance(events[-1], wire.StepsDone):
        assert deciding.losses[-1] == every.losses[-1]


@pytest.mark.parametrize("at_a_time", [7, 64, 1 << 20])
def test_a_long_history_is_not_decoded(home: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    directory = recorded_run(
        "long", *(steps(step, 2.0) for step in range(5, 3000)), wire.EngineStopped(step=2999, reason="stopped")
    )
    with directory.events.open("ab") as file:
        file.write(b'\n{"type":"Torn')
    decoded: list[bytes] = []
    decode = event_log._decoded
    monkeypatch.setattr(event_log, "_decoded", lambda line: decoded.append(line) or decode(line))
    monkeypatch.setattr(event_log, "BACKWARD_BYTES", at_a_time)
    summary = summarise(directory)
    assert (summary.step, summary.loss, summary.preset, summary.state) == (2999, 2.0, "dp", Phase.STOPPED)
    assert len(decoded) < 10


def test_a_summary_says_what_holds_the_run(home: Path) -> None:
    directory = recorded_run("dead", steps(5, None))
    crashed = summarise(directory)
    assert (crashed.state, crashed.loss, crashed.pid, crashed.is_live) == (Phase.LOST, None, None, False)
    with directory.hold():
        live = summarise(directory)
    assert (live.state, live.pid, live.is_live) == (Phase.TRAINING, os.getpid(), True)
    fresh = summarise(run_directory.create(tiny_config(run="fresh")))
    assert (fresh.state, fresh.step, fresh.preset) == (Phase.LOST, 0, "dp")


def test_ages_have_one_unit() -> None:
    assert [rough_seconds(seconds) for seconds in (0, 59, 61, 7300, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


@asynccontextmanager
async def offered(
    new_run: Callable[[], RunDirectory], size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[ShardtuiApp, Pilot[None], RunsScreen]]:
    """Opens the UI as `shardtui` alone does; yields it once all runs are read."""
    async with shown(run_directory.all_runs()[-1], size=size, new_run=new_run) as (app, pilot):
        await until(lambda: isinstance(app.screen, RunsScreen) and app.screen.query("RunTable"), "the list")
        screen = app.screen
        listed = screen.table
        await until(lambda: len(listed.summaries) + len(listed.problems) == len(listed.runs), "the figures")
        await pilot.pause()
        yield app, pilot, screen


async def question(app: ShardtuiApp, pilot: Pilot[None]) -> str:
    """Presses `D`. Returns what it asks."""
    await pilot.press("D")
    await until(lambda: isinstance(app.screen, Confirm) and app.screen.query("#yes"), "the question")
    return " ".join(app.screen.question.split())


def no_new_run() -> RunDirectory:
    raise AssertionError("the user did not ask for it")


def aged(*directories: RunDirectory) -> None:
    """Makes the runs older than one another: the first is the oldest."""
    for number, directory in enumerate(directories):
        os.utime(directory.events, (1e9 + number, 1e9 + number))


async def test_runs_are_listed_newest_first_below_new_run_and_enter_opens_one(home: Path) -> None:
    old = recorded_run("old-1")
    new = recorded_run("new-1", steps(1300, 1.23456), switched("dp", "fsdp"), STOPPED)
    dead = recorded_run("dead-1", steps(9, 2.0))
    aged(dead, old, new)
    async with offered(no_new_run) as (app, pilot, screen):
        rows = [" ".join(line.strip("│ ").split()) for line in screen_text(app).splitlines() if "│" in line]
        assert rows[1::-1] == ["new run", "run age model preset steps loss size state"]
        assert [row.split()[0] for row in rows[2:5]] == ["new-1", "old-1", "dead-1"]
        assert " d nano fsdp 1,300 1.235 " in rows[2] and rows[2].endswith(" kB ■ stopped")
        assert rows[4].endswith("✗ crashed")
        assert screen.table.run is None
        await pilot.press("down", "down", "enter")
        await until(lambda: app.state.phase is Phase.STOPPED, "the history")
        await until(lambda: "■ stopped" in status(app), "the view")
        assert app.state.step == 4
        await pilot.press("d")
    assert "run old-1 has ended after step 4" in app.lifecycle.exit_lines()[0]


async def test_d_deletes_a_run_once_it_is_confirmed(home: Path) -> None:
    kept, unwanted = recorded_run("kept"), recorded_run("unwanted")
    aged(kept, unwanted)
    (unwanted.path / "checkpoints").mkdir()
    async with offered(no_new_run) as (app, pilot, screen):
        await pilot.press("D")
        assert app.screen is screen, "nothing to delete at `new run`"
        await pilot.press("down")
        asked = await question(app, pilot)
        assert "Delete run unwanted, with its events, log and checkpoints?" in asked
        await pilot.press("n")
        await until(lambda: app.screen is screen, "the list")
        assert unwanted.path.is_dir()
        assert await question(app, pilot) == asked
        await pilot.press("y")
        await until(lambda: not unwanted.path.exists(), "the deletion")
        await until(lambda: list(screen.table.runs) == ["kept"], "the row's end")
        assert screen.table.run == kept
        await pilot.press("q")
    assert kept.events.exists()


async def test_n_renames_a_run(home: Path) -> None:
    first, taken = recorded_run("first", steps(5, 2.0)), recorded_run("taken")
    aged(taken, first)
    async with offered(no_new_run) as (app, pilot, screen):
        await pilot.press("down", "n")
        await until(lambda: isinstance(app.screen, AskName) and app.screen.query("Input"), "the question")
        await pilot.press("ctrl+u", *"taken", "enter")
        await until(lambda: app._notifications, "the warning")
        assert first.path.is_dir()
        await pilot.press("n")
        await until(lambda: isinstance(app.screen, AskName) and app.screen.query("Input"), "the question")
        await pilot.press("ctrl+u", *"best", "enter")
        await until(lambda: "best" in screen.table.runs, "the new name")
        assert screen.table.run == run_directory.find("best") and list(screen.table.runs) == ["best", "taken"]
        assert screen.table.summary and screen.table.summary.step == 5
        await pilot.press("q")


def test_the_best_loss_of_held_out_data_is_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [
        wire.Evaluated(step=step, loss=loss, batches=1, seconds=0.1) for step, loss in ((1, 3.0), (2, 2.5), (3, 2.75))
    ]
    assert summarise(recorded_run("held", steps(3, 2.0), *losses, STOPPED)).best_held_out_loss == 2.5
    assert summarise(recorded_run("none", steps(3, 2.0))).best_held_out_loss is None


async def test_a_live_run_is_neither_deleted_nor_resumed(home: Path) -> None:
    live, starting = recorded_run("live", steps(5, 2.0)), recorded_run("starting")
    aged(starting, live)
    with live.hold():
        async with offered(no_new_run) as (app, pilot, screen):
            await pilot.press("down", "D", "r")
            assert app.screen is screen
            assert "now" in screen_text(app)
            await pilot.press("down")
            await question(app, pilot)
            with starting.hold():  # an engine starts before the answer
                await pilot.press("y")
                await until(lambda: app._notifications, "the warning")
            assert starting.path.is_dir() and live.path.is_dir()


async def test_checkpoints_elsewhere_stay_and_an_external_loop_is_not_resumed(home: Path) -> None:
    about = WatchedRun(run="loop", model_name="mine", preset="own")
    loop = run_directory.create(about)
    record(loop, started(config=None, watched=about), STOPPED)
    far = run_directory.create(tiny_config(run="far", checkpoints=CheckpointConfig(directory="gs://bucket")))
    record(far, STOPPED)
    aged(loop, far)
    async with offered(no_new_run) as (app, pilot, screen):
        await pilot.press("down")
        assert "Its checkpoints in gs://bucket/far stay." in await question(app, pilot)
        await pilot.press("n")
        await until(lambda: app.screen is screen, "the list")
        await pilot.press("down", "r")
        assert (app.screen, screen.table.run) == (screen, loop)
        await pilot.press("escape")
    assert (app.return_code, app.lifecycle.exit_lines(), far.path.is_dir()) == (0, [], True)


async def test_a_run_that_cannot_be_read_says_why_and_can_be_deleted(home: Path) -> None:
    directory = recorded_run("broken")
    (directory.path / "run.json").write_text("{")
    async with offered(no_new_run, size=(300, 24)) as (app, pilot, screen):
        assert "cannot be read: " in screen.table.problems["broken"]
        await pilot.press("down", "enter")
        assert app.screen is screen
        assert app._notifications
        await question(app, pilot)
        await pilot.press("y")
        await until(lambda: not directory.path.exists() and screen.table.run is None, "the deletion")


async def test_a_new_run_that_is_invalid_exits_with_the_reason(home: Path) -> None:
    recorded_run()

    def refuse() -> RunDirectory:
        raise UserError("no room for a run")

    async with offered(refuse) as (app, pilot, _):
        await pilot.press("enter")
        await until(lambda: app.return_code == 2, "the exit")
    assert app.lifecycle.exit_lines() == ["shardtui: no room for a run"]


async def test_enter_starts_a_new_run_and_r_resumes_it(home: Path) -> None:
    recorded_run()
    reached = 1
    for new_run, keys in ((lambda: run_directory.create(least_config(run="tiny-2")), "enter"), (no_new_run, "down r")):
        async with offered(new_run) as (app, pilot, _):
            await pilot.press(*keys.split())
            await until(lambda app=app, reached=reached: app.state.step > reached, "steps")
            assert app.client.directory.name == "tiny-2"
            await stop(app)
            assert app.state.phase is Phase.STOPPED
            await app.client.wait_for_exit()
            reached = app.state.step


@pytest.mark.parametrize(
    ("arguments", "has_runs", "offers"),
    [
        ([], True, True),
        ([], False, False),
        (["run"], True, False),
        (["--devices=8"], True, False),
        (["--resume=tiny-1"], True, False),
    ],
)
def test_only_the_bare_command_offers_earlier_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], has_runs: bool, offers: bool
) -> None:
    if has_runs:
        recorded_run()
    opened: list[dict[str, object]] = []
    monkeypatch.setattr(run_command, "require_terminal", lambda _: None)
    monkeypatch.setattr(run_command, "show", lambda _, keymap, **options: opened.append(options) or 0)
    assert main(arguments) == 0
    assert [list(options) for options in opened] == [["new_run"] if offers else ["starts", "restart"]]
    is_new = "nano-1" in (directory.name for directory in run_directory.all_runs())
    assert is_new is (not offers and arguments != ["--resume=tiny-1"])


async def test_a_question_mark_explains_the_keys_of_the_list(home: Path) -> None:
    recorded_run("old-1", STOPPED)
    async with offered(no_new_run, size=(140, 40)) as (app, pilot, screen):
        await pilot.press("down", "question_mark")
        await until(lambda: "new engine process" in screen_text(app), "the help")
        assert {"Resume", "Rename", "Delete", "Filter"} <= {text for _, text in app.screen.keys}  # type: ignore[attr-defined]
        await pilot.press("escape")
        await until(lambda: app.screen is screen, "the list again")
