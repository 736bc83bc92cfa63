"""The runs of several hosts, and what is said to be in trouble."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.base.directories import config_directory
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.events import Event
from shardtui.tui import runs_app
from shardtui.tui.cli.runs import FILE, configured_hosts
from shardtui.tui.runs_app import RunsApp
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_listing import Origin, listed, losses_of
from shardtui.tui.state.run_state import RunState
from shardtui.tui.state.run_summary import trouble_of
from shardtui.tui.terminal.export import screen_text

from ..conftest import tiny_config
from ..recorded import record, recorded_run, started, steps
from .test_app import until
from .test_remote_client import PROGRAM, ssh

__all__ = ["ssh"]
FAILED_SAVE = wire.CheckpointFailed(step=3, problems=["the disk is full"])
STALLED = wire.Stalled(seconds=30.0, where="batch (lm.py:27)")


@pytest.mark.parametrize(
    ("events", "trouble"),
    [
        ([steps(4, 2.0)], ""),
        ([steps(4, 2.0), STALLED], "stalled in batch (lm.py:27)"),
        ([STALLED, steps(4, 2.0)], ""),
        ([steps(4, 2.0, None)], "loss not finite"),
        ([FAILED_SAVE, steps(4, 2.0)], "checkpoint failed"),
        ([wire.EngineLost(process=0, reason="killed by SIGKILL")], "crashed"),
        ([wire.Failed(problems=["out of device memory: choose a preset"], refused=False)], "out of memory"),
        ([wire.Failed(problems=["no such file"], refused=True)], "failed"),
        ([STALLED, wire.EngineStopped(step=4, reason="stopped")], ""),
    ],
)
def test_what_needs_a_look_is_said(events: list[Event], trouble: str) -> None:
    assert trouble_after(*events, now=1100.0) == trouble


def trouble_after(*events: Event, now: float, **config: Any) -> str:
    state = RunState()
    begun = wire.TrainingStarted(preset="dp", time=1000.0)
    apply_all(state, [started(config=tiny_config(**config)), begun, *events])
    return trouble_of(state, now)


def test_a_checkpoint_is_late_after_two_and_a_half_intervals() -> None:
    every_minute = {"checkpoints": CheckpointConfig(every_minutes=1.0)}
    assert [trouble_after(now=now, **every_minute) for now in (1149.0, 1151.0)] == ["", "checkpoint late"]
    assert trouble_after(wire.Paused(step=1), now=1e6, **every_minute) == ""
    assert trouble_after(now=1e6, checkpoints=CheckpointConfig(every_minutes=None)) == ""


async def test_runs_of_several_hosts_are_listed_together_and_enter_chooses_one(home: Path, ssh: Path) -> None:
    recorded_run("old-1", steps(1300, 1.23456), wire.EngineStopped(step=1300, reason="stopped"))
    recorded_run("dead-1", steps(9, 2.0))
    app = RunsApp([Origin(""), Origin("tpu-vm"), Origin("gone")], PROGRAM, {}, problem="tpu-vm: it was renamed")
    async with app.run_test(size=(140, 30), notifications=True) as pilot:
        await until(lambda: "it was renamed" in screen_text(app), "the notice")
        await until(lambda: len(app.board.table.all_rows) == 5 and "no route" in screen_text(app), "the answers")
        rows = [" ".join(line.strip("│ ").split()) for line in screen_text(app).splitlines() if "│" in line]
        assert any(row.startswith("tpu-vm old-1") and "1,300 1.235" in row and "stopped" in row for row in rows)
        assert "gone ssh: no route to host" in rows
        await pilot.press("question_mark")
        await until(lambda: "those that train first" in screen_text(app), "the help")
        await pilot.press("escape")
        await until(lambda: app.screen is app.board, "the list again")
        app.board.table.select("tpu-vm:old-1")
        await pilot.press("enter")
    assert app.return_value == ("tpu-vm", "old-1")


async def test_marked_runs_of_any_host_are_drawn_over_one_another(home: Path, ssh: Path) -> None:
    recorded_run("old-1", steps(1300, 1.23456), wire.EngineStopped(step=1300, reason="stopped"))
    app = RunsApp([Origin(""), Origin("tpu-vm"), Origin("gone")], PROGRAM, {})
    async with app.run_test(size=(140, 30)) as pilot:
        await until(lambda: {":old-1", "tpu-vm:old-1"} <= set(app.board.table.keys), "the answers")
        await until(lambda: "no route" in screen_text(app), "the other answer")
        await until(lambda: "A old-1 1.235" in screen_text(app), "the run under the cursor")
        app.board.table.select("tpu-vm:old-1")
        await until(lambda: "A tpu-vm:old-1" in screen_text(app), "the other one")
        await pilot.press("space")
        app.board.table.select(":old-1")
        await pilot.press("space")
        await until(lambda: "A tpu-vm:old-1 1.235   B old-1 1.235" in screen_text(app), "both")
        assert app.board.letters == {"tpu-vm:old-1": "A", ":old-1": "B"}
        app.board.table.select("gone:")
        await pilot.press("space")
        app.board.table.select("tpu-vm:old-1")
        await pilot.press("space")
        await until(lambda: "tpu-vm:old-1 1.235" not in screen_text(app), "one")
        assert app.board.letters == {":old-1": "B"}


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
        await until(lambda: "its runs: " in screen_text(app), "why")


async def test_a_command_is_run_once_for_each_trouble_that_is_new(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_app, "ASK_SECONDS", 0.1)
    told = tmp_path / "told.jsonl"
    recorded_run("old-1", steps(9, 2.0))
    app = RunsApp([Origin("")], "", {}, f"cat >> {told}; echo >> {told}; echo no mail >&2; exit 3")
    async with app.run_test(size=(140, 30), notifications=True):
        await until(lambda: len(app.board.table.all_rows) == 1, "the first answer")
        record(recorded_run("new-1", steps(9, 2.0)), wire.Failed(problems=["out of device memory"], refused=False))
        await until(lambda: "--notify: exit code 3: no mail" in screen_text(app), "what the command said")
        await until(lambda: "here: new-1: out of memory" in screen_text(app), "the notice")
        await asyncio.sleep(0.5)
    (line,) = told.read_text().splitlines()
    found = json.loads(line)
    assert (found["host"], found["run"], found["trouble"]) == ("", "new-1", "out of memory")


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


def test_a_live_run_has_its_pace_and_when_it_was_active(home: Path) -> None:
    directory = recorded_run("old-1", steps(9, 2.0, seconds=0.5))
    with directory.hold():
        (run,) = listed().runs
    assert run.tokens_per_second and run.tokens_per_second > 0
    assert abs(run.active_at - time.time()) < 60
    (run,) = listed().runs
    assert (run.tokens_per_second, run.trouble) == (None, "crashed")
