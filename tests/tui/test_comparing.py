"""Presets compared on a real engine, by the command and in the Compare view of a live run."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from shardtui.engine.spec.config import ModelConfig, TrainingConfig
from shardtui.engine.wire import run_directory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.state.run_state import Phase
from shardtui.tui.terminal.export import screen_text
from textual.pilot import Pilot

from ..conftest import PACED, SETTINGS, tiny_config
from ..schemas import checked
from .test_app import answer, shown, status, until
from .test_cli import run, started

FEW_FIT = ModelConfig(layers=2, embed=12, heads=3, mlp=64, vocab=256, vocab_rows=256, context=16)
"""A model that only dp, fsdp-1d, hsdp and the pitfalls fit, on eight devices and sequences of odd length."""


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def compared(*arguments: str, settings: Sequence[str] = PACED) -> subprocess.Popen[str]:
    return started("compare", *arguments, *settings)


@pytest.mark.slow
def test_compare_measures_presets_and_leaves_no_files(home: Path) -> None:
    (home / "wide.toml").write_text('[mesh]\ndata = -1\n[rules]\nlayers = "data"\n')
    (home / "mine.toml").write_text('[mesh]\ndata = -1\n[rules]\nbatch = "data"\nembed = "data"\n')
    presets = ["pp2", str(home / "wide.toml"), str(home / "mine.toml")]
    result = run("compare", *presets, "--steps=3", "--json", *SETTINGS, f"--data={__file__}")
    assert result.returncode == 1, "one could not be measured"
    board = checked("compare", result.stdout)
    assert (board["schema"], board["model"], len(board["devices"]), board["complete"]) == (4, "nano", 8, False)
    rows = {row["preset"]: row for row in board["rows"]}
    assert list(rows)[2] == "wide", "what was measured comes first"
    assert (rows["wide"]["verdict"], rows["wide"]["measured"], rows["wide"]["estimate"]) == ("infeasible", None, None)
    assert "layers 2 does not divide by 8" in rows["wide"]["problems"][0]
    times = [row["measured"]["step_seconds"] for row in board["rows"][:2]]
    assert times == sorted(times)
    assert board["recommendation"].startswith(f"{next(iter(rows))}: ")
    assert (rows["pp2"]["pipeline"]["stages"], rows["mine"]["pipeline"]) == (2, None)
    for name, mesh in (("pp2", {"data": 4, "pipeline": 2}), ("mine", {"data": 8})):
        row = rows[name]
        assert (row["mesh"], row["verdict"], row["problems"]) == (mesh, "fits", [])
        measured, compiled = row["measured"], row["compiled"]
        assert (measured["steps"], board["memory_source"]) == (3, "live arrays")
        assert measured["tokens_per_second"] == 8 * 16 / measured["step_seconds"]
        assert abs(measured["bytes_in_use"] / compiled["argument_bytes"] - 1) < 0.1
        assert compiled["bytes_sent"] == sum(flow["bytes_sent"] for flow in compiled["collectives"]) > 0
        assert row["estimate"]["argument_bytes"] == compiled["argument_bytes"]
    assert files(home / "state") == []


def test_data_that_cannot_be_read_are_named_once(home: Path) -> None:
    refused = run("compare", "tp", "--data=/dev/null", *SETTINGS)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("a character device, not a file") == 1
    assert files(home / "state") == []


@pytest.mark.slow
def test_presets_that_are_too_large_do_not_stop_the_comparison(home: Path) -> None:
    """The run cannot begin with the first preset, and the switch to the last one fails."""
    process = compared(
        "dp", "tp", "pitfall-first-dim", "--device-memory=590e3", "--steps=2", "--json", settings=SETTINGS
    )
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    rows = {row["preset"]: row for row in json.loads(output)["rows"]}
    assert [(name, row["verdict"]) for name, row in rows.items()] == [
        ("tp", "fits"),
        ("dp", "too large"),
        ("pitfall-first-dim", "too large"),
    ]
    for name in ("dp", "pitfall-first-dim"):
        assert rows[name]["problems"][0].startswith(f"{name}: a step needs 6")
        assert rows[name]["estimate"]["bytes_sent"] > 0
    assert rows["tp"]["measured"]["steps"] == 2
    assert files(home / "state") == []


@pytest.mark.slow
def test_a_killed_engine_is_replaced(home: Path) -> None:
    process = compared("dp", "tp", "--steps=100", "--json")
    next(line for line in process.stderr if "tp (1 of 2): " in line)
    (lock,) = (home / "state").rglob("lock")
    os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    rows = {row["preset"]: row for row in json.loads(output)["rows"]}
    assert "ended by SIGKILL" in rows["tp"]["problems"][0]
    assert (rows["tp"]["measured"], rows["dp"]["measured"]["steps"], rows["dp"]["problems"]) == (None, 100, [])
    assert f"its log is in {lock.parent}" in errors
    assert [folder.name for folder in (home / "state/shardtui/runs").iterdir()] == ["compare-1"]


@pytest.mark.slow
def test_an_interrupted_comparison_prints_what_was_measured(home: Path) -> None:
    process = compared("dp", "tp", "--steps=100000")
    next(line for line in process.stderr if "tp (1 of 2): " in line)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "✗ dp: not measured: interrupted" in output
    assert "\ntp: " in output, "the recommendation"
    assert files(home / "state") == []


@pytest.mark.slow
async def test_the_view_measures_a_live_run_and_returns_to_its_preset(home: Path) -> None:
    """Steps are long enough that a comparison is still running when a slow viewer attaches."""
    directory = run_directory.create(tiny_config(model=FEW_FIT, training=TrainingConfig(batch_size=16, seq_len=15)))

    def cells(app: ShardtuiApp, name: str) -> list[str]:
        return [str(cell) for cell in app.screen.query_one("DataTable").get_row(name)]

    async def measure(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        switches = len(app.state.switches)
        await pilot.press("m")
        await until(lambda: len(app.state.switches) > switches and app.state.is_comparing, "a switch")

    async with shown(directory, True, (140, 40)) as (app, pilot):
        await until(lambda: app.state.step >= 5, "steps")
        await pilot.press("6")
        await until(lambda: app.state.estimates, "the estimates")
        await until(
            lambda: app.screen.query("DataTable") and "≈" in "".join(cells(app, "hsdp")), "the estimates' figures"
        )
        assert "m Measure" in screen_text(app)
        await pilot.press("m")
        await until(lambda: "(1 of 3): 2" in screen_text(app) or app.state.switches, "the first switch")
        assert "esc Cancel" in screen_text(app)
        await pilot.press("1")
        await until(lambda: "comparing" in status(app), "the status line")
        await pilot.press("space")
        await until(lambda: app.state.phase is Phase.PAUSED, "the pause")
        await pilot.press("6", "space")
        comparison = app.state.comparison
        await until(lambda: comparison.is_over, "the end")
        assert (comparison.ended_by, app.state.preset) == (None, "dp")
        await until(lambda: "comparison done" in screen_text(app), "the end on screen")
        assert all("ms" in cells(app, name)[2] or "s" in cells(app, name)[2] for name in ("dp", "hsdp", "fsdp-1d"))
        assert "→ " in screen_text(app)
        assert app.screen.query_one("DataTable").max_scroll_x == 0, "no column is cut"
        await measure(app, pilot)
        await pilot.press("escape")
        await until(lambda: app.state.preset == "dp" and not app.state.is_comparing, "the preset from before")
        assert app.state.comparison.ended_by == "cancelled"
        await measure(app, pilot)
        await pilot.press("d")
    async with shown(directory) as (app, pilot):
        await until(lambda: app.state.preset == "dp" and not app.client.is_behind, "the run under its first preset")
        await pilot.press("6")
        await until(lambda: app.screen.query("DataTable") and app.screen.query_one("DataTable").row_count, "rows")
        await answer(app, pilot, "x")
        await until(lambda: app.state.phase is Phase.STOPPED, "the end")
        assert app.state.switches[-1].to_preset == "dp"
