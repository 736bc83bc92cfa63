"""A run whose directory is removed, moved or replaced while it trains."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..conftest import SETTINGS, SHARDTUI, killed_after

SAYS = "the run's directory was removed or replaced"


def replace(path: Path) -> None:
    """By another run of the same name."""
    path.rename(path.with_name("moved"))
    path.mkdir()
    (path / "lock").touch()
    (path / "run.json").write_bytes(b"{}")


@pytest.mark.parametrize(
    ("change", "elsewhere"),
    [
        (shutil.rmtree, True),
        (replace, False),
        pytest.param(shutil.rmtree, False, marks=pytest.mark.slow),
        pytest.param(replace, True, marks=pytest.mark.slow),
    ],
)
def test_a_run_without_its_directory_ends(home: Path, change: Callable[[Path], None], elsewhere: bool) -> None:
    path, kept = home / "state/shardtui/runs/mine", home / "kept"
    process = subprocess.Popen(
        [
            *(*SHARDTUI, "train", "--json", "--run=mine", "--steps=10000000", *SETTINGS),
            *([f"--checkpoint-dir={kept}"] if elsewhere else []),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stderr
    events: list[dict[str, Any]] = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["type"] == "StepDone":
            break
    change(path)
    before = _names(path)
    pid = next(event["pid"] for event in events if event["type"] == "EngineStarted")
    with killed_after(240, pid):
        events += map(json.loads, process.stdout)
        errors = process.stderr.read()
        assert process.wait() == 1
    assert SAYS in errors
    failed, ended = events[-2:]
    assert (failed["type"], ended["type"]) == ("Failed", "RunEnded")
    assert not failed["refused"]
    step = next(event["step"] for event in reversed(events) if event["type"] == "StepDone")
    assert failed["problems"][0].endswith(f"the run ended after step {step:,}")
    assert _names(path) == before, "nothing is saved where the directory was"
    assert [path.name for path in kept.glob("mine/*")] == ([str(step)] if elsewhere else [])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _names(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*")) if path.exists() else []
