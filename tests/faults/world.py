"""A world that fails round the supervisors of a run: they must report it once, answer signals, and go on once it works
again, while their engines train."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from shardtui.engine.wire import run_directory

from ..conftest import SHARDTUI
from ..hanging_model import HangingModel
from ..processes import awaited
from ..simulated_hosts import Event, Hosts
from .row import Row, tried
from .supervised import started

LIMIT = 240.0
ANSWER_SECONDS = 20.0
"""Longest time from SIGTERM to the end of a run, with a save."""
WAITING_SECONDS = 4.0
"""The same for a supervisor without an engine."""
FAILING_SECONDS = 15.0
"""For how long storage fails: longer than without beats a host is lost."""
NO_LINKS = """
import os

def link(*arguments, **options):
    raise PermissionError(1, "Operation not permitted")

os.link = link
"""


def run(times: int) -> Iterator[Row]:
    """Yields a row for each fault."""
    for fault in (no_links, fifo, storage_gone, two_launchers, runtime_gone, runtime_open):
        yield tried(fault.__doc__, times, partial(_injected, fault))


def _injected(fault: Callable[[Path], str]) -> str:
    with tempfile.TemporaryDirectory(prefix="shardtui-world-", ignore_cleanup_errors=True) as folder:
        return fault(Path(folder))


def no_links(folder: Path) -> str:
    """hard links refused on the shared folder"""
    (folder / "patches").mkdir()
    (folder / "patches/sitecustomize.py").write_text(NO_LINKS)
    with _hosts(folder, 2, PYTHONPATH=str(folder / "patches")) as hosts:
        _until(lambda: _steps(hosts.shared_history()), hosts, "a step")
        return f"trained; ended {_ended(hosts, ANSWER_SECONDS):.1f} s after SIGTERM"


def fifo(folder: Path) -> str:
    """a FIFO, a directory and 2 MiB in place of files in the shared folder, then SIGTERM"""
    shared = folder / "shared/big/supervisors"
    shared.mkdir(parents=True)
    os.mkfifo(shared / "host-1.json")
    (shared / "host-2.json").mkdir()
    (shared / "host-3.json").write_bytes(b"x" * (2 << 20))
    os.mkfifo(shared / "attempt-x")
    with _hosts(folder, 1, count=5) as hosts:
        _until(lambda: "waits: process 1" in hosts.said(0), hosts, "what it waits for")
        for name, why in (("1", "a FIFO"), ("2", "a directory"), ("3", "2,097,152 bytes")):
            found = [line for line in hosts.said(0).splitlines() if f"host-{name}.json: cannot be read: {why}" in line]
            assert len(found) == 1, f"host-{name}.json reported {len(found)} times: {hosts.said(0)[-500:]}"
        return f"each reported once; ended {_ended(hosts, WAITING_SECONDS, code=1):.1f} s after SIGTERM"


def storage_gone(folder: Path) -> str:
    """the shared folder away for 15 s, then back"""
    with _hosts(folder, 2) as hosts:
        _until(lambda: _steps(hosts.shared_history()), hosts, "a step")
        shared = folder / "shared/big/supervisors"
        shared.rename(folder / "away")
        time.sleep(FAILING_SECONDS)
        (folder / "away").rename(shared)
        before = _steps(hosts.history(0))
        _until(lambda: _steps(hosts.history(0)) > before, hosts, "another step")
        time.sleep(FAILING_SECONDS)
        starts = [event for event in hosts.history(0) if event["type"] == "EngineStarted"]
        assert len(starts) == 1, f"{len(starts)} attempts: {hosts.said(0)[-500:]}"
        said = [hosts.said(rank).count("other hosts do not see this one") for rank in (0, 1)]
        assert said == [1, 1], f"reported {said} times"
        return f"reported once, no attempt lost; ended {_ended(hosts, ANSWER_SECONDS):.1f} s after SIGTERM"


def two_launchers(folder: Path) -> str:
    """two launchers start the same run on two hosts each, at the same moment"""
    with _hosts(folder, 2) as first, _hosts(folder, 2, home=2) as second:
        both = [first.supervisors, second.supervisors]
        _until(lambda: _steps(first.shared_history()), first, "a step")
        for rank in (0, 1):
            pair = [each[rank] for each in both]
            _until(lambda pair=pair: any(each.poll() is not None for each in pair), first, "one refused")
            codes = [each.poll() for each in pair]
            assert sorted(codes, key=str) == [2, None], f"exit codes {codes}: {first.said(rank)[-500:]}"
        steps = _steps(first.shared_history())
        _until(lambda: _steps(first.shared_history()) > steps, first, "another step")
        return "one of each number refused, the others trained"


def runtime_gone(folder: Path) -> str:
    """the directory of the sockets removed, then `stop`"""
    return f"ended after {_stopped(folder, shutil.rmtree):.1f} s, saved"


def runtime_open(folder: Path) -> str:
    """the directory of the sockets opened to other users, SIGKILL to the engine, then mended"""
    runtime = Path(os.environ["SHARDTUI_RUNTIME_DIR"])
    with _trains(folder) as (name, process):
        directory = run_directory.find(name)
        runtime.chmod(0o755)
        try:
            holder = directory.holder()
            assert holder
            os.kill(holder.pid, signal.SIGKILL)
            awaited(lambda: "other users can enter it" in directory.log.read_text(), "a report")
            time.sleep(10)
            told = directory.log.read_text().count("other users can enter it")
            assert told == 1, f"reported {told} times"
        finally:
            runtime.chmod(0o700)
        awaited(lambda: (found := directory.holder()) and found != holder, "another engine")
        seconds = _stop(name, process)
    return f"reported once, resumed by itself; ended {seconds:.1f} s after `stop`"


def _stopped(folder: Path, break_it: Callable[[Path], object]) -> float:
    with _trains(folder) as (name, process):
        break_it(Path(os.environ["SHARDTUI_RUNTIME_DIR"]))
        return _stop(name, process)


def _stop(name: str, process: "subprocess.Popen[str]") -> float:
    began = time.monotonic()
    stopped = subprocess.run([*SHARDTUI, "stop", name], capture_output=True, text=True, check=False)
    code = process.wait(LIMIT)
    assert (stopped.returncode, code) == (0, 0), f"{stopped.stdout}{stopped.stderr}, {code}"
    return time.monotonic() - began


@contextmanager
def _trains(folder: Path) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """Yields a supervised run that trains."""
    model, name = HangingModel(folder / "model"), f"world-{folder.name[-8:].replace('_', '0').lower()}"
    process = started(*model.options, f"--run={name}", "--steps=10000000", "--supervise", "--checkpoint-every=100")
    history = run_directory.state_home() / name / "events.jsonl"
    reading = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)  # its pipe must not be full
    try:
        awaited(lambda: history.exists() and b'"CheckpointSaved"' in history.read_bytes(), "a checkpoint")
        yield name, process
    finally:
        process.kill()
        for each in (process, reading):
            each.wait()


@contextmanager
def _hosts(folder: Path, starts: int, count: int = 0, home: int = 0, **environment: str) -> Iterator[Hosts]:
    kept = dict(os.environ)
    os.environ |= environment
    hosts = Hosts(folder, count or starts, "--checkpoint-every=100", "--steps=10000000")
    try:
        for rank in range(starts):
            hosts.start(rank, home + rank)
        yield hosts
    finally:
        os.environ.clear()
        os.environ.update(kept)
        for supervisor in hosts.supervisors.values():
            supervisor.kill()
            supervisor.wait()


def _ended(hosts: Hosts, limit: float, code: int = 0) -> float:
    """Returns the seconds from SIGTERM to the end of all supervisors."""
    began = time.monotonic()
    for supervisor in hosts.supervisors.values():
        supervisor.send_signal(signal.SIGTERM)
    codes = [supervisor.wait(LIMIT) for supervisor in hosts.supervisors.values()]
    seconds = time.monotonic() - began
    assert set(codes) == {code}, f"exit codes {codes}: {hosts.said(0)[-500:]}"
    assert seconds < limit, f"ended after {seconds:.0f} s"
    return seconds


def _steps(events: list[Event]) -> int:
    return max((event["step"] for event in events if event["type"] == "StepsDone"), default=0)


def _until(holds: Callable[[], object], hosts: Hosts, what: str) -> None:
    awaited(holds, lambda: f"{what}: {hosts.said(0)[-500:]}")
