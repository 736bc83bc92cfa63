"""The list of earlier runs, and that of several hosts: its figures, what is in trouble, what opens it, its keys."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base.directories import config_directory
from shardtui.engine.base.formatting import rough_seconds
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.config import CheckpointConfig, WatchedRun
from shardtui.engine.wire import event_log, run_directory
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.event_log import deciding_events
from shardtui.engine.wire.events import Event
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui import runs_app
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.cli import run as run_command
from shardtui.tui.cli.main import main
from shardtui.tui.cli.runs import FILE, configured_hosts
from shardtui.tui.runs_app import RunsApp
from shardtui.tui.screens.confirm import AskName, Confirm
from shardtui.tui.screens.runs import RunsScreen
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_listing import Origin, listed, losses_of
from shardtui.tui.state.run_state import Phase, RunState
from shardtui.tui.state.run_summary import summarise, trouble_of
from shardtui.tui.terminal.export import screen_text
from textual.pilot import Pilot

from ..conftest import least_config, tiny_config
from ..recorded import events_in, record, recorded_run, restored, started, steps, switched
from .test_app import shown, status, stop, until
from .test_remote_client import PROGRAM, ssh

__all__ = ["ssh"]

RESUME = "--resume=tiny-1"
FAILED_SAVE = wire.CheckpointFailed(step=3, problems=["the disk is full"])
OUT_OF_MEMORY = wire.Failed(problems=["out of device memory: choose a preset"], refused=False)
STALLED = wire.Stalled(seconds=30.0, where="batch (lm.py:27)")
STOPPED = wire.EngineStopped(step=1, reason="stopped")
EVENTS = st.one_of(
    st.just(started()),
    st.sampled_from(["dp", "tp"]).map(lambda preset: wire.TrainingStarted(preset=preset)),
    st.integers(1, 9).map(lambda step: steps(step, 2.0)),
    st.just(
        wire.MemoryMeasured(source="allocator", bytes_in_use=1, peak_bytes=None, limit_bytes=None, bytes_by_device={})
    ),
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
    stopped = wire.EngineStopped(step=2999, reason="stopped")
    directory = recorded_run("long", *(steps(step, 2.0) for step in range(5, 3000)), stopped)
    with directory.events.open("ab") as file:
        file.write(b'\n{"type":"Torn')
    decoded: list[bytes] = []
    decode = event_log._decoded
    monkeypatch.setattr(event_log, "_decoded", lambda line: decoded.append(line) or decode(line))
    monkeypatch.setattr(event_log, "BACKWARD_BYTES", at_a_time)
    summary = summarise(directory)
    assert (summary.step, summary.loss, summary.preset, summary.state) == (2999, 2.0, "dp", Phase.STOPPED)
    assert len(decoded) < 10


def test_a_summary_says_what_holds_the_run_and_its_best_held_out_loss(home: Path) -> None:
    directory = recorded_run("dead", steps(5, None))
    crashed = summarise(directory)
    assert (crashed.state, crashed.loss, crashed.pid, crashed.is_live) == (Phase.LOST, None, None, False)
    with directory.hold():
        live = summarise(directory)
    assert (live.state, live.pid, live.is_live) == (Phase.TRAINING, os.getpid(), True)
    fresh = summarise(run_directory.create(tiny_config(run="fresh")))
    assert (fresh.state, fresh.step, fresh.preset, fresh.best_held_out_loss) == (Phase.LOST, 0, "dp", None)
    losses = [wire.Evaluated(step=at, loss=loss, batches=1, seconds=0.1) for at, loss in enumerate((3.0, 2.5, 2.75), 1)]
    assert summarise(recorded_run("held", steps(3, 2.0), *losses, STOPPED)).best_held_out_loss == 2.5


def test_ages_have_one_unit() -> None:
    assert [rough_seconds(seconds) for seconds in (0, 59, 61, 7300, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


def no_new_run() -> RunDirectory:
    raise AssertionError("the user did not ask for it")


@asynccontextmanager
async def offered(
    new_run: Callable[[], RunDirectory] = no_new_run, size: tuple[int, int] = (80, 24)
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


def aged(*directories: RunDirectory) -> None:
    """Makes the runs older than one another: the first is the oldest."""
    for number, directory in enumerate(directories):
        os.utime(directory.events, (1e9 + number, 1e9 + number))


async def test_runs_are_listed_newest_first_below_new_run_and_enter_opens_one(home: Path) -> None:
    old = recorded_run("old-1")
    new = recorded_run("new-1", steps(1300, 1.23456), switched("dp", "fsdp"), STOPPED)
    dead = recorded_run("dead-1", steps(9, 2.0))
    aged(dead, old, new)
    async with offered() as (app, pilot, screen):
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
    async with offered() as (app, pilot, screen):
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
    async with offered() as (app, pilot, screen):
        await pilot.press("down")
        for name, is_done in (("taken", lambda: app._notifications), ("best", lambda: "best" in screen.table.runs)):
            assert first.path.is_dir()
            await pilot.press("n")
            await until(lambda: isinstance(app.screen, AskName) and app.screen.query("Input"), "the question")
            await pilot.press("ctrl+u", *name, "enter")
            await until(is_done, name)
        assert screen.table.run == run_directory.find("best") and list(screen.table.runs) == ["best", "taken"]
        assert screen.table.summary and screen.table.summary.step == 5
        await pilot.press("q")


async def test_a_run_that_is_renamed_stays_unreadable_and_can_be_deleted(home: Path) -> None:
    directory = recorded_run("broken")
    directory.events.unlink()
    directory.events.mkdir()
    async with offered() as (app, pilot, screen):
        await pilot.press("down", "n")
        await until(lambda: isinstance(app.screen, AskName) and app.screen.query("Input"), "the question")
        await pilot.press("ctrl+u", *"best", "enter")
        await until(lambda: "best" in screen.table.runs, "the name")
        assert "✗ unreadable" in screen_text(app)
        await question(app, pilot)


async def test_a_live_run_is_neither_deleted_nor_resumed(home: Path) -> None:
    live, starting = recorded_run("live", steps(5, 2.0)), recorded_run("starting")
    aged(starting, live)
    with live.hold():
        async with offered() as (app, pilot, screen):
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
    async with offered() as (app, pilot, screen):
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
    async with offered(size=(300, 24)) as (app, pilot, screen):
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
    [("", True, True), ("", False, False), ("run", True, False), ("--devices=8", True, False), (RESUME, True, False)],
)
def test_only_the_bare_command_offers_earlier_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, has_runs: bool, offers: bool
) -> None:
    if has_runs:
        recorded_run()
    opened: list[dict[str, object]] = []
    monkeypatch.setattr(run_command, "require_terminal", lambda _: None)
    monkeypatch.setattr(run_command, "show", lambda _, keymap, **options: opened.append(options) or 0)
    assert main(arguments.split()) == 0
    assert [list(options) for options in opened] == [["new_run"] if offers else ["restart"]]
    is_new = "nano-1" in (directory.name for directory in run_directory.all_runs())
    assert is_new is (not offers and arguments != RESUME)


async def test_a_question_mark_explains_the_keys_of_the_list(home: Path) -> None:
    recorded_run("old-1", STOPPED)
    async with offered(size=(140, 40)) as (app, pilot, screen):
        await pilot.press("down", "question_mark")
        await until(lambda: "new engine process" in screen_text(app), "the help")
        assert {"Resume", "Rename", "Delete", "Filter"} <= {text for _, text in app.screen.keys}  # type: ignore[attr-defined]
        await pilot.press("escape")
        await until(lambda: app.screen is screen, "the list again")


def trouble_after(*events: Event, now: float = 1100.0, every_minutes: float | None = None) -> str:
    state = RunState()
    begun = wire.TrainingStarted(preset="dp", time=1000.0)
    config = tiny_config(checkpoints=CheckpointConfig(every_minutes=every_minutes))
    apply_all(state, [started(config=config), begun, *events])
    return trouble_of(state, now)


@pytest.mark.parametrize(
    ("events", "trouble"),
    [
        ([steps(4, 2.0)], ""),
        ([steps(4, 2.0), STALLED], "stalled in batch (lm.py:27)"),
        ([STALLED, steps(4, 2.0)], ""),
        ([steps(4, 2.0, None, nonfinite=["losses"])], "loss not finite"),
        ([steps(4, 2.0, None, nonfinite=["losses"]), restored(3)], ""),
        ([steps(500, 3.0, 2.0), restored(400)], ""),  # of a long history, which is not read to its begin
        ([steps(4, None, None)], ""),  # a program without a loss
        ([FAILED_SAVE, steps(4, 2.0)], "checkpoint failed"),
        ([wire.EngineLost(process=0, reason="killed by SIGKILL")], "crashed"),
        ([OUT_OF_MEMORY], "out of memory"),
        ([wire.Failed(problems=["no such file"], refused=True)], "failed"),
        ([STALLED, wire.EngineStopped(step=4, reason="stopped")], ""),
    ],
)
def test_what_needs_a_look_is_said(events: list[Event], trouble: str) -> None:
    assert trouble_after(*events) == trouble


def test_a_checkpoint_is_late_after_two_and_a_half_intervals() -> None:
    assert [trouble_after(now=now, every_minutes=1.0) for now in (1149.0, 1151.0)] == ["", "checkpoint late"]
    assert trouble_after(wire.Paused(step=1), now=1e6, every_minutes=1.0) == ""
    assert trouble_after(now=1e6) == ""


async def test_runs_of_several_hosts_are_listed_and_drawn_together_and_enter_chooses_one(home: Path, ssh: Path) -> None:
    recorded_run("old-1", steps(1300, 1.23456), wire.EngineStopped(step=1300, reason="stopped"))
    recorded_run("dead-1", steps(9, 2.0))
    app = RunsApp([Origin(""), Origin("tpu-vm"), Origin("gone")], PROGRAM, {}, problem="tpu-vm: it was renamed")
    async with app.run_test(size=(140, 30), notifications=True) as pilot:
        await shows(app, "it was renamed")
        await until(lambda: len(app.board.table.all_rows) == 5 and "no route" in screen_text(app), "the answers")
        rows = [" ".join(line.strip("│ ").split()) for line in screen_text(app).splitlines() if "│" in line]
        assert any(row.startswith("tpu-vm old-1") and "1,300 1.235" in row and "stopped" in row for row in rows)
        assert "gone ssh: no route to host" in rows
        await pilot.press("question_mark")
        await shows(app, "those that train first")
        await pilot.press("escape")
        await until(lambda: app.screen is app.board, "the list again")
        for run in ("tpu-vm:old-1", ":old-1"):
            app.board.table.select(run)
            await shows(app, f"A {run.removeprefix(':')} 1.235")
        await pilot.press("space")
        app.board.table.select("tpu-vm:old-1")
        await pilot.press("space")
        await shows(app, "A old-1 1.235   B tpu-vm:old-1 1.235")
        assert app.board.letters == {":old-1": "A", "tpu-vm:old-1": "B"}
        app.board.table.select("gone:")
        await pilot.press("space")
        app.board.table.select(":old-1")
        await pilot.press("space")
        await until(lambda: app.board.letters == {"tpu-vm:old-1": "B"}, "one")
        app.board.table.select("tpu-vm:old-1")
        await pilot.press("enter")
    assert app.return_value == ("tpu-vm", "old-1")


async def shows(app: RunsApp, text: str) -> None:
    await until(lambda: text in screen_text(app), text)


def test_a_curve_has_means_of_equal_parts_and_no_number_where_none_is_finite(home: Path) -> None:
    recorded_run("long", steps(640, *map(float, range(640))))
    recorded_run("short", steps(3, 2.0, None, 1.0), is_finite=False)
    long, short = listed().runs
    assert (long.curve[0], long.curve[63], len(long.curve)) == (4.5, 634.5, 64)
    assert short.curve == [2.0, None, 1.0]
    found = losses_of(long)
    assert (found.latest(639), found.latest(640)) == ((630, 624.5), (640, 639.0)), "at last the loss that its row shows"


async def test_an_answer_of_another_version_is_said_in_its_row(home: Path, ssh: Path) -> None:
    app = RunsApp([Origin("tpu-vm")], "echo '{\"runs\": 3}' #", {})
    async with app.run_test(size=(140, 30)):
        await shows(app, "its runs: ")


async def test_a_command_is_run_once_for_each_trouble_that_is_new(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_app, "ASK_SECONDS", 0.1)
    told = tmp_path / "told.jsonl"
    recorded_run("old-1", steps(9, 2.0))
    app = RunsApp([Origin("")], "", {}, f"cat >> {told}; echo >> {told}; echo no mail >&2; exit 3")
    async with app.run_test(size=(140, 30), notifications=True):
        await until(lambda: len(app.board.table.all_rows) == 1, "the first answer")
        record(recorded_run("new-1", steps(9, 2.0)), OUT_OF_MEMORY)
        await shows(app, "--notify: exit code 3: no mail")
        await shows(app, "here: new-1: out of memory")
        await asyncio.sleep(0.5)
    (line,) = told.read_text().splitlines()
    found = json.loads(line)
    assert (found["host"], found["run"], found["trouble"]) == ("", "new-1", "out of memory")


def test_the_first_answer_of_a_host_tells_of_no_trouble_even_if_it_comes_late(home: Path) -> None:
    recorded_run("dead-1", steps(9, 2.0))
    first = listed().runs
    origin = Origin("tpu-vm", problem="no route to host")
    assert origin.take(first) == [] and not origin.problem
    recorded_run("dead-2", steps(9, 2.0))
    assert [run.run for run in origin.take(listed().runs)] == ["dead-2"]
    assert origin.take(listed().runs) == []


def test_hosts_may_stand_in_a_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert configured_hosts() == []
    file = config_directory() / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('hosts = ["vm-1", "vm-2"]')
    assert configured_hosts() == ["vm-1", "vm-2"]
    file.write_text("hosts = 3")
    with pytest.raises(UserError, match=r"hosts.toml: Expected `array`.*: write hosts = "):
        configured_hosts()
    file.write_text('host = ["vm-1"]')
    with pytest.raises(UserError, match=r"hosts.toml: Object contains unknown field `host`: write hosts = "):
        configured_hosts()


def test_a_live_run_has_its_pace_and_when_it_was_active(home: Path) -> None:
    directory = recorded_run("old-1", steps(9, 2.0, seconds=0.5))
    with directory.hold():
        (run,) = listed().runs
    assert run.tokens_per_second and run.tokens_per_second > 0
    assert abs(run.active_at - time.time()) < 60
    (run,) = listed().runs
    assert (run.tokens_per_second, run.trouble) == (None, "crashed")
