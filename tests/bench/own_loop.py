"""What a loop that is not ours pays for `watch`: a few steps with it and a few without it in turn, in one process."""

import time
from collections.abc import Callable, Iterator
from statistics import median

import jax
from shardtui.engine.watch import watch

from . import plain
from .figure import Figure, at_most
from .watching import SMALL

PAIRS = 40
"""Short ones: what else the machine does falls on both sides alike."""
NANO_STEPS, SMALL_STEPS = 3, 200

Told = Callable[[jax.Array], None]


class OwnLoop:
    """The plain loop, which reads each loss when the next step has been dispatched, and tells of it or does not."""

    def __init__(self, bare: plain.Plain) -> None:
        self._bare = bare
        self.state = bare.state()
        self._number = 0

    def seconds(self, steps: int, told: Told) -> float:
        began, before = time.perf_counter(), None
        for _ in range(steps):
            self.state, loss = self._bare.step(self.state, self._bare.batch(self._number))
            told(loss)
            if before is not None:
                float(before)
            before, self._number = loss, self._number + 1
        float(before)
        return (time.perf_counter() - began) / steps


def _nobody(loss: jax.Array) -> None:
    pass


def _measured(name: str, bare: plain.Plain, steps: int) -> Iterator[Figure]:
    loop, calls = OwnLoop(bare), []
    with watch(f"bench-{steps}", state=loop.state, step=bare.step) as run:

        def tell(loss: jax.Array) -> None:
            began = time.perf_counter()
            run.step(loss)
            calls.append(time.perf_counter() - began)

        loop.seconds(steps, run.step)
        pairs = [(loop.seconds(steps, run.step), loop.seconds(steps, _nobody)) for _ in range(PAIRS)]
        for _ in range(PAIRS):
            loop.seconds(steps, tell)
    alone = median(without for _, without in pairs)
    against = f"without: {1e3 * alone:.3g} ms a step"
    yield at_most(1.01, f"{name}, watched ÷ not", [told / without for told, without in pairs], "×", against)
    yield at_most(10, f"{name}, a call of `step`", [1e6 * seconds for seconds in calls], "µs", "1 % of 1 ms")


def run() -> list[Figure]:
    nano, small = plain.Plain(plain.config()), plain.Plain(plain.config(*SMALL, devices=1))
    return [
        *_measured("a step of an own loop, nano on 8 devices", nano, NANO_STEPS),
        *_measured("a small step of an own loop, one device", small, SMALL_STEPS),
    ]
