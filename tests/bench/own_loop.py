"""The overhead of watching an external loop, by three lines and by none: steps with and without it alternate, in one
process."""

import time
import timeit
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from shardtui.engine.spec.watch_request import WatchRequest
from shardtui.engine.watch import watch
from shardtui.engine.watching.jitted import Jitted
from shardtui.engine.watching.program import Program

from . import plain
from .figure import Figure, at_most
from .watching import SMALL

PAIRS = 40
"""Pairs are short, so that other load on the machine affects both sides alike."""
NANO_STEPS, SMALL_STEPS = 3, 200
CALLS, STEPS = 5000, 2000

Report = Callable[[jax.Array], None]
"""What is called with the loss of each step."""


class ExternalLoop:
    """The plain loop, which reads each loss after the next step is dispatched, and reports it or not."""

    def __init__(self, bare: plain.Plain) -> None:
        self._bare = bare
        self.state = bare.state()
        self._number = 0

    def seconds(self, steps: int, report: Report = lambda _: None, step: Callable[..., Any] | None = None) -> float:
        step = step or self._bare.step
        began, before = time.perf_counter(), None
        for _ in range(steps):
            self.state, scalars = step(self.state, self._bare.batch(self._number))
            report(loss := scalars["loss"])
            if before is not None:
                float(before)
            before, self._number = loss, self._number + 1
        float(before)
        return (time.perf_counter() - began) / steps


def _measured(name: str, bare: plain.Plain, steps: int) -> Iterator[Figure]:
    loop, calls = ExternalLoop(bare), []
    with watch(f"bench-{steps}", state=loop.state, step=bare.step, args=(loop.state, bare.batch(0))) as run:

        def timed(loss: jax.Array) -> None:
            began = time.perf_counter()
            run.step(loss)
            calls.append(time.perf_counter() - began)

        loop.seconds(steps, run.step)
        pairs = [(loop.seconds(steps, run.step), loop.seconds(steps)) for _ in range(PAIRS)]
        for _ in range(PAIRS):
            loop.seconds(steps, timed)
    yield _ratio(f"{name}, watched ÷ not", pairs)
    yield at_most(10, f"{name}, a call of `step`", [1e6 * seconds for seconds in calls], "µs", "1 % of 1 ms")


def _unmodified(name: str, bare: plain.Plain, steps: int) -> Iterator[Figure]:
    """The same with a stand-in for the jitted step, as `shardtui watch` puts one in its place."""
    program = Program(WatchRequest(run=f"bench-unmodified-{steps}"))
    loop, stand_in = ExternalLoop(bare), Jitted(bare.step, program._calls_of(bare.step))
    loop.seconds(steps, step=stand_in)
    pairs = [(loop.seconds(steps, step=stand_in), loop.seconds(steps)) for _ in range(PAIRS)]
    program._end()
    yield _ratio(f"{name}, unmodified and watched ÷ not", pairs)


def _ratio(name: str, pairs: list[tuple[float, float]]) -> Figure:
    """Of seconds of a step with and without."""
    against = f"without: {1e3 * median(without for _, without in pairs):.3g} ms a step"
    return at_most(1.01, name, [watched / without for watched, without in pairs], "×", against)


def _calls() -> Iterator[Figure]:
    """What a call of the step, between steps of a millisecond, and one of another jitted function takes longer."""
    program = Program(WatchRequest(run="bench-calls"))
    step, other = jax.jit(lambda state: ({**state, "n": state["n"] + 1}, state["n"])), jax.jit(lambda x: x)
    state = {f"w{at}": jnp.zeros(()) for at in range(100)} | {"n": jnp.zeros(())}
    inner, more, kept = [0.0], list[float](), deque[Any](maxlen=2)

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = step(*arguments)
        inner[0] = time.perf_counter() - began
        return result

    stand_in = Jitted(step, program._calls_of(step), timed)
    for _ in range(STEPS):
        until = time.perf_counter() + 1e-3
        while time.perf_counter() < until:
            pass
        kept.append(state)  # not freed within the call
        began = time.perf_counter()
        state, _ = stand_in(state)
        more.append(1e6 * (time.perf_counter() - began - inner[0]))
    program._end()
    name = "a call of the step of an unmodified program, watched − not"
    yield at_most(10, name, more[-STEPS // 2 :], "µs", "1 % of 1 ms")

    def microseconds(function: Any) -> float:
        return 1e6 * min(timeit.repeat(lambda: function(state["n"]), number=CALLS, repeat=5)) / CALLS

    watched = Jitted(other, program._calls_of(other))
    pairs = [microseconds(watched) - microseconds(other) for _ in range(PAIRS)]
    name = "a call of another of its jitted functions, watched − not"
    yield at_most(1, name, pairs, "µs", f"{microseconds(other):.2g} µs")


def run() -> list[Figure]:
    nano, small = plain.Plain(plain.config()), plain.Plain(plain.config(*SMALL, devices=1))
    return [
        *_measured("a step of an own loop, nano on 8 devices", nano, NANO_STEPS),
        *_measured("a small step of an own loop, one device", small, SMALL_STEPS),
        *_unmodified("a step of nano on 8 devices", nano, NANO_STEPS),
        *_unmodified("a small step, one device", small, SMALL_STEPS),
        *_calls(),
    ]
