"""Runs of the command line into which faults are injected, and the means to make its disks and calls fail."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from shardtui.engine.wire import framing, run_directory
from shardtui.engine.wire.commands import AnyCommand, Hello, Stop
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import SHARDTUI
from ..processes import awaited
from .row import NotRun

LONGEST = 400.0
"""Seconds after which what has not come or ended hangs."""

Event = dict[str, Any]
Finished = subprocess.CompletedProcess[str]


def shardtui(*arguments: str, **environment: str) -> Finished:
    command, own = [*SHARDTUI, *arguments], os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, env=own, timeout=LONGEST, check=False)


def printed(result: Finished, *kinds: str) -> list[Event]:
    """Returns the events of these kinds that a command with `--json` has printed."""
    return [event for event in map(json.loads, result.stdout.splitlines()) if event["type"] in kinds]


class Launched:
    """A `train` that goes on while faults are injected. Events and messages are kept in files: no pipe gets full.

    As a context: it is killed at the end, with its engine.
    """

    def __init__(self, name: str, *options: str, **environment: str) -> None:
        """Starts or, if `options` say so, resumes the run."""
        self.name, own = name, os.environ | environment
        command = [*SHARDTUI, "train", "--json", "--steps=10000000", *options]
        if not any(option.startswith("--resume") for option in options):
            command.append(f"--run={name}")
        self._output, self._errors = (
            Path(f"{name}-{time.monotonic_ns()}.{kind}").absolute() for kind in ("out", "err")
        )
        with self._output.open("w") as output, self._errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, env=own)
        self._events, self._line, self._awaited = list[Event](), "", 0
        self._reader = self._output.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        was_running = self.process.poll() is None
        self.process.kill()  # first, so that no supervisor starts another engine
        self.process.wait()
        for event in self.events("EngineStarted")[-1:] if was_running else ():
            with suppress(ProcessLookupError):
                os.kill(event["pid"], signal.SIGKILL)

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(run_directory.state_home() / self.name)

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def events(self, *kinds: str) -> list[Event]:
        """Returns the events so far, or those of these kinds."""
        self._read()
        return [event for event in self._events if not kinds or event["type"] in kinds]

    def _read(self) -> None:
        while line := self._reader.readline():
            self._line += line
            if line.endswith("\n"):
                self._events.append(json.loads(self._line))
                self._line = ""

    def until(self, *kinds: str, seconds: float = LONGEST) -> Event:
        """Waits for the next event of one of these kinds."""

        def following() -> Event | None:
            is_over = self.process.poll() is not None
            self._read()  # also what came just before the end
            for event in self._events[self._awaited :]:
                self._awaited += 1
                if event["type"] in kinds:
                    return event
            assert not is_over, f"it ended before {kinds}: {self.said}"
            return None

        return awaited(following, lambda: f"{kinds}: {self.said[-500:]}", seconds)

    def more(self, kind: str, count: int = 1, seconds: float = LONGEST) -> Self:
        """Waits for events that are still to come."""
        self._read()
        self._awaited = len(self._events)
        for _ in range(count):
            self.until(kind, seconds=seconds)
        return self

    def send(self, command: AnyCommand) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.directory.socket))
            connection.sendall(framing.frame(Hello()) + framing.frame(command))

    @property
    def engine(self) -> int:
        """Process id of the newest engine."""
        return self.events("EngineStarted")[-1]["pid"]

    def end(self, seconds: float = LONGEST) -> Finished:
        """Waits for its end and returns its output."""
        code = self.process.wait(seconds)
        return subprocess.CompletedProcess([], code, self._output.read_text(), self.said)

    def stop(self) -> Finished:
        """Sends `Stop`, waits for its end and returns its output."""
        self.send(Stop())
        return self.end()


def limit_memory(pid: int, more: int) -> None:
    """Lets a process take so many bytes of addresses more than it has, until it is let take all."""
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of this size."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=False).returncode:
        raise NotRun("mounting needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def failing_calls() -> dict[str, str]:
    """Returns the variables of processes whose calls fail as FAULT_… tell (failing_storage.c)."""
    if shutil.which("gcc") is None:
        raise NotRun("no gcc")
    library, source = Path("failing_storage.so").absolute(), Path(__file__).with_name("failing_storage.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
