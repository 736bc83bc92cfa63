"""Traces of a few steps by `jax.profiler`, written to the run directory."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import jax

from ..base.advice import problems_in
from ..wire.events import Event, Profiled, ProfileFailed, ProfileWriting, Profiling

WARM_UP = 3
"""Steps that are skipped if a trace is requested for the start of a run."""


class Profiler:
    """Traces steps, at most one trace at a time; only the training thread uses it. Costs nothing without a request."""

    def __init__(self, directory: Path, publish: Callable[[Event], None]) -> None:
        self._directory = directory
        self._publish = publish
        self._requested: range | None = None
        """Steps to trace next, counted from 0; None if no trace is requested."""
        self._traced: range | None = None
        """Steps of the trace in progress; None if there is none."""

    def request(self, first: int, steps: int) -> None:
        """Requests a trace of `steps` steps from step `first` on; replaces a request that has not begun."""
        self._requested = range(first, first + steps)

    def begin(self, step: int) -> None:
        """Starts the requested trace if its first step is reached and no other trace is in progress."""
        if self._requested is None or self._traced is not None or step < self._requested.start:
            return
        steps, self._requested = len(self._requested), None
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing every Python call would slow the traced steps
        with contextlib.suppress(RuntimeError):
            jax.profiler.stop_trace()  # jax 0.10 keeps a trace active that could not be written
        try:
            self._directory.mkdir(exist_ok=True)
            jax.profiler.start_trace(self._directory, profiler_options=options)
        except Exception as error:
            self._publish(ProfileFailed(step=step, problems=problems_in(error)))
        else:
            self._traced = range(step, step + steps)
            self._publish(Profiling(step=step, steps=steps))

    def named(self, step: int) -> "contextlib.AbstractContextManager[object]":
        """Returns a context that annotates this step in the trace, or does nothing if no trace is in progress."""
        if self._traced is None:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=step + 1)

    def is_over(self, step: int) -> bool:
        """Returns whether a trace is in progress and all of its steps are among the `step` steps that have begun."""
        return self._traced is not None and step >= self._traced.stop

    def end(self, step: int) -> None:
        """Writes the trace in progress, if any. The caller has waited for the steps up to this one."""
        traced, self._traced = self._traced, None
        if traced is None:
            return
        self._publish(ProfileWriting(step=step, steps=step - traced.start))
        try:
            jax.profiler.stop_trace()
        except Exception as error:
            self._publish(ProfileFailed(step=step, problems=problems_in(error)))
        else:
            self._publish(Profiled(step=step, steps=step - traced.start, directory=str(self._directory)))
