"""The run of an external loop: what it begins with, and its reporter."""

import logging
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jax.core import Tracer

from ..base.machine import versions
from ..base.user_error import UserError
from ..parallel.mesh import describe_device
from ..program.memory import allocated, limit
from ..spec.config import WatchedRun
from ..wire.descriptions import PresetInfo
from ..wire.events import EngineReady, Event, PresetInspected, TrainingStarted
from .external import Described
from .reporter import Reporter

NOT_INSPECTED = "not available for an external loop"

_logger = logging.getLogger("shardtui")


class Watch:
    """A context manager that reports the loop inside it; if it cannot report, the loop runs all the same."""

    name: str | None = None
    """Name of the run, once the context is entered; None if nothing is reported."""

    def __init__(
        self,
        about: WatchedRun,
        found: Described | None,
        steps_done: int,
        tokens_per_step: int | None = None,
        flops_per_step: float | None = None,
        output: Path | None = None,
    ) -> None:
        """`found`: the state and the step as described; if None, nothing is reported. `output`: the file that the
        program prints to."""
        self._output = output
        self._about, self._found, self._steps_done = about, found, steps_done
        self._rates = tokens_per_step, flops_per_step
        self.reporter: Reporter | None = None
        self._is_checked = False

    def step(self, loss: Any, **metrics: Any) -> None:
        """Reports a dispatched step. `loss` and `metrics`: its scalars, each shown as a curve; this call does not wait
        for them. Raises TypeError if one of the first step is not a scalar."""
        if not self._is_checked:
            for value in (loss, *metrics.values()):
                _check(value)
            self._is_checked = True
        if self.reporter:
            self.reporter.step((loss, *metrics.values()), [None, *metrics])

    def __enter__(self) -> Self:
        found, self._found = self._found, None
        if found:
            try:
                opening = _opening(self._about, found, self._steps_done, *self._rates)
                measuring = partial(allocated, found.devices)
                self.reporter = Reporter(self._about, opening, found.step, measuring, self._steps_done, self._output)
                self.name = self.reporter.about.run
            except Exception as error:
                _logger.warning(
                    "%s is not watched: %s", self._about.run, error, exc_info=not isinstance(error, UserError)
                )
        if self.name not in (None, self._about.run):
            _logger.warning("a run %s already exists: this one is named %s", self._about.run, self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.reporter:
            try:
                self.reporter.end(error)
            except Exception:
                _logger.warning("cannot report how run %s ended", self.name, exc_info=True)


def _check(loss: Any) -> None:
    if isinstance(loss, Tracer):
        raise TypeError(
            "watch: step(loss): called inside a function that jax traces: call it in the Python loop, with the result"
        )
    if getattr(loss, "shape", ()) or not hasattr(loss, "__float__"):
        shape = f" of shape {loss.shape}" if hasattr(loss, "shape") else ""
        raise TypeError(f"watch: step(loss): {type(loss).__name__}{shape}: must be a scalar, such as loss.mean()")


def _opening(
    about: WatchedRun, found: Described, steps_done: int, tokens: int | None, flops: float | None
) -> list[Event]:
    """Returns the first events of the run."""
    inner = PresetInspected(preset=about.preset, arrays=[], rematerializations=[], problem=NOT_INSPECTED)
    started = TrainingStarted(preset=about.preset, step=steps_done)
    return [_ready(about, found, tokens, flops), found.layout, inner, started]


def _ready(about: WatchedRun, found: Described, tokens: int | None, flops: float | None) -> EngineReady:
    devices = found.devices
    layout = PresetInfo(
        name=about.preset,
        summary="The one layout of this run, as its own program compiled it.",
        teaches="",
        source="watched",
        mesh=found.layout.mesh.axes,
        fits=True,
        problems=[],
    )
    return EngineReady(
        versions=versions(),
        devices=[describe_device(device) for device in devices],
        simulated=devices[0].platform == "cpu" and len(devices) > 1,
        memory_limit=limit(devices, None),
        warnings=found.problems,
        dtype=None,
        parameters=found.parameters,
        padding_parameters=0,
        tokens_per_step=tokens,
        flops_per_step=flops,
        corpus=None,
        presets=[layout],
        preset_problems=[],
    )
