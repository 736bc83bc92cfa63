"""Faults that begin while a supervised run trains, and pass: it must go on, save again, and end when asked to, with
the losses of a run without them."""

import errno
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ..hanging_model import HangingModel
from ..processes import awaited
from .launched import Launched, failing_calls, mounted, shardtui
from .row import Row, tried
from .supervised import LIMIT, Trained, differing, trained_alone

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
    faults = Faults(Path("midway").absolute())
    for fault in (faults.read_only, faults.remounted, faults.slow, faults.clock):
        yield tried(fault.__doc__, times, fault)
    for victims in ("engines of four processes", "engines of four processes and their supervisor"):
        yield tried(f"SIGSTOP to the {victims} for 40 s", times, partial(faults.stopped, "supervisor" in victims))


class Faults:
    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._model = HangingModel(folder)
        self._now, self._clock = folder / "now", folder / "clock"
        self._set_clock(0)
        (folder / "patches").mkdir()
        (folder / "patches/sitecustomize.py").write_text(MOVED_CLOCK)
        self._own = failing_calls() | {"FAULT_WHEN": str(self._now), "FAULT_CLOCK": str(self._clock)}
        self._own["PYTHONPATH"] = str(folder / "patches")

    def read_only(self) -> str:
        """the run's directory read-only for 20 s"""
        with self._training(FAULT_ERRNO=str(errno.EROFS), FAULT_WRITES="1") as training:
            return self._written_again(training, self._now.touch, self._now.unlink)

    def remounted(self) -> str:
        """the file system of the checkpoints remounted read-only for 20 s"""
        with (
            mounted(self._folder / f"remounted-{self._number}", "64m") as disk,
            self._training(f"--checkpoint-dir={disk}") as training,
        ):
            return self._written_again(training, lambda: _remount(disk, "ro"), lambda: _remount(disk, "rw"))

    def _written_again(self, training: Launched, begin: Callable[[], object], end: Callable[[], object]) -> str:
        begin()
        training.more("CheckpointFailed")
        training.more("StepDone", 50)
        time.sleep(FAULT_SECONDS)
        failed = len(training.events("CheckpointFailed"))
        end()
        training.more("CheckpointSaved")
        last = training.events("CheckpointFailed")[-1]
        assert "Read-only file system" in str(last), last
        self._end(training)
        return f"{failed} saves failed, each named; saved again, all checkpoints good"

    def slow(self) -> str:
        """each open below the run's directory takes 2 s, for 20 s"""
        with self._training(FAULT_DELAY=str(SLOW)) as training:
            self._now.touch()
            time.sleep(FAULT_SECONDS)
            training.more("StepDone")
            self._now.unlink()
            training.more("CheckpointSaved", 2)
            self._end(training, starts=1)
        return "no save lost, no engine lost"

    def clock(self) -> str:
        """Python's wall clock jumps an hour ahead, then two back"""
        with self._training() as training:
            for seconds in (HOUR, -HOUR, 0):
                self._set_clock(seconds)
                training.more("StepDone", 50)
                training.more("CheckpointSaved")
                time.sleep(FAULT_SECONDS)
            failed = training.events("CheckpointFailed")
            self._end(training, starts=1)
            jumps = training.events("ClockChanged")
        assert all("time" in str(event["problems"]) for event in failed), failed
        assert len(jumps) == 3, jumps
        return f"no engine lost; {len(failed)} saves failed by Orbax's deadlines, each named; later ones good"

    def stopped(self, with_supervisor: bool) -> str:
        with self._training("--processes=4") as training:
            pids = [host["pid"] for host in training.events("EngineReady")[-1]["hosts"]]
            supervisor = training.directory.supervisor
            assert supervisor
            pids += [supervisor.pid] * with_supervisor
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            for pid in pids:
                with suppress(ProcessLookupError):  # it was found stuck, and ended
                    os.kill(pid, signal.SIGCONT)
            began = time.monotonic()
            training.more("CheckpointSaved")
            seconds, starts = time.monotonic() - began, len(training.events("EngineStarted"))
            self._end(training)
        return f"{starts} start{'s' * (starts > 1)}; saved {seconds:.0f} s after it was continued"

    def _set_clock(self, seconds: float) -> None:
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))

    @contextmanager
    def _training(self, *options: str, **fault: str) -> Iterator[Launched]:
        """Starts a run and waits for its first checkpoint."""
        self._number += 1
        self._now.unlink(missing_ok=True)
        name, environment = f"midway-{self._number}", self._own | fault
        options = (*self._model.options, "--checkpoint-every=100", "--supervise", *options)
        with Launched(name, *options, FAULT_UNDER=f"/{name}/", **environment) as training:
            training.until("CheckpointSaved")
            yield training

    def _end(self, training: Launched, starts: int = 0) -> None:
        """Stops a run; its checkpoints must be good, its losses those of a run without faults, its `starts` so many."""
        codes = shardtui("stop", training.name).returncode, training.process.wait(LIMIT)
        assert codes == (0, 0), f"`stop` and `train` ended with {codes}: {training.said[-500:]}"
        report = shardtui("verify", training.name)
        assert report.returncode == 0, report.stdout + report.stderr
        run = Trained().note_all(training.events())
        alone = trained_alone(*self._model.options, f"--run={training.name}-alone", f"--steps={max(run.losses)}")
        wrong = run.wrong + differing(run.losses, alone)
        assert not wrong, "; ".join(wrong)
        assert starts in (0, len(training.events("EngineStarted"))), "the engine was started again"


def _remount(disk: Path, how: str) -> None:
    """Waits for a moment in which no file there is open for writing."""
    command = ["mount", "-o", f"remount,{how}", disk]
    awaited(lambda: subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0, f"remount {how}")
