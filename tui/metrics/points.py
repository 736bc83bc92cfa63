"""The points of a run's curves, from its events: each scalar of each step once, although steps may run again."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...engine.wire.events import AnyEvent, EngineReady, Evaluated, MemoryMeasured, PartsMeasured, StepsDone
from ..state.rewinds import Rewinds, limits_of


class Point(NamedTuple):
    """Scalars of one step, perhaps not all of them. Steps of successive points never fall."""

    step: int
    time: float
    """When the step ended, or the scalar was measured, in seconds since the epoch."""
    scalars: dict[str, float]
    """Values by name, such as `train/loss`; NaN if one was not finite."""


class Rewind:
    """The run goes back: points that were made before are no part of its curves any more."""


class Points:
    """Makes the points from events, which are given in order. Of steps that ran several times in the history, which is
    known beforehand, it makes only the last ones. A later rewind is a `Rewind`, after which they are made anew."""

    def __init__(self, history: Iterable[list[AnyEvent]]) -> None:
        self._limits = deque(limits_of(history))
        self.rewinds = len(self._limits)
        """Number of rewinds in the history."""
        self._found = Rewinds()
        self._others: dict[str, int] = {}
        """Last step of each scalar that is not measured at every step."""
        self._began: float | None = None
        """Time of the first event; no step ended earlier, also if a watched program was noticed late."""
        self._ready: EngineReady | None = None
        self._peak: float | None = None
        """FLOP/s of all devices; None if unknown."""

    def of(self, event: AnyEvent) -> Iterator[Point | Rewind]:
        self._began = event.time if self._began is None else self._began
        kept = self._found.add(event)
        if kept is not None and self._limits:
            self._limits.popleft()
        elif kept is not None:
            yield Rewind()
        limit = self._limits[0] if self._limits else math.inf
        for point in self._points(event):
            if point.step <= limit and point.scalars:
                yield point

    def _points(self, event: AnyEvent) -> Iterator[Point]:
        match event:
            case EngineReady():
                self._ready, self._peak = event, event.peak_flops
            case StepsDone():
                yield from self._of_steps(event)
            case Evaluated():
                yield self._other(event.step, event, {"eval/loss": math.nan if event.loss is None else event.loss})
            case MemoryMeasured():
                peak = {} if event.peak_bytes is None else {"memory/peak_bytes": float(event.peak_bytes)}
                yield self._other(0, event, {"memory/bytes_in_use": float(event.bytes_in_use)} | peak)
            case PartsMeasured():
                yield self._other(event.step, event, {f"parts/{part.name}": part.seconds for part in event.parts})
            case _:
                pass

    def _of_steps(self, event: StepsDone) -> Iterator[Point]:
        absent = math.nan if event.nonfinite else None  # else the steps have no loss
        columns = {f"train/{name}": values for name, values in event.metrics.items()}
        ended = event.time - sum(event.step_seconds)
        step = event.step - len(event.losses)
        for index, (loss, seconds) in enumerate(zip(event.losses, event.step_seconds, strict=True)):
            ended += seconds
            scalars = {"train/loss": absent if loss is None else loss}
            scalars |= {name: values[index] for name, values in columns.items()}
            scalars |= self._speeds(seconds)
            moment = max(ended, self._began or 0.0)
            yield Point(step + index + 1, moment, {name: each for name, each in scalars.items() if each is not None})
        if event.input_wait_seconds is not None:
            waited = event.input_wait_seconds / max(sum(event.step_seconds), 1e-9)
            yield Point(event.step, event.time, {"speed/input_wait_share": _rounded(waited)})

    def _speeds(self, seconds: float) -> dict[str, float]:
        found = {"speed/step_seconds": seconds}
        if self._ready and seconds > 0:
            if tokens := self._ready.tokens_per_step:
                found[f"speed/{self._ready.counted}_per_second"] = _rounded(tokens / seconds)
            if self._peak and (flops := self._ready.flops_per_step):
                found["speed/mfu"] = _rounded(flops / seconds / self._peak)
        return found

    def _other(self, step: int, event: AnyEvent, scalars: dict[str, float]) -> Point:
        """Returns the point of scalars that are measured now and then, at the last step or a later `step`. One of a
        step that has them is empty, as after a rewind to it."""
        step = max(step, self._found.step)
        new = {name: value for name, value in scalars.items() if self._others.get(name, -1) < step}
        if not self._limits or step <= self._limits[0]:
            self._others |= dict.fromkeys(new, step)
        return Point(step, event.time, new)


def _rounded(value: float) -> float:
    """Returns a quotient with the digits of its measured seconds."""
    return float(f"{value:.6g}")
