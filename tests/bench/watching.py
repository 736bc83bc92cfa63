"""How much a viewer slows training down, and the overhead of the loop per step."""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from threading import Thread

from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.checkpoint.saver import Saver
from shardtui.engine.data.source import read_corpus
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.training.loop import Loop
from shardtui.engine.training.profiler import Profiler
from shardtui.engine.training.tools import Tools
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Pause, Resume, Stop
from shardtui.engine.wire.event_log import EventLog, LogReader
from shardtui.engine.wire.events import Event, Paused, Resumed, StepsDone
from shardtui.engine.wire.inbox import Inbox
from shardtui.engine.wire.server import Server

from ..conftest import SHARDTUI
from ..suite import ROOT
from ..terminal import Terminal, training
from . import plain
from .figure import Figure, at_least, at_most, ratios

REPEATS = 15
WINDOW = 8.0
"""Seconds over which steps of nano are counted; `SMALL_WINDOW` is for the small model."""
SMALL_WINDOW = 3.0
SMALL = ("layers=1", "embed=32", "heads=2", "mlp=64", "context=16", "seq_len=16", "batch_size=8", "dropout=0.0")
"""On one device a step takes about a millisecond."""


class PlainProcess:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.bench.plain"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        assert self._process.stdout.readline() == "compiled\n"
        self.steps = 0
        """Steps made so far."""
        Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        for line in self._process.stdout or ():
            self.steps = int(line)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Watched:
    """A run with the UI on a terminal that is read continuously."""

    def __init__(self, name: str) -> None:
        self._terminal = Terminal("run", f"--run={name}", size=(140, 40))
        self._terminal.until(training, "the first steps")
        self._directory = run_directory.find(name)
        self._history = LogReader(self._directory.events)
        self._ended = False
        self._step = 0
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while not self._ended and self._terminal.read(draw=False):
            pass

    @property
    def steps(self) -> int:
        """Steps made so far."""
        reported = (event.step for events in self._history.read() for event in events if isinstance(event, StepsDone))
        self._step = max([self._step, *reported])
        return self._step

    def signal(self, number: signal.Signals) -> None:
        holder = self._directory.holder()
        assert holder and holder.is_here
        os.kill(holder.pid, number)
        self._terminal.process.send_signal(number)

    def end(self) -> None:
        subprocess.run([*SHARDTUI, "stop", self._directory.name], check=True, capture_output=True)
        self._ended = True
        self._terminal.process.terminate()
        self._terminal.process.wait()


class EngineLoop:
    """The engine's loop in a thread of this process, with its event log and its socket."""

    def __init__(self, bare: plain.Plain) -> None:
        task, config = bare.task, bare.task.config
        self._inbox = Inbox()
        self._reported: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
        directory = run_directory.create(config)
        self._server = Server(directory.socket, self._inbox.put)
        self._server.start()
        publish = EventLog(directory.events, self._note).append
        devices = list(bare.placement.mesh.devices.flat)
        corpus = read_corpus(config.data).describe()
        place = CheckpointDirectory(epath.Path(directory.checkpoints(config)))
        saver = Saver(place, config, task, corpus, Cluster(), publish, lambda: None)
        compiler = Compiler(task, {}, devices, directory.presets, wake=self._inbox.wake)
        profiler = Profiler(directory.profile, publish, Cluster())
        loop = Loop(Tools(config, compiler, saver, profiler, Cluster(), self._inbox, publish), bare.batches)
        self._inbox.put(Pause())
        self._thread = Thread(target=loop.run, args=(None,))
        self._thread.start()
        self._reported.get()

    def _note(self, event: Event) -> None:
        self._server.publish(event)
        if isinstance(event, Paused | Resumed):
            self._reported.put((event.step, time.perf_counter()))

    def seconds_per_step(self) -> float:
        """Resumes the loop for a while, and pauses it again."""
        self._inbox.put(Resume())
        before, began = self._reported.get()
        time.sleep(SMALL_WINDOW)
        self._inbox.put(Pause())
        after, ended = self._reported.get()
        return (ended - began) / (after - before)

    def end(self) -> None:
        self._inbox.put(Stop())
        self._thread.join()
        self._server.close()


def _seconds_per_step(losses: Iterator[float]) -> float:
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < SMALL_WINDOW:
        next(losses)
        steps += 1
    return (time.perf_counter() - began) / steps


def _cost_of_a_step() -> Figure:
    bare = plain.Plain(plain.config(*SMALL, devices=1))
    ours, losses = EngineLoop(bare), bare.losses()
    pairs = [(ours.seconds_per_step(), _seconds_per_step(losses)) for _ in range(REPEATS + 1)][1:]
    ours.end()
    name, more = "a step of the loop − that of the plain loop, one device", [1e6 * (own - bare) for own, bare in pairs]
    return at_most(50, name, more, "µs", f"plain: {1e6 * median(other for _, other in pairs):,.0f} µs a step")


def run() -> list[Figure]:
    watched, bare = _rates(Watched("watched"), PlainProcess())
    name, against = "steps/s of nano, watched ÷ plain loop", f"plain: {median(bare):.1f} steps/s"
    return [at_least(0.98, name, ratios(watched, bare), "×", against), _cost_of_a_step()]


def _rates(ours: Watched, plain: PlainProcess) -> tuple[list[float], list[float]]:
    """Returns steps/s of both, measured alternately: while one runs, the other is stopped."""
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
