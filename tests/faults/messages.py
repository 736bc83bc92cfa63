"""Every kind of fault ends in one message that says what happened and what to do, never in a traceback."""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import InspectPreset, SaveCheckpoint, SwitchPreset

from ..conftest import SETTINGS, SHARDTUI, TINY
from .launched import Finished, Launched, limit_memory, mounted, printed, shardtui
from .row import NotRun, Row, tried

LARGE = [f"--set={setting}" for setting in ("layers=2", "embed=512", "heads=8", "mlp=2048", *TINY[4:])]
"""Settings for 78 MB of state, which dp holds on each of eight devices."""
STEP = 6
"""Step of the base run's last checkpoint; it has 2 and 4 as well."""


def run(times: int) -> list[Row]:
    """Injects each kind of fault once, whatever `times`."""
    folder = Path("messages").absolute()
    folder.mkdir()
    text = "What was split over eight devices comes together on one, and nothing of it is lost. " * 99
    (folder / "text").write_text(text)
    base = (f"--data={folder}/text", "--run=base", f"--steps={STEP}", "--checkpoint-every=2")
    _message(_train(*base, *SETTINGS), 0)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda kind: _row(kind, folder), KINDS))


def _row(kind: Callable[[Path], None], folder: Path) -> Row:
    own = folder / kind.__name__
    own.mkdir()
    return tried(kind.__doc__, 1, lambda: kind(own))


def _train(*arguments: str, **environment: str) -> Finished:
    return shardtui("train", "--json", *arguments, **environment)


def _message(result: Finished, code: int, *parts: str) -> None:
    """Checks the exit code and that stderr has all `parts`."""
    assert result.returncode == code, f"exit {result.returncode}, not {code}: {result.stderr}"
    assert "Traceback" not in result.stdout + result.stderr, result.stderr
    missing = [part for part in parts if part not in result.stderr]
    assert not missing, f"not said: {missing}: {result.stderr}"


def _assert_completed(result: Finished, steps: int) -> None:
    """Checks that every step was made all the same."""
    made = [event["step"] for event in printed(result, "StepDone")]
    assert made[-1:] == [steps], f"steps made: {made}"


def _copy(folder: Path) -> str:
    """Copies the base run to a run with the folder's name, and returns that."""
    home = run_directory.state_home()
    shutil.copytree(home / "base", home / folder.name)
    return folder.name


def too_large_a_preset(folder: Path) -> None:
    """predicted out of memory at the start"""
    result = _train("--steps=3", "--device-memory=1e5", f"--run={folder.name}", *SETTINGS)
    _message(result, 2, "a step needs", "per device (predicted), 100 kB available", "fsdp", "--batch-size")
    assert not (run_directory.state_home() / folder.name).exists()


def too_large_a_switch(folder: Path) -> None:
    """predicted out of memory at a switch"""
    arguments = ("--preset=fsdp", "--switch=2:dp", *SETTINGS)
    compiled = printed(_train("--steps=3", f"--run={folder.name}-0", *arguments), "PresetCompiled")
    between = sum(event["memory"]["peak"] for event in compiled) // 2
    result = _train("--steps=6", f"--run={folder.name}", f"--device-memory={between}", *arguments)
    _assert_completed(result, 6)
    _message(result, 1, "switch to dp failed: dp: a step needs", "(predicted)", "choose a preset that shards more")


def out_of_memory_in_a_switch(folder: Path) -> None:
    """out of memory in a switch: address space limited from outside"""
    with Launched(folder.name, "--preset=fsdp", *LARGE) as run:
        run.until("StepDone")
        run.send(InspectPreset("dp"))  # compiled before the limit falls
        run.until("PresetInspected")
        run.send(SaveCheckpoint())
        run.until("CheckpointSaved")
        limit_memory(run.engine, more=2**26)
        run.send(SwitchPreset("dp"))
        if run.until("SwitchFailed", "Switched", "EngineLost")["type"] == "EngineLost":
            _message(run.end(), 1, "ended by SIGABRT: ", "out of memory", "train --resume", "from the checkpoint")
            again = _train(f"--resume={folder.name}", "--steps=1", "--preset=fsdp")
            _message(again, 2, "steps already done: give more")
        else:
            resource.prlimit(run.engine, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            _message(run.stop(), 1, "switch to dp failed: out of", "choose")


def loss_not_finite(folder: Path) -> None:
    """the loss is not finite"""
    name = _copy(folder)
    result = _train(f"--resume={name}", "--steps=30", "--set=learning_rate=1e38", "--set=warmup_steps=1")
    assert not printed(result, "CheckpointSaved")
    way = f"`shardtui train --resume {name}` resumes from the checkpoint of step 6"
    _message(result, 1, "the loss is not finite: go back to the checkpoint of step 6", "smaller learning_rate", way)


def last_loss_not_finite(folder: Path) -> None:
    """the loss is not finite in the last step"""
    name = _copy(folder)
    result = _train(f"--resume={name}", "--steps=8", "--set=learning_rate=1e38", "--checkpoint-every=9")
    assert not printed(result, "CheckpointSaved")
    _message(result, 1, "checkpoint of step 8 failed: the loss is not finite", "go back to the checkpoint of step 6")


def disk_full(folder: Path) -> None:
    """disk full while saving"""
    with mounted(folder, "128k") as disk:
        saving = ("--checkpoint-every=4", f"--checkpoint-dir={disk}")
        result = _train("--steps=8", *saving, f"--run={folder.name}", *SETTINGS)
        left = [path.name for path in (disk / folder.name).iterdir()]
        assert left == ["lease.json"], f"left: {left}"
    _assert_completed(result, 8)
    said = ("checkpoint of step 4 failed: the disk is full", "free some space", "checkpoint of step 8 failed")
    _message(result, 1, *said)


def full_disk_for_events(folder: Path) -> None:
    """disk full for the run directory"""
    with mounted(folder, "64k") as disk:
        result = _train("--steps=8", f"--run={folder.name}", *SETTINGS, XDG_STATE_HOME=str(disk))
    _assert_completed(result, 8)
    _message(result, 1, "the disk is full", "free some space")


def switch_taken_back(folder: Path) -> None:
    """a switch taken back while it compiles, another, and an end while one compiles"""
    with Launched(folder.name, *SETTINGS, XDG_CACHE_HOME=str(folder)) as run:
        run.until("StepDone")
        for preset, awaited in (("tp", "PresetCompiling"), ("dp", "SwitchCancelled"), ("fsdp", "Switched")):
            run.send(SwitchPreset(preset))
            run.until(awaited)
        run.send(SwitchPreset("fsdp-tp2"))
        run.until("PresetCompiling")
        result = run.stop()
    _message(result, 0)
    assert [event["preset"] for event in printed(result, "PresetCompiled")] == ["dp", "fsdp"]


def end_in_the_first_compilation(folder: Path) -> None:
    """`stop` in the first compilation"""
    with Launched(folder.name, *SETTINGS, XDG_CACHE_HOME=str(folder)) as run:
        run.until("PresetCompiling")
        stopped = shardtui("stop", folder.name)
        assert not printed(run.end(), "PresetCompiled")
    assert stopped.returncode == 0 and "engine stopped" in stopped.stdout, stopped


def other_text(folder: Path) -> None:
    """the corpus is not the one of the checkpoint"""
    name = _copy(folder)
    text = (folder.parent / "text").read_bytes()
    (folder / "text").write_bytes(text + b".")
    arguments = (f"--resume={name}", "--steps=8", f"--data={folder}/text")
    _message(_train(*arguments), 2, f"{len(text) + 1:,} bytes (sha256", f"{len(text):,} (", "--data", "--other-data")
    _message(_train(*arguments, "--other-data"), 0)


def unknown_flag(folder: Path) -> None:
    """a flag in XLA_FLAGS that jaxlib does not know"""
    result = _train("--steps=3", f"--run={folder.name}", *SETTINGS, XLA_FLAGS="--xla_nonsense=1")
    parts = "XLA_FLAGS contains a flag that this jaxlib does not know"
    _message(result, 1, parts, "--xla_nonsense=1", "correct it")


def no_such_platform(folder: Path) -> None:
    """a platform that is not there"""
    result = _train("--steps=3", "--platform=tpu", f"--run={folder.name}", *SETTINGS)
    _message(result, 2, "the requested accelerator cannot be used", "install its plugin", "--platform")


def dropped_axes(folder: Path) -> None:
    """the CPU taken silently where an accelerator's device file is"""
    devices = "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 && mkdir -p /dev/accel0"
    train = [*SHARDTUI, "train", "--json", "--steps=3", f"--run={folder.name}", *SETTINGS]
    command = ["unshare", "--mount", "sh", "-c", f'{devices} && exec "$@"', "sh", *train]
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if "unshare failed" in result.stderr:
        raise NotRun("a /dev of its own needs root")
    _message(result, 0, "this runs on the CPU although /dev/accel", "--platform cpu if the CPU is intended")


KINDS = (
    *(too_large_a_preset, too_large_a_switch, out_of_memory_in_a_switch, loss_not_finite, last_loss_not_finite),
    *(disk_full, full_disk_for_events, switch_taken_back, end_in_the_first_compilation, other_text, unknown_flag),
    *(no_such_platform, dropped_axes),
)
