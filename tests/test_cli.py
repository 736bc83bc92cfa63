"""The command line as a user has it: a process, its output, its exit code, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import TINY

SHARDTUI = [sys.executable, "-m", "shardtui.tui.cli"]
SETTINGS = [f"--set={setting}" for setting in TINY]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHARDTUI, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


def train(*arguments: str, settings: list[str] = SETTINGS) -> list[dict[str, Any]]:
    result = run("train", "--json", *settings, *arguments)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events if event["type"] == "StepDone"]


def test_switches_change_no_loss(home: Path) -> None:
    """The short form of tests/long/losses.py."""
    plain = train("--steps=24")
    switched = train("--steps=24", "--switch=6:fsdp", "--switch=12:tp", "--switch=18:hsdp")
    assert [event["step"] for event in switched if event["type"] == "StepDone"] == list(range(1, 25))
    assert losses(switched) == pytest.approx(losses(plain), rel=1e-5)
    assert losses(plain)[-1] < losses(plain)[0]
    receipts = [event for event in switched if event["type"] == "Switched"]
    assert [(r["from_preset"], r["to_preset"], r["step"]) for r in receipts] == [
        ("dp", "fsdp", 6),
        ("fsdp", "tp", 12),
        ("tp", "hsdp", 18),
    ]
    assert all(r["digests_equal"] and r["compile_seconds"] > 0 and r["stall_seconds"] > 0 for r in receipts)
    assert [r["bytes_moved"] > 0 for r in receipts] == [False, True, True]
    assert switched[-1]["type"] == "EngineStopped"
    assert [event["seq"] for event in plain] == sorted(event["seq"] for event in plain)


def test_a_run_is_reproducible_and_follows_its_seed(home: Path) -> None:
    first, again, other = (losses(train("--steps=4", f"--seed={seed}")) for seed in (1, 1, 2))
    assert first == again != other


def test_what_a_run_leaves(home: Path) -> None:
    train("--steps=3", "--run=mine")
    folder = home / "state/shardtui/runs/mine"
    assert {path.name for path in folder.iterdir()} == {"run.json", "events.jsonl", "engine.log", "lock"}
    listing = json.loads(run("ls", "--json").stdout)
    assert [(r["run"], r["state"], r["step"]) for r in listing["runs"]] == [("mine", "stopped", 3)]
    assert "mine" in run("ls").stdout
    stopped = run("stop", "mine")
    assert (stopped.returncode, stopped.stdout) == (0, "run mine has ended already\n")


def test_progress_for_people_goes_to_stderr(home: Path) -> None:
    result = run("train", *SETTINGS, "--steps=3", "--switch=1:tp")
    assert result.returncode == 0
    assert "training under dp" in result.stderr
    assert "all 52 digests equal" in result.stderr
    assert "3 steps" in result.stdout


def test_a_switch_that_cannot_be_is_told_and_training_goes_on(home: Path) -> None:
    presets = home / "config/shardtui/presets/parallelism"
    presets.mkdir(parents=True)
    (presets / "wide.toml").write_text('[mesh]\ndata = -1\n[rules]\nlayers = "data"\n')
    result = run("train", *SETTINGS, "--json", "--steps=4", "--switch=2:wide")
    assert result.returncode == 2, "a scheduled switch is checked before the run begins"
    assert "layers: rule → data (8): layers 2 does not divide by 8: make it 8" in result.stderr


def test_presets_as_json(home: Path) -> None:
    listing = json.loads(run("presets", "--json").stdout)
    assert (listing["schema"], listing["devices"]) == (1, 8)
    meshes = {preset["name"]: list(preset["mesh"].values()) for preset in listing["presets"]}
    assert [meshes[name] for name in ("dp", "dp-tp2", "dp-tp4", "tp")] == [[8, 1], [4, 2], [2, 4], [1, 8]]
    assert all(preset["fits"] for preset in listing["presets"])
    gpt2 = json.loads(run("presets", "--json", "--model=gpt2").stdout)
    tp = next(preset for preset in gpt2["presets"] if preset["name"] == "tp")
    assert (tp["fits"], tp["problems"]) == (
        False,
        [
            "tp: blocks.attention.out.kernel: heads: rule → model (8): heads 12 does not divide by 8: "
            "make it 8 or 16, or split it otherwise"
        ],
    )


def test_interrupting_stops_the_engine_after_its_step(home: Path) -> None:
    process = subprocess.Popen(
        [*SHARDTUI, "train", *SETTINGS, "--steps=1000000", "--run=long", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    for line in process.stdout:
        if json.loads(line)["type"] == "StepDone":
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    last = json.loads(output.splitlines()[-1])
    assert (last["type"], last["reason"]) == ("EngineStopped", "stopped")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--steps=-1"], "--steps -1: at least 1"),
        (["train", "--steps=3", "--preset=nope"], "preset nope: no such preset: choose from dp"),
        (["train", "--steps=3", "--switch=1:nope"], "preset nope: no such preset"),
        (["train", "--steps=3", "--switch=9:tp"], "--switch 9:tp: the step lies outside 1…2"),
        (["train", "--steps=3", "--switch=1:tp", "--switch=1:dp"], "another switch falls on that step"),
        (["train", "--steps=3", "--switch=tp"], "'tp' is not STEP:PRESET"),
        (["train", "--steps=3", "--model=nope"], "--model nope: no such model"),
        (["train", "--steps=3", "--set=layer=3"], "not KEY=VALUE with a known key: layers"),
        (["train", "--steps=3", "--set=layers=many"], "Expected `int`, got `str` - at `$.model.layers`"),
        (["train", "--steps=3", "--seq-len=500"], "--seq-len 500 is longer than the model's context of 128"),
        (["train", "--steps=3", "--run=../x"], "a name is 1 to 64"),
        (["train", "--steps=3", "--data=/nowhere"], "--data /nowhere: no such file or directory"),
        (["train", "--steps=3", "--data=/dev/null"], "--data /dev/null: the file is empty"),
        (["train", "--steps=3", f"--data={sys.executable}"], "the file is not text"),
        (["train", "--steps=3", "--batch-size=12"], "batch 12 does not divide by 8"),
        (["train", "--steps=3", "--devices=7"], "batch 16 does not divide by 7: make it 14 or 21"),
        (["train", "--steps=3", "--devices=7", "--preset=dp-tp2"], "needs a multiple of 2 devices, 7 found"),
        (["train", "--steps=3", "--platform=abacus"], "abacus"),
        (["attach", "nope"], "run nope: there is none"),
        (["attach"], "no run is going on"),
        (["stop", "nope"], "run nope: there is none"),
        ([], "the UI needs a terminal"),
        (["fly"], "unrecognized arguments: fly"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gives_one_message_and_leaves_nothing(home: Path, arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.returncode in (1, 2)
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert list((home / "state").rglob("*.json*")) == []


def test_all_problems_at_once(home: Path) -> None:
    result = run("train", "--steps=0", "--preset=nope", "--batch-size=0", "--seed=-1", "--devices=0")
    assert result.stderr.count("shardtui: ") == 5
    short = home / "short"
    short.write_text("too short")
    result = run("train", "--steps=3", "--batch-size=12", f"--data={short}")
    assert "does not divide" in result.stderr
    assert "9 bytes are shorter than one sequence of 128 + 1" in result.stderr


def test_no_permission_in_the_state_directory(home: Path) -> None:
    result = run("train", "--steps=3", XDG_STATE_HOME="/proc")
    assert result.returncode == 2
    assert "cannot be written" in result.stderr
    assert "set XDG_STATE_HOME" in result.stderr


def test_a_runtime_directory_that_is_not_ours_alone(home: Path) -> None:
    (home / "open").mkdir(mode=0o755)
    result = run("train", "--steps=3", SHARDTUI_RUNTIME_DIR=str(home / "open"))
    assert result.returncode == 2
    assert "not a directory that only you can enter" in result.stderr
    assert not (home / "state").exists()


def test_an_engine_that_is_killed_is_a_message(home: Path) -> None:
    process = subprocess.Popen(
        [*SHARDTUI, "train", *SETTINGS, "--steps=1000000", "--run=doomed"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lock = home / "state/shardtui/runs/doomed/lock"
    while not lock.exists() or not lock.read_text().strip():
        time.sleep(0.05)
    os.kill(int(lock.read_text()), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "ended by SIGKILL" in errors
    assert "Traceback" not in errors
