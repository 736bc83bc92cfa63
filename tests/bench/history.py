"""A run of a million steps: attaching to it, and redrawing its chart."""

import math
import random
import time
from statistics import median

import msgspec
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import EngineStopped, Event
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.widgets.loss_plot import Plot, draw_plot

from ..recorded import losses_of, record, started, steps
from ..suite import memory
from ..terminal import Terminal
from .figure import Figure, at_most, timed
from .plain import config

STEPS = 1_000_000
STEPS_A_REPORT = 8
"""Steps per event, as in a run of 16 steps/s."""
REPEATS = 7


def run() -> list[Figure]:
    chance = random.Random(0)
    losses = [round(2 + 3 * math.exp(-step / 1e5) + 0.2 * chance.random(), 8) for step in range(STEPS)]
    long, short = _recorded("long", losses), _recorded("short", losses[:1000])
    attached = [(_attached(long, STEPS), _attached(short, 1000)) for _ in range(REPEATS)]
    nothing = median(seconds for _, (seconds, _) in attached)
    seconds = [seconds for (seconds, _), _ in attached]
    held, against = [many / few for (_, many), (_, few) in attached], f"with 1,000: {attached[0][1][1] / 1e6:.0f} MB"
    plot = Plot(losses_of(losses), marks=[(STEPS // 2, "fsdp")])
    redraws = [1e3 * timed(draw_plot, plot, 138, 36) for _ in range(REPEATS)]
    return [
        at_most(5, f"redraw of the chart with {STEPS:,} steps, 140 × 40", redraws, "ms", "nothing"),
        at_most(1.0, f"attach to {STEPS:,} steps", seconds, "s", f"to 1,000 steps: {nothing:.2f} s"),
        at_most(1.25, f"memory of the UI with {STEPS:,} steps ÷ with 1,000", held, "×", against),
    ]


def _recorded(name: str, losses: list[float]) -> RunDirectory:
    directory = run_directory.create(msgspec.structs.replace(config(), run=name))
    chance = random.Random(1)
    events: list[Event] = [started(config=directory.config)]
    for end in range(STEPS_A_REPORT, len(losses) + 1, STEPS_A_REPORT):
        seconds = [round(0.06 + chance.random() / 1e3, 6) for _ in range(STEPS_A_REPORT)]
        wait = round(chance.random() / 1e4, 6)
        events.append(steps(end, *losses[end - STEPS_A_REPORT : end], step_seconds=seconds, input_wait_seconds=wait))
    events.append(EngineStopped(step=len(losses), reason="stopped"))
    record(directory, *(msgspec.structs.replace(event, time=1.8e9 + seq / 7) for seq, event in enumerate(events, 1)))
    return directory


def _attached(directory: RunDirectory, steps: int) -> tuple[float, int]:
    """Returns the seconds until the last step is on the screen, and the bytes of the UI process then."""
    began = time.perf_counter()
    terminal = Terminal("attach", directory.name, size=(140, 40))
    while f"step {steps:,}".encode() not in terminal.output:
        terminal.read(0.5, draw=False)
    seconds = time.perf_counter() - began
    resident = memory("VmRSS", terminal.process.pid)
    terminal.send("d")
    terminal.exit_code(draw=False)
    return seconds, resident
