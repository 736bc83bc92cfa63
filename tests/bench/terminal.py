"""The bytes that the UI writes to the terminal, and its latency from key to answer."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

from ..terminal import Terminal, training
from .figure import Figure, at_most

WINDOW = 6.0
REPEATS = 5
BAUD = 9600
SETTLED = 10.0
"""Seconds that a slow line needs for what is drawn when a run begins."""
KEYS = 40
PRESETS = 8
"""Presets compiled one after the other while keys are pressed."""


def run() -> list[Figure]:
    return [*_steady((140, 40), 5000), *_steady((80, 24), 2000), _slow_line(), *_keys()]


@contextmanager
def _watching(name: str, size: tuple[int, int]) -> Iterator[Terminal]:
    terminal = Terminal("run", f"--run={name}", size=size)
    try:
        terminal.until(training, "the first steps")
        yield terminal
    finally:
        terminal.press("x", "End it")
        terminal.press("y", "stopped")
        terminal.send("d")
        terminal.exit_code()


def _steady(size: tuple[int, int], bound: float) -> list[Figure]:
    with _watching(f"steady-{size[0]}", size) as terminal:
        _bytes_in(terminal, 5)
        training_bytes = [_bytes_in(terminal, WINDOW) / WINDOW for _ in range(REPEATS)]
        terminal.press(" ", "paused")
        _bytes_in(terminal, 2)
        paused_bytes = [_bytes_in(terminal, WINDOW) / WINDOW for _ in range(REPEATS)]
    where = f"{size[0]} × {size[1]}"
    return [
        at_most(bound, f"to the terminal in steady training, {where}", training_bytes, "bytes/s", "nothing"),
        at_most(0, f"to the terminal while nothing changes, {where}", paused_bytes, "bytes/s", "nothing"),
    ]


def _bytes_in(terminal: Terminal, seconds: float) -> int:
    before, end = len(terminal.output), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        terminal.read(left)
    return len(terminal.output) - before


def _slow_line() -> Figure:
    """Measures from a key to the complete view, on a terminal that reads no faster than a slow line."""
    with _watching("slow", (80, 24)) as terminal:
        for _ in range(int(SETTLED / 0.05)):
            _trickle(terminal)
        waits: list[float] = []
        texts = ("parameter bytes", "last switch")
        for key, shows, hides in (("3", *texts), ("1", *reversed(texts))) * REPEATS:
            began = time.monotonic()
            terminal.send(key)
            while shows not in (text := "\n".join(terminal.screen.display)) or hides in text:
                _trickle(terminal)
            waits.append(time.monotonic() - began)
    name = f"from a key to the whole of another view at {BAUD:,} baud, 80 × 24"
    return at_most(15, name, waits, "s", f"6 kB at {BAUD // 10} bytes/s: 6 s")


def _trickle(terminal: Terminal) -> None:
    """Reads what a line of that rate carries in 50 ms, at ten bits per byte."""
    time.sleep(0.05)
    if select.select([terminal.master], [], [], 0)[0]:
        terminal.stream.feed(os.read(terminal.master, BAUD // 10 // 20))


def _keys() -> list[Figure]:
    """Measures from `l` to the title of the logarithmic axis, while the engine compiles and trains."""
    with _watching("keys", (140, 40)) as terminal:
        waits: list[float] = []
        for number in range(PRESETS):
            terminal.send("\x1b[B\r")
            for _ in range(KEYS // PRESETS):
                _bytes_in(terminal, 0.5 + 0.037 * number)
                waits.append(_wait_for(terminal, "l", b"log axis"))
                terminal.send("l")
        ordered = quantiles(waits, n=100)
    name, against = "from a key to the first byte of its answer", f"{KEYS} keys, {PRESETS} presets compiled meanwhile"
    return [
        at_most(50, f"{name}, median", [1e3 * wait for wait in waits], "ms", against),
        at_most(200, f"{name}, p99", [1e3 * ordered[-1]], "ms", against),
    ]


def _wait_for(terminal: Terminal, key: str, answer: bytes) -> float:
    before, began = len(terminal.output), time.monotonic()
    terminal.send(key)
    while answer not in terminal.output[before:]:
        terminal.read(0.5)
    return time.monotonic() - began
