"""Two real processes profile the same steps: one breakdown has the devices of both."""

import os
import signal
from pathlib import Path

import pytest

from ..conftest import SETTINGS
from ..processes import awaited
from .test_hosts import Engines, coordinator, engines, history, named, pair, train

__all__ = ["coordinator", "engines"]


@pytest.mark.slow
def test_one_breakdown_has_the_devices_of_both_processes(home: Path) -> None:
    events = train(*SETTINGS, "--preset=fsdp-tp2", "--processes=2", "--steps=8", "--profile=3")
    (profiled,) = named(events, "Profiled")
    breakdown = profiled["breakdown"]
    assert breakdown, profiled["problem"]
    (ready,) = named(events, "EngineReady")
    assert [device["device"] for device in breakdown["devices"]] == [device["id"] for device in ready["devices"]]
    assert (breakdown["processes"], breakdown["steps"]) == (2, 3)
    assert 0 < breakdown["clock_error_seconds"] < breakdown["step_seconds"]
    for device in breakdown["devices"]:
        assert sum(device["seconds"]) == pytest.approx(breakdown["step_seconds"], rel=1e-3)
    assert breakdown["step_seconds"] == pytest.approx(breakdown["clock_seconds"], rel=0.2), "the error of the clocks"
    said = {each["name"]: each["count"] for each in named(events, "PresetCompiled")[0]["collectives"]}
    assert {each["name"]: each["count"] for each in breakdown["collectives"]} == said
    waited = {wait["device"] for wait in breakdown["waits"]}
    assert len(waited) > 4, "each process has four"
    assert len(breakdown["timeline"]["devices"]) == 8


@pytest.mark.slow
def test_training_continues_if_one_process_cannot_trace_until_a_signal_to_any_host_saves_and_ends_all(
    home: Path, engines: Engines, coordinator: str
) -> None:
    both = pair(engines, coordinator, "--profile=2")
    blocked = home / "state/shardtui/runs/hosts/profile"
    awaited(lambda: named(history(home, "hosts"), "EngineReady"))
    blocked.mkdir()
    (blocked / "process-1").write_text("a file where a directory has to be")
    (failed,) = awaited(lambda: named(history(home, "hosts"), "ProfileFailed"))
    assert "process 1" in failed["problems"][0]
    before = named(history(home, "hosts"), "StepsDone")[-1]["step"]
    awaited(lambda: named(history(home, "hosts"), "StepsDone")[-1]["step"] > before)
    os.kill(both[1].pid, signal.SIGTERM)
    assert [engine.wait(timeout=240) for engine in both] == [0, 0]
    events = history(home, "hosts")
    assert events[-1]["type"] == "EngineStopped"
    assert named(events, "CheckpointSaved")[-1]["step"] == events[-1]["step"]
