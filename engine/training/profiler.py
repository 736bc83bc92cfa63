"""Traces of a few steps by `jax.profiler`, into the run directory."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import jax

from ..base.advice import problems_in
from ..wire.events import Event, Profiled, ProfileFailed, ProfileWriting, Profiling

WARM_UP = 3
"""Steps that are left out where a run is traced from its start."""


class Profiler:
    """At most one trace at a time. Used by the training thread alone; costs nothing while no trace is wanted."""

    def __init__(self, directory: Path, publish: Callable[[Event], None]) -> None:
        self._directory = directory
        self._publish = publish
        self._wanted: range | None = None
        """Steps, counted from 0."""
        self._traced: range | None = None
        """Those of the trace that goes on."""

    def ask(self, first: int, steps: int) -> None:
        """For a trace of so many steps; in the place of one that has not begun."""
        self._wanted = range(first, first + steps)

    def begin(self, step: int) -> None:
        """Starts the trace that is wanted from this step on, if there is one and no other goes on."""
        if self._wanted is None or self._traced is not None or step < self._wanted.start:
            return
        steps, self._wanted = len(self._wanted), None
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each call of a Python function would slow the steps that are looked at
        with contextlib.suppress(RuntimeError):
            jax.profiler.stop_trace()  # one that could not be written, which jax 0.10 keeps until it can
        try:
            self._directory.mkdir(exist_ok=True)
            jax.profiler.start_trace(self._directory, profiler_options=options)
        except Exception as error:
            self._publish(ProfileFailed(step=step, problems=problems_in(error)))
        else:
            self._traced = range(step, step + steps)
            self._publish(Profiling(step=step, steps=steps))

    def named(self, step: int) -> "contextlib.AbstractContextManager[object]":
        """The step's name in the trace, if one goes on."""
        if self._traced is None:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=step + 1)

    def is_over(self, step: int) -> bool:
        """A trace goes on, and all of its steps are among the `step` ones that have begun."""
        return self._traced is not None and step >= self._traced.stop

    def end(self, step: int) -> None:
        """Writes the trace that goes on, if one does. The caller has waited for the steps up to this one."""
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
