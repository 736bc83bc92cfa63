"""Losses, times and memory of steps, read one step late and told a few times a second."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import jax

from ..distributed.cluster import Cluster
from ..wire.events import Event, HostsMeasured, MemoryMeasured, StepsDone

REPORT_SECONDS = 0.5
HOSTS_SECONDS = 5.0
"""From one word of how all processes stand to the next."""
RECENT_STEPS = 32
"""Steps whose losses are averaged, to tell which checkpoint is the best."""
MEMORY_CHANGE = 0.05
"""Part by which memory in use has to change to be told again."""


class StepReports:
    """Reading a loss waits for its step. By then the next one is dispatched, so the devices do not wait."""

    def __init__(
        self,
        publish: Callable[[Event], None],
        measure: Callable[[], MemoryMeasured | None],
        cluster: Cluster,
        step: int = 0,
    ) -> None:
        """`step`: after which the first one comes."""
        self.begun = step
        """Steps dispatched."""
        self.done = step
        """Steps whose loss is here."""
        self.step_seconds = 0.0
        """Of the last one."""
        self.last_loss: float | None = None
        self.is_finite = True
        """The last loss was."""
        self._was_finite = True
        """When `has_blown_up` was asked last."""
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._publish = publish
        self._measure = measure
        self._cluster = cluster
        self._hosts_told = -HOSTS_SECONDS
        self._bytes_in_use = 0
        self._in_flight: jax.Array | None = None
        self._losses: list[float | None] = []
        self._seconds: list[float] = []
        self._waited: float | None = 0.0
        """None where nobody can tell."""
        self._clock = self._reported = time.perf_counter()

    @property
    def recent_loss(self) -> float | None:
        """Mean of the last steps'; None where one of them was not finite."""
        mean = sum(self._recent) / len(self._recent) if self._recent else math.nan
        return mean if math.isfinite(mean) else None

    @property
    def is_busy(self) -> bool:
        """The devices still work on the step that was dispatched last."""
        return self._in_flight is not None and not self._in_flight.is_ready()  # pyright: ignore[reportAttributeAccessIssue]

    def add(self, loss: jax.Array, waited: float) -> None:
        """A step was dispatched after the devices had waited for its batch, for `waited` seconds at most."""
        previous, self._in_flight = self._in_flight, loss
        self.begun += 1
        self._waited = (self._waited or 0.0) + waited
        if previous is not None:
            self._read(previous)
        self._report_if_due()

    def add_read(self, losses: Sequence[float]) -> None:
        """Steps of a loop that is not ours are done; their losses were read already, at once: each took the mean."""
        began, now = self._clock, time.perf_counter()
        self.begun += len(losses)
        self._waited = None
        for number, loss in enumerate(losses, 1):
            self._note(loss, began + (now - began) * number / len(losses))
        self._report_if_due()

    def settle(self) -> None:
        """Waits for the step in flight and tells of all."""
        if self._in_flight is not None:
            self._read(self._in_flight)
            self._in_flight = None
        if self._losses:
            self._report()

    def has_blown_up(self) -> bool:
        """A loss was not finite, the first since this was asked last; whoever had it read."""
        was, self._was_finite = self._was_finite, self.is_finite
        return was and not self.is_finite

    def restart_clock(self) -> None:
        """The time since the last step was not spent on the next one."""
        self._clock = time.perf_counter()

    def _report_if_due(self) -> None:
        if self._losses and self._clock - self._reported >= REPORT_SECONDS:
            self._report()

    def _read(self, loss: jax.Array) -> None:
        value = float(loss)
        self._note(value, time.perf_counter())

    def _note(self, loss: float, now: float) -> None:
        value = float(f"{loss:.9g}")  # all digits that a float32 has: a double has twice as many, and the log is long
        self.is_finite = math.isfinite(value)
        self.last_loss = value if self.is_finite else None
        self.done += 1
        self._recent.append(value)
        self._losses.append(self.last_loss)
        self.step_seconds = now - self._clock
        self._seconds.append(round(self.step_seconds, 6))
        self._clock = now

    def _report(self) -> None:
        nonfinite = ["losses"] if None in self._losses else []
        self._publish(
            StepsDone(
                step=self.done,
                losses=self._losses,
                step_seconds=self._seconds,
                input_wait_seconds=None if self._waited is None else round(self._waited, 6),
                nonfinite=nonfinite,
            )
        )
        self._report_memory()
        self._losses, self._seconds, self._waited = [], [], 0.0
        self._reported = self._clock

    def _report_memory(self) -> None:
        measured = self._measure()
        if measured is None:
            return
        if abs(measured.bytes_in_use - self._bytes_in_use) > MEMORY_CHANGE * self._bytes_in_use:
            self._bytes_in_use = measured.bytes_in_use
            self._publish(measured)
        self._cluster.report(self.done, measured.bytes_in_use)
        if self._clock - self._hosts_told >= HOSTS_SECONDS and (hosts := self._cluster.statuses()):
            self._hosts_told = self._clock
            self._publish(HostsMeasured(hosts=hosts))
