"""Names, directories and locks of runs, also of one whose directory is removed, moved or replaced while it trains."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_files import PRESETS, user_presets
from shardtui.engine.wire import framing, run_directory
from shardtui.engine.wire.commands import Hello, SaveCheckpoint
from shardtui.engine.wire.lock import Holder
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client import stopping

from ..command import answered
from ..conftest import LEAST, SETTINGS, killed_after, tiny_config
from ..processes import is_alive
from ..tui.test_cli import run, started

HOLDING = """
import sys, time
from pathlib import Path
from shardtui.engine.wire.run_directory import RunDirectory
lock = RunDirectory(Path(sys.argv[1])).hold()
{then}
print("held", flush=True)
time.sleep(60)
"""
FORKED_BY_C = "import ctypes, os; ctypes.PyDLL(None).fork() and (time.sleep(0.3), os._exit(0))"
"""A fork that runs none of Python's hooks."""


@contextmanager
def held(directory: RunDirectory, then: str = "") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING.format(then=then), str(directory.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def claimed(directory: RunDirectory, change: Callable[[list[str]], list[str]]) -> Iterator[int]:
    """Yields the id of an unrelated process that is written to the lock's text, after `change`."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        with held(directory):
            text = directory.lock.read_text().split()
            directory.lock.write_text(" ".join(change([str(other.pid), *text[1:]])) + "\n")
            yield other.pid
            assert other.poll() is None, "it was signalled"
    finally:
        other.kill()
        other.wait()


def listed() -> dict[str, object]:
    (found,) = json.loads(answered("ls", "--json").stdout)["runs"]
    return found


def test_the_process_that_holds_the_lock_is_known(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    assert (directory.holder(), listed()["pid"]) == (None, None)
    with pytest.raises(UserError, match="no run is training"):
        run_directory.find(None)
    with held(directory) as process:
        assert (directory.holder(), listed()["pid"]) == (Holder(process.pid, "here"), process.pid)
        assert run_directory.find(None) == directory
        with pytest.raises(UserError, match=f"process {process.pid} holds its lock"):
            directory.hold()
        refused = run("train", "--resume=tiny-1", "--steps=3")
        assert (refused.returncode, f"process {process.pid} is training it" in refused.stderr) == (2, True)
    assert (directory.holder(), listed()["pid"]) == (None, None)
    with directory.hold():
        assert directory.holder() == Holder(os.getpid(), "here")


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (lambda text: [text[0], "another-boot", *text[2:]], "elsewhere", "of another host or container"),
        (lambda text: [*text[:2], "pid:[1]", text[3]], "elsewhere", "of another host or container"),
        (lambda text: [*text[:3], "12345"], "gone", "which has ended"),
    ],
    ids=("another host", "another container", "another process since"),
)
async def test_another_process_with_the_same_id_is_not_the_engine(
    home: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[str]], list[str]], where: str, words: str
) -> None:
    monkeypatch.setattr(stopping, "KILL_SECONDS", 0.5)
    directory = run_directory.create(tiny_config())
    with claimed(directory, change):
        holder = directory.holder()
        assert holder and holder.where == where
        await stopping.kill(directory)
        assert listed()["pid"] is None
        refused = run("train", "--resume=tiny-1", "--steps=3")
        assert (refused.returncode, words in refused.stderr) == (2, True)


def test_a_child_forked_by_c_code_is_not_the_engine(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    with held(directory, FORKED_BY_C) as process:
        process.wait()
        assert directory.holder() == Holder(process.pid, "gone")
        assert listed()["state"] == "crashed"
        stopped = answered("stop", "tiny-1")
        assert (stopped.returncode, stopped.stdout) == (0, "run tiny-1 has already ended\n")
        assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lock", os.mkfifo),
        ("engine.log", os.mkfifo),
        ("events.jsonl", os.mkdir),
        pytest.param("lock", os.mkdir, marks=pytest.mark.slow),
    ],
)
def test_a_fifo_or_directory_in_place_of_a_file_does_not_block(
    home: Path, name: str, make: Callable[[Path], None]
) -> None:
    directory = run_directory.create(tiny_config(steps=3))
    make(directory.path / name)
    found = run("ls", "--json")
    assert [run["pid"] for run in json.loads(found.stdout)["runs"]] == [None] * (name != "events.jsonl")
    assert (f"{directory.path / name}: " in found.stderr) == (name == "events.jsonl")
    assert run("stop", "tiny-1").stdout == "run tiny-1 has already ended\n"
    refused = run("train", "--resume=tiny-1")
    assert refused.returncode == 2
    assert f"{directory.path / name}: cannot be" in refused.stderr
    assert (directory.path / "run.json").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "A", "x" * 65, "a\nb", "naïve", "-x"])
def test_names_cannot_leave_the_directory(home: Path, name: str) -> None:
    for use in (run_directory.checked_name, lambda name: run_directory.create(tiny_config(run=name))):
        with pytest.raises(UserError, match="a name has 1 to 64 characters"):
            use(name)


@pytest.mark.parametrize("model", ["Big", "x" * 64, "A.b_c"])
def test_a_run_of_any_model_preset_has_a_default_name(home: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    (own := user_presets() / "models").mkdir(parents=True)
    shutil.copy(PRESETS / "models" / "nano.toml", own / f"{model}.toml")
    name = run_directory.free_name(choose_model(model).run_name)
    assert run_directory.checked_name(name) == f"{model.lower()[:48]}-1"


def test_a_run_keeps_its_configuration(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    assert directory.config == tiny_config()
    assert run_directory.find("tiny-1") == directory
    assert run_directory.all_runs() == [directory]
    with pytest.raises(UserError, match="this run already exists: choose another name"):
        run_directory.create(tiny_config())
    assert run_directory.free_name("tiny") == "tiny-2"
    directory.discard()
    assert run_directory.all_runs() == []


def test_directories_that_cannot_be_used_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "run"

    def refused(says: str) -> None:
        with pytest.raises(UserError, match=says):
            run_directory.runtime_directory()

    monkeypatch.setenv("SHARDTUI_RUNTIME_DIR", str(path))
    if len(str(path)) <= 60:
        assert run_directory.runtime_directory() == path
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    refused(rf"other users can enter it \(mode 755\): run `chmod 700 {path}`")
    path.rmdir()
    path.symlink_to(home)
    refused("not a directory of yours")
    monkeypatch.setenv("SHARDTUI_RUNTIME_DIR", str(home / ("long" * 20)))
    refused("too long for a socket")
    (home / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    with pytest.raises(UserError, match=r"cannot be written: .*: set XDG_STATE_HOME"):
        run_directory.create(tiny_config())


@pytest.mark.slow
def test_edited_settings_are_reported_when_the_run_resumes(home: Path) -> None:
    begun = run("train", *SETTINGS, "--run=tiny-1", "--steps=2", f"--data={__file__}", "--preset=dp")
    assert begun.returncode == 0, begun.stderr
    assert "2 steps" in begun.stdout and "goodput of" in begun.stdout
    directory = run_directory.find("tiny-1")
    slower = msgspec.structs.replace(directory.config.training, learning_rate=3e-4)
    directory.write_config(msgspec.structs.replace(directory.config, training=slower))
    edited = run("train", "--resume=tiny-1", "--steps=3")
    assert edited.returncode == 0, edited.stderr
    assert "run.json: learning_rate is 0.0003, but the checkpoint of step 2 was saved with " in edited.stderr


def remove(path: Path) -> None:
    """While the run writes."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def begin_to_remove(path: Path) -> None:
    """Files go before their directory."""
    for name in ("lock", "run.json"):
        (path / name).unlink()


def replace(path: Path) -> None:
    """By another run of the same name."""
    path.rename(path.with_name("moved"))
    path.mkdir()
    (path / "lock").touch()
    (path / "run.json").write_bytes(b"{}")


@pytest.mark.parametrize(
    ("change", "elsewhere"),
    [
        (remove, True),
        pytest.param(replace, False, marks=pytest.mark.core),
        pytest.param(remove, False, marks=pytest.mark.slow),
        pytest.param(begin_to_remove, False, marks=pytest.mark.slow),
        pytest.param(replace, True, marks=pytest.mark.slow),
    ],
)
def test_a_run_without_its_directory_ends(home: Path, change: Callable[[Path], None], elsewhere: bool) -> None:
    path, kept = home / "state/shardtui/runs/mine", home / "kept"
    options = [f"--checkpoint-dir={kept}"] if elsewhere else []
    process = started("train", "--json", "--run=mine", "--steps=10000000", *LEAST, *options)
    events: list[dict[str, Any]] = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["type"] == "StepDone" and events[-1]["step"] == 1:
            with socket.socket(socket.AF_UNIX) as viewer:
                viewer.connect(str(RunDirectory(path).socket))
                viewer.sendall(framing.frame(Hello()) + framing.frame(SaveCheckpoint()))
        if events[-1].get("checkpoints"):
            break
    change(path)
    before = sorted(path.rglob("*"))
    pid = next(event["pid"] for event in events if event["type"] == "EngineStarted")
    with killed_after(240, pid):
        events += map(json.loads, process.stdout)
        errors = process.stderr.read()
        assert process.wait() == 1
    assert "the run's directory was removed or replaced" in errors, errors
    assert ("--resume" in errors) == (change is begin_to_remove), "its checkpoint is still there"
    failed, ended = events[-2:]
    assert (failed["type"], failed["refused"], ended["type"]) == ("Failed", False, "RunEnded")
    step = next(event["step"] for event in reversed(events) if event["type"] == "StepDone")
    assert failed["problems"][0].endswith(f"the run ended after step {step:,}")
    assert sorted(path.rglob("*")) == before, "nothing is saved where the directory was"
    assert (kept / f"mine/{step}").exists() == elsewhere
    assert not is_alive(pid)


def test_runs_are_listed_while_others_are_removed(home: Path) -> None:
    kept, has_ended = run_directory.create(tiny_config(run="kept")), threading.Event()
    others = [RunDirectory(kept.path.with_name(f"r{number}")) for number in range(30)]

    def come_and_go() -> None:
        while not has_ended.is_set():
            for other in others:
                other.path.mkdir()
                (other.path / "run.json").touch()
            for other in others:
                other.discard()

    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(come_and_go)
        try:
            assert all(kept in run_directory.all_runs() for _ in range(1000))
        finally:
            has_ended.set()
