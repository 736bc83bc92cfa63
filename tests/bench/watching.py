"""Whether training is slower for being watched, and what the loop itself costs a step."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

from shardtui.engine import run_directory
from shardtui.engine.event_log import LogReader
from shardtui.engine.protocol import StepsDone

from ..conftest import SHARDTUI
from ..terminal import Terminal, training
from .figure import Figure, at_least, at_most

REPEATS = 7
WINDOW = 8.0
SMALL = ("layers=1", "embed=32", "heads=2", "mlp=64", "context=16", "seq_len=16", "batch_size=8", "dropout=0.0")
"""On one device a step takes about a millisecond."""


class Plain:
    """The plain loop in a process of its own."""

    def __init__(self, *settings: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.plain", *settings],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == "compiled\n"
        self.steps = 0
        Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        for line in self._process.stdout or ():
            self.steps = int(line)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Ours:
    """A run with the UI on a terminal, which is read all the time."""

    def __init__(self, name: str, *settings: str) -> None:
        self._terminal = Terminal("run", f"--run={name}", *settings, size=(140, 40))
        self._terminal.until(training, "the first steps")
        self._directory = run_directory.find(name)
        self._history = LogReader(self._directory.events)
        self._ended = False
        self._step = 0
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        while not self._ended and self._terminal.read(draw=False):
            pass

    @property
    def steps(self) -> int:
        told = (event.step for events in self._history.read() for event in events if isinstance(event, StepsDone))
        self._step = max([self._step, *told])
        return self._step

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._directory.holder() or 0, number)
        self._terminal.process.send_signal(number)

    def end(self) -> None:
        subprocess.run([*SHARDTUI, "stop", self._directory.name], check=True, capture_output=True)
        self._ended = True
        self._terminal.process.terminate()
        self._terminal.process.wait()


def run() -> list[Figure]:
    watched, plain = _rates(Ours("watched"), Plain())
    ours, bare = _rates(
        Ours("small", "--devices=1", *(f"--set={setting}" for setting in SMALL)), Plain("devices=1", *SMALL)
    )
    return [
        at_least(
            0.98,
            "steps/s of nano, watched ÷ plain loop",
            [a / b for a, b in zip(watched, plain, strict=True)],
            "×",
            f"plain: {sorted(plain)[REPEATS // 2]:.1f} steps/s",
        ),
        at_most(
            50,
            "a step of the loop, watched − plain loop, one device",
            [1e6 / a - 1e6 / b for a, b in zip(ours, bare, strict=True)],
            "µs",
            f"plain: {1e6 / sorted(bare)[REPEATS // 2]:,.0f} µs a step",
        ),
    ]


def _rates(ours: Ours, plain: Plain) -> tuple[list[float], list[float]]:
    """Steps/s in alternate stretches: while one runs, the other stands still."""
    rates: tuple[list[float], list[float]] = ([], [])
    plain.signal(signal.SIGSTOP)
    for _ in range(REPEATS):
        for which, other, found in ((ours, plain, rates[0]), (plain, ours, rates[1])):
            other.signal(signal.SIGSTOP)
            which.signal(signal.SIGCONT)
            time.sleep(1)
            before, began = which.steps, time.perf_counter()
            time.sleep(WINDOW)
            found.append((which.steps - before) / (time.perf_counter() - began))
    ours.signal(signal.SIGCONT)
    ours.end()
    plain.signal(signal.SIGCONT)
    plain.end()
    return rates
