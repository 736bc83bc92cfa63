"""The overhead of `watch` in an external loop: steps with and without it alternate, in one process."""

import time
from collections.abc import Callable, Iterator
from statistics import median

import jax
from shardtui.engine.watch import watch

from . import plain
from .figure import Figure, at_most
from .watching import SMALL

PAIRS = 40
"""Pairs are short, so that other load on the machine affects both sides alike."""
NANO_STEPS, SMALL_STEPS = 3, 200

Report = Callable[[jax.Array], None]
"""What is called with the loss of each step."""


class ExternalLoop:
    """The plain loop, which reads each loss after the next step is dispatched, and reports it or not."""

    def __init__(self, bare: plain.Plain) -> None:
        self._bare = bare
        self.state = bare.state()
        self._number = 0

    def seconds(self, steps: int, report: Report) -> float:
        began, before = time.perf_counter(), None
        for _ in range(steps):
            self.state, loss = self._bare.step(self.state, self._bare.batch(self._number))
            report(loss)
            if before is not None:
                float(before)
            before, self._number = loss, self._number + 1
        float(before)
        return (time.perf_counter() - began) / steps


def _measured(name: str, bare: plain.Plain, steps: int) -> Iterator[Figure]:
    loop, calls = ExternalLoop(bare), []
    with watch(f"bench-{steps}", state=loop.state, step=bare.step) as run:

        def timed(loss: jax.Array) -> None:
            began = time.perf_counter()
            run.step(loss)
            calls.append(time.perf_counter() - began)

        loop.seconds(steps, run.step)
        pairs = [(loop.seconds(steps, run.step), loop.seconds(steps, lambda _: None)) for _ in range(PAIRS)]
        for _ in range(PAIRS):
            loop.seconds(steps, timed)
    alone = median(without for _, without in pairs)
    against = f"without: {1e3 * alone:.3g} ms a step"
    yield at_most(1.01, f"{name}, watched ÷ not", [watched / without for watched, without in pairs], "×", against)
    yield at_most(10, f"{name}, a call of `step`", [1e6 * seconds for seconds in calls], "µs", "1 % of 1 ms")


def run() -> list[Figure]:
    nano, small = plain.Plain(plain.config()), plain.Plain(plain.config(*SMALL, devices=1))
    return [
        *_measured("a step of an own loop, nano on 8 devices", nano, NANO_STEPS),
        *_measured("a small step of an own loop, one device", small, SMALL_STEPS),
    ]
