"""Losses, times and memory of steps, read one step late and reported at most every `REPORT_SECONDS`."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import jax

from ..distributed.cluster import Cluster
from ..wire.events import Event, HostsMeasured, MemoryMeasured, Spiked, StepsDone, StepSkipped
from .spikes import WATCHED, Spikes

REPORT_SECONDS = 0.5
HOSTS_SECONDS = 5.0
RECENT_STEPS = 32
"""Steps whose losses are averaged to choose the best checkpoint."""
MEMORY_CHANGE = 0.05
"""Fraction by which memory in use must change to be reported again."""


class StepReports:
    """Reads and reports the losses of steps, each after the next step is dispatched, so that devices never wait."""

    def __init__(
        self,
        publish: Callable[[Event], None],
        measure: Callable[[], MemoryMeasured | None],
        cluster: Cluster,
        step: int = 0,
        skips_nonfinite: bool = False,
    ) -> None:
        """`skips_nonfinite`: whether a step whose loss or gradient is not finite has left the state as it was."""
        self.begun = step
        self.done = step
        self.step_seconds = 0.0
        self.last_loss: float | None = None
        """Loss of the last step; None before the first one and if it is not finite."""
        self.is_finite = True
        """Whether the state is known to be good: the last loss and gradient are finite, or their step was skipped."""
        self.nonfinite_step: int | None = None
        """The first step whose loss or gradient was not finite."""
        self._was_finite = True
        self._skips_nonfinite, self._skipped = skips_nonfinite, 0
        self._spikes, self._spike = Spikes(), None
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._publish, self._measure, self._cluster = publish, measure, cluster
        self._hosts_reported = -HOSTS_SECONDS
        self._in_use: dict[int, int] = {}
        self._in_flight: Mapping[str, jax.Array] | None = None
        self._losses: list[float | None] = []
        self._has_nonfinite = False
        """Whether one of them is not finite."""
        self._metrics: dict[str, list[float | None]] = {}
        self._seconds: list[float] = []
        self._waited: float | None = 0.0
        """Seconds that the devices waited for input since the last report; None if unknown."""
        self._clock = self._reported = time.perf_counter()

    @property
    def recent_loss(self) -> float | None:
        """Mean loss of the last `RECENT_STEPS` steps; None if one of them is not finite, or there are none."""
        mean = sum(self._recent) / len(self._recent) if self._recent else math.nan
        return mean if math.isfinite(mean) else None

    @property
    def is_busy(self) -> bool:
        """Whether the devices still run the step that was dispatched last."""
        return self._in_flight is not None and not self._in_flight["loss"].is_ready()  # pyright: ignore[reportAttributeAccessIssue]

    def add(self, scalars: Mapping[str, jax.Array], waited: float) -> None:
        """Adds a dispatched step and reads the scalars of the previous one. `waited`: seconds that the devices may have
        waited for its batch, at most."""
        previous, self._in_flight = self._in_flight, scalars
        self.begun += 1
        self._waited = (self._waited or 0.0) + waited
        if previous is not None:
            self._read(previous)
        self._report_if_due()

    def add_losses(self, losses: Sequence[tuple[float | None, Mapping[str, float], float | None]]) -> None:
        """Adds finished steps of an external loop, each with its loss, metrics and seconds, which were read at once:
        steps whose seconds are None are assigned the mean time. A step without a loss has None."""
        mean = self._elapsed() / len(losses)
        self.begun += len(losses)
        self._waited = None
        for loss, metrics, seconds in losses:
            self._count(loss, metrics, mean if seconds is None else seconds)
        self._report_if_due()

    def flush(self) -> None:
        """Waits for the step in flight and reports all steps that were not reported yet."""
        if self._in_flight is not None:
            self._read(self._in_flight)
            self._in_flight = None
        if self._losses:
            self._report()

    def became_nonfinite(self) -> bool:
        """Returns whether the loss has become nonfinite since the last call."""
        was, self._was_finite = self._was_finite, self.is_finite
        return was and not self.is_finite

    def new_spike(self) -> Spiked | None:
        """Returns the spike that was found since the last call, if any."""
        spike, self._spike = self._spike, None
        return spike

    def restart_clock(self) -> None:
        self._clock = time.perf_counter()

    def _report_if_due(self) -> None:
        if self._losses and self._clock - self._reported >= REPORT_SECONDS:
            self._report()

    def _read(self, scalars: Mapping[str, jax.Array]) -> None:
        with self._cluster.step():
            values = {name: float(value) for name, value in jax.device_get(dict(scalars)).items()}
        self._count(values.pop("loss"), values, self._elapsed())

    def _add_metrics(self, metrics: Mapping[str, float]) -> None:
        for name in metrics:
            self._metrics.setdefault(name, [None] * len(self._losses))
        for name, values in self._metrics.items():
            value = metrics.get(name)
            values.append(_digits(value) if value is not None and math.isfinite(value) else None)

    def _elapsed(self) -> float:
        """Returns the seconds since the last step."""
        before, self._clock = self._clock, time.perf_counter()
        return self._clock - before

    def _count(self, loss: float | None, metrics: Mapping[str, float], seconds: float) -> None:
        self._add_metrics(metrics)
        self.done += 1
        is_finite = loss is None or math.isfinite(loss)
        self.last_loss = None if loss is None or not is_finite else _digits(loss)
        self._has_nonfinite |= not is_finite
        self._losses.append(self.last_loss)
        self._check(loss, metrics)
        self.step_seconds = seconds
        self._seconds.append(round(seconds, 6))

    def _check(self, loss: float | None, metrics: Mapping[str, float]) -> None:
        """Looks for what is not finite, and for spikes."""
        scalars = metrics if loss is None else {"loss": loss, **metrics}
        self.is_finite = all(math.isfinite(scalars.get(name, 0.0)) for name in WATCHED)
        if not self.is_finite:
            self.nonfinite_step = self.nonfinite_step or self.done
        if self._skips_nonfinite and not self.is_finite:
            self.is_finite = True
            self._skipped += 1
            self._publish(StepSkipped(step=self.done, skipped=self._skipped))
        elif loss is not None:
            self._recent.append(_digits(loss))
        if spike := self._spikes.add(self.done, scalars):
            self._spike = spike
            self._publish(spike)

    def _report(self) -> None:
        nonfinite = ["losses"] if self._has_nonfinite else []
        self._publish(
            StepsDone(
                step=self.done,
                losses=self._losses,
                step_seconds=self._seconds,
                input_wait_seconds=None if self._waited is None else round(self._waited, 6),
                nonfinite=nonfinite,
                metrics=self._metrics,
            )
        )
        self._report_memory()
        self._losses, self._metrics, self._seconds, self._waited = [], {}, [], 0.0
        self._has_nonfinite = False
        self._reported = self._clock

    def _report_memory(self) -> None:
        measured = self._measure()
        if measured is None:
            return
        old, now = self._in_use, measured.bytes_by_device
        if not all(math.isclose(size, old.get(device, 0), rel_tol=MEMORY_CHANGE) for device, size in now.items()):
            self._in_use = now
            self._publish(measured)
        self._cluster.report(self.done, measured.bytes_in_use)
        if self._clock - self._hosts_reported >= HOSTS_SECONDS and (hosts := self._cluster.statuses()):
            self._hosts_reported = self._clock
            self._publish(HostsMeasured(hosts=hosts))


def _digits(value: float) -> float:
    """Returns a loss or metric with all digits of a float32: a double's would double the size of the log."""
    return float(f"{value:.9g}")
