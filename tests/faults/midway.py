"""Faults that begin while a supervised run trains, and pass: it must go on, save again, and end when asked to, with
the losses of a run without them."""

import errno
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardtui.engine.wire import run_directory

from ..conftest import SHARDTUI
from ..hanging_model import HangingModel
from ..processes import awaited
from .messages import mounted
from .row import Row, tried
from .storage import compiled
from .supervised import Event, Trained, differing, events, started, trained_alone

LIMIT = 300.0
FAULT_SECONDS = 20.0
STOPPED_SECONDS = 40.0
"""Longer than hosts and jax's own service wait for a beat."""
SLOW = 2_000_000
"""Microseconds that each open takes."""
HOUR = 3600.0
MOVED_CLOCK = """
import mmap
import os
import struct
import time

with open(os.environ["FAULT_CLOCK"], "rb") as file:
    seconds = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real = time.time
time.time = lambda: real() + struct.unpack("d", seconds[:])[0]
"""
"""The clock of Python alone: libraries wait in the kernel, by a clock that no process may move."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for each fault."""
    if shutil.which("gcc") is None:
        yield Row("faults midway", 0, 0, "not run: no gcc")
        return
    with tempfile.TemporaryDirectory(prefix="shardtui-midway-") as folder:
        faults = Faults(Path(folder))
        for fault in (
            faults.read_only,
            faults.remounted,
            faults.slow,
            faults.clock,
            faults.engines_stopped,
            faults.all_stopped,
        ):
            yield tried(fault.__doc__, times, fault)


@dataclass
class Training:
    """A run that a thread follows."""

    process: "subprocess.Popen[str]"
    run: Trained = field(default_factory=Trained)
    seen: list[Event] = field(default_factory=list[Event])
    """Its events, but for steps."""

    def follow(self) -> None:
        for event in events(self.process):
            self.run.note(event)
            if event["type"] not in ("StepDone", "StepsDone"):
                self.seen.append(event)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.seen if event["type"] == kind]

    def more(self, kind: str) -> None:
        """Waits for another event."""
        before = len(self.of(kind))
        self.until(lambda: len(self.of(kind)) > before, kind)

    def more_steps(self, count: int = 50) -> None:
        before = max(self.run.losses, default=0)
        self.until(lambda: max(self.run.losses, default=0) >= before + count, "a step")

    def until(self, holds: Callable[[], object], what: str) -> None:
        awaited(
            holds,
            lambda: f"{what}: exit {self.process.poll()}, {self.seen[-3:]}",
            LIMIT,
            lambda: self.process.poll() is not None,
        )


class Faults:
    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._model = HangingModel(folder)
        self._now, self._clock = folder / "now", folder / "clock"
        self._set_clock(0)
        self._library = compiled("failing_storage", folder)
        (folder / "patches").mkdir()
        (folder / "patches/sitecustomize.py").write_text(MOVED_CLOCK)

    def read_only(self) -> str:
        """the run's directory read-only for 20 s"""
        training = self._start(FAULT_ERRNO=str(errno.EROFS), FAULT_WRITES="1")
        return self._written_again(training, self._now.touch, self._now.unlink)

    def remounted(self) -> str:
        """the file system of the checkpoints remounted read-only for 20 s"""
        (place := self._folder / f"remounted-{self._number}").mkdir()
        with mounted(place, "64m") as disk:
            training = self._start(f"--checkpoint-dir={disk}")
            return self._written_again(training, lambda: _remount(disk, "ro"), lambda: _remount(disk, "rw"))

    def _written_again(self, training: Training, begin: Callable[[], object], end: Callable[[], object]) -> str:
        begin()
        training.more("CheckpointFailed")
        training.more_steps()
        time.sleep(FAULT_SECONDS)
        failed = len(training.of("CheckpointFailed"))
        end()
        training.more("CheckpointSaved")
        assert "Read-only file system" in str(training.of("CheckpointFailed")[-1]), training.seen[-3:]
        self._end(training)
        return f"{failed} saves failed, each named; saved again, all checkpoints good"

    def slow(self) -> str:
        """each open below the run's directory takes 2 s, for 20 s"""
        training = self._start(FAULT_DELAY=str(SLOW))
        self._now.touch()
        time.sleep(FAULT_SECONDS)
        training.more_steps(1)
        self._now.unlink()
        training.more("CheckpointSaved")
        training.more("CheckpointSaved")
        self._end(training)
        assert len(training.of("EngineStarted")) == 1, "the engine was started again"
        return "no save lost, no engine lost"

    def clock(self) -> str:
        """Python's wall clock jumps an hour ahead, then two back"""
        training = self._start()
        for seconds in (HOUR, -HOUR, 0):
            self._set_clock(seconds)
            training.more_steps()
            training.more("CheckpointSaved")
            time.sleep(FAULT_SECONDS)
        failed = training.of("CheckpointFailed")
        self._end(training)
        assert len(training.of("EngineStarted")) == 1, "the engine was started again"
        assert all("time" in str(event["problems"]) for event in failed), failed
        assert len(training.of("ClockChanged")) == 3, training.of("ClockChanged")
        return f"no engine lost; {len(failed)} saves failed by Orbax's deadlines, each named; later ones good"

    def engines_stopped(self) -> str:
        """SIGSTOP to the engines of four processes for 40 s"""
        return self._stopped(False)

    def all_stopped(self) -> str:
        """SIGSTOP to the engines of four processes and their supervisor for 40 s"""
        return self._stopped(True)

    def _stopped(self, with_supervisor: bool) -> str:
        training = self._start("--processes=4")
        pids = [host["pid"] for host in training.of("EngineReady")[-1]["hosts"]]
        supervisor = run_directory.find(self._name).supervisor
        assert supervisor
        pids += [supervisor.pid] * with_supervisor
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:  # it was found stuck, and ended
                continue
        began = time.monotonic()
        training.more("CheckpointSaved")
        seconds, starts = time.monotonic() - began, len(training.of("EngineStarted"))
        self._end(training)
        return f"{starts} start{'s' * (starts > 1)}; saved {seconds:.0f} s after it was continued"

    @property
    def _name(self) -> str:
        return f"midway-{self._number}"

    def _set_clock(self, seconds: float) -> None:
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))

    def _start(self, *options: str, **fault: str) -> Training:
        """Starts a run and waits for its first checkpoint."""
        self._number += 1
        self._now.unlink(missing_ok=True)
        place = {"FAULT_UNDER": f"/{self._name}/", "FAULT_WHEN": str(self._now), "FAULT_CLOCK": str(self._clock)}
        patches = {"LD_PRELOAD": self._library, "PYTHONPATH": str(self._folder / "patches")}
        environment = os.environ | patches | place | fault
        name = (f"--run={self._name}", "--steps=10000000", "--checkpoint-every=100", "--supervise")
        training = Training(started(*self._model.options, *name, *options, environment=environment))
        threading.Thread(target=training.follow, daemon=True).start()
        training.more("CheckpointSaved")
        return training

    def _end(self, training: Training) -> None:
        """Stops a run; its checkpoints must be good, its losses those of a run without faults."""
        stopped = subprocess.run([*SHARDTUI, "stop", self._name], capture_output=True, text=True, check=False)
        codes = stopped.returncode, training.process.wait(LIMIT)
        assert codes == (0, 0), f"`stop` and `train` ended with {codes}: {training.seen[-2:]}"
        report = subprocess.run([*SHARDTUI, "verify", self._name], capture_output=True, text=True, check=False)
        assert report.returncode == 0, report.stdout + report.stderr
        last = max(training.run.losses)
        alone = trained_alone(started(*self._model.options, f"--run={self._name}-alone", f"--steps={last}"))
        wrong = training.run.wrong + differing(training.run.losses, alone)
        assert not wrong, "; ".join(wrong)


def _remount(disk: Path, how: str) -> None:
    """Waits for a moment in which no file there is open for writing."""
    command = ["mount", "-o", f"remount,{how}", disk]
    awaited(lambda: subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0, f"remount {how}")
