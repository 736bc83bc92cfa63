"""A run that is larger than any that was tried: its history, devices, arrays, presets and names."""

import math
import random
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

from msgspec.structs import replace
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.descriptions import DeviceInfo, MeshInfo
from shardtui.engine.wire.events import EngineReady, EngineStarted, Event, PresetCompiled, StepsDone
from shardtui.engine.wire.run_directory import RunDirectory

from ..recorded import events_in, steps
from ..suite import memory
from ..terminal import Terminal
from .figure import Figure, at_most
from .plain import config

STEPS, SMALL_STEPS = 10_000_000, 1000
STEPS_A_REPORT = 100
"""Steps per event, as in a run of 200 steps/s."""
DEVICES, PRESETS, ARRAYS, NAME = 16_384, 200, 5000, 200
"""Numbers of devices, presets and arrays, and characters of a name."""
RECORDED = Path(__file__).parent.parent / "tui" / "recorded" / "events.jsonl"
VIEWS = {
    "Arrays": ("2", "dims@axes"),
    "Mesh": ("3", "index 0 of"),
    "Traffic": ("4", "all-reduce  "),
    "Lint": ("5", "ind"),
}
"""By name the key, and a text that shows that the view is drawn."""
DOWN = "\x1b[B"
QUIET_SECONDS = 0.5
REPEATS = 5


def run() -> list[Figure]:
    large, small = recorded("large", STEPS, is_large=True), recorded("small", SMALL_STEPS, is_large=False)
    seen = [(_Viewed(large, STEPS), _Viewed(small, SMALL_STEPS)) for _ in range(REPEATS)]

    def figure(bound: float, name: str, value: Callable[[_Viewed], float], unit: str) -> Figure:
        against = median(value(few) for _, few in seen)
        return at_most(bound, name, [value(many) for many, _ in seen], unit, f"a small run: {against:.3g} {unit}")

    return [
        figure(0.5, "first frame", lambda run: run.first_seconds, "s"),
        figure(10, f"attach to {STEPS:,} steps", lambda run: run.last_seconds, "s"),
        *(figure(1.5, f"{name}, first opened", lambda run, name=name: run.opened[name], "s") for name in VIEWS),
        *(figure(0.3, f"{name}, cursor down", lambda run, name=name: run.moved[name], "s") for name in VIEWS),
        figure(400, "memory of the UI", lambda run: run.bytes / 1e6, "MB"),
    ]


def recorded(name: str, last: int, is_large: bool) -> RunDirectory:
    """Makes an ended run from one that was recorded; in a large one, everything is."""
    directory = run_directory.create(replace(config(), run=name))
    seqs = count(1)
    with directory.events.open("wb") as file:

        def write(event: Event) -> None:
            seq = next(seqs)
            file.write(encode_json(replace(event, seq=seq, time=1.8e9 + seq / 7)) + b"\n")

        for event in events_in(RECORDED):
            if isinstance(event, StepsDone):
                break
            if isinstance(event, EngineStarted):
                event = replace(event, config=directory.config)
            write(_enlarged(event) if is_large else event)
        chance = random.Random(0)
        for end in range(STEPS_A_REPORT, last + 1, STEPS_A_REPORT):
            losses = [round(2 + 3 * math.exp(-end / 1e6) + 0.2 * chance.random(), 6) for _ in range(STEPS_A_REPORT)]
            write(steps(end, *losses, seconds=0.005))
    return directory


def _enlarged(event: Event) -> Event:
    if isinstance(event, EngineReady):
        one, side = event.presets[0], round(DEVICES ** (1 / 2))
        devices = [DeviceInfo(at, "tpu", "TPU v5p", at // 4, [at // side, at % side, 0], 0) for at in range(DEVICES)]
        more = [replace(one, name=_named(f"preset-{at}")) for at in range(PRESETS)]
        return replace(event, devices=devices, presets=[*event.presets, *more])
    if isinstance(event, PresetCompiled):
        mesh = MeshInfo({"data": 16, "fsdp": 64, "model": 16}, list(range(DEVICES)))
        arrays = [
            replace(array, name=_named(f"{array.name}.{at}"), shape=[size * 64 for size in array.shape])
            for at, array in zip(range(ARRAYS), event.arrays * ARRAYS, strict=False)
        ]
        return replace(event, mesh=mesh, arrays=arrays)
    return event


def _named(name: str) -> str:
    return (name + ".very_long" * NAME)[:NAME]


class _Viewed:
    """Seconds in which a viewer shows a run."""

    def __init__(self, directory: RunDirectory, last: int) -> None:
        began = time.perf_counter()
        self._terminal = Terminal("attach", directory.name, size=(140, 40))
        self.first_seconds = self._until("Detach") - began
        self.last_seconds = self._until(f"step {last:,}") - began
        self.opened, self.moved = dict[str, float](), dict[str, float]()
        for name, (key, text) in VIEWS.items():
            self.opened[name] = self._pressed(key, text)
            self.moved[name] = self._pressed(DOWN)
        self.bytes = memory("VmRSS", self._terminal.process.pid)
        self._terminal.send("d")
        self._terminal.exit_code()

    def _pressed(self, key: str, text: str = "") -> float:
        """Returns the seconds from a key until the text is there, or without one until nothing more is drawn."""
        self._settled()
        began = time.perf_counter()
        self._terminal.send(key)
        return (self._until(text) if text else self._settled()) - began

    def _until(self, text: str) -> float:
        self._terminal.until(lambda screen: text in screen.partition("\n")[2], text)
        return time.perf_counter()

    def _settled(self) -> float:
        """Reads until nothing more is drawn. Returns when the last bytes came."""
        last = time.perf_counter()
        while time.perf_counter() - last < QUIET_SECONDS:
            before = len(self._terminal.output)
            self._terminal.read(0.02)
            last = time.perf_counter() if len(self._terminal.output) > before else last
        return last
