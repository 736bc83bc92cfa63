"""The holder of a run's lock: a process id alone does not identify it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.lock import Holder
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.client import stopping

from ..conftest import tiny_config
from ..tui.test_cli import run

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
    """Another process holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING.format(then=then), str(directory.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
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
    (found,) = json.loads(run("ls", "--json").stdout)["runs"]
    return found


def test_a_process_that_holds_the_lock_is_known(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    with held(directory) as process:
        assert directory.holder() == Holder(process.pid, "here")
        assert listed()["pid"] == process.pid
        refused = run("train", "--resume=tiny-1", "--steps=3")
        assert (refused.returncode, f"process {process.pid} is training it" in refused.stderr) == (2, True)
    assert directory.holder() is None
    assert listed()["pid"] is None


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (lambda text: [text[0], "another-boot", *text[2:]], "elsewhere", "of another host or container"),
        (lambda text: [*text[:2], "pid:[1]", text[3]], "elsewhere", "of another host or container"),
        (lambda text: [*text[:3], "12345"], "gone", "which has ended"),
    ],
    ids=("another host", "another container", "another process since"),
)
def test_another_process_with_the_same_id_is_not_the_engine(
    home: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[str]], list[str]], where: str, words: str
) -> None:
    monkeypatch.setattr(stopping, "KILL_SECONDS", 0.5)
    directory = run_directory.create(tiny_config())
    with claimed(directory, change):
        holder = directory.holder()
        assert holder and holder.where == where
        asyncio.run(stopping.kill(directory))
        assert listed()["pid"] is None
        refused = run("train", "--resume=tiny-1", "--steps=3")
        assert (refused.returncode, words in refused.stderr) == (2, True)


def test_a_lock_with_a_process_id_alone_is_read(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    with claimed(directory, lambda text: text[:1]) as pid:
        assert directory.holder() == Holder(pid, "here")
        assert listed()["pid"] == pid


def test_a_child_forked_by_c_code_is_not_the_engine(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    with held(directory, FORKED_BY_C) as process:
        process.wait()
        assert directory.holder() == Holder(process.pid, "gone")
        assert listed()["state"] == "crashed"
        stopped = run("stop", "tiny-1")
        assert (stopped.returncode, stopped.stdout) == (0, "run tiny-1 has already ended\n")
        child = Path(f"/proc/{process.pid}")
        assert not child.exists()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lock", os.mkfifo),
        ("events.jsonl", os.mkfifo),
        ("engine.log", os.mkfifo),
        ("events.jsonl", os.mkdir),
        pytest.param("lock", os.mkdir, marks=pytest.mark.slow),
        pytest.param("engine.log", os.mkdir, marks=pytest.mark.slow),
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
