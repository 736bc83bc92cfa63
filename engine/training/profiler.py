"""Traces of a few steps by `jax.profiler`, written to the run directory, and the account of where their time went."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
from msgspec.structs import replace

from ..base.advice import problems_in
from ..profiling.account import Place, read_account
from ..profiling.host_plane import INPUT
from ..program.program import Program
from ..spec.topology import ring_rate
from ..wire.account import Account
from ..wire.events import Event, Profiled, ProfileFailed, ProfileWriting, Profiling
from .progress import Progress

WARM_UP = 3
"""Steps that are skipped if a trace is requested for the start of a run."""
MOST_READ = 50
"""Steps in a trace at most for it to be read: 2.5 MB each, and several times that in memory."""


@dataclass(frozen=True)
class Tracing:
    """A trace in progress."""

    steps: range
    """Steps to trace, counted from 0."""
    began: float
    """When the first one began, by the engine's clock."""


class Profiler:
    """Traces steps, at most one trace at a time; only the training thread uses it. Costs nothing without a request."""

    def __init__(self, directory: Path, publish: Callable[[Event], None], reads: bool = True) -> None:
        """`reads`: whether to read each trace for the account of a step."""
        self._directory = directory
        self._publish = publish
        self._reads = reads
        self._requested: range | None = None
        """Steps to trace next, counted from 0; None if no trace is requested."""
        self._tracing: Tracing | None = None
        """None if there is no trace in progress."""

    def request(self, first: int, steps: int) -> None:
        """Requests a trace of `steps` steps from step `first` on; replaces a request that has not begun."""
        self._requested = range(first, first + steps)

    def begin(self, at: Progress) -> None:
        """Starts the requested trace if its first step is reached and no other trace is in progress.

        Waits for the step in flight, so that the trace has only whole steps.
        """
        step = at.begun
        if self._requested is None or self._tracing is not None or step < self._requested.start:
            return
        steps, self._requested = len(self._requested), None
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing every Python call would slow the traced steps
        options.host_tracer_level = 1  # has all operations and annotations; level 2 slows steps on CPU
        with contextlib.suppress(RuntimeError):
            jax.profiler.stop_trace()  # jax 0.10 keeps a trace active that could not be written
        jax.block_until_ready(at.state)
        try:
            self._directory.mkdir(exist_ok=True)
            jax.profiler.start_trace(self._directory, profiler_options=options)
        except Exception as error:
            self._publish(ProfileFailed(step=step, problems=problems_in(error)))
        else:
            self._publish(Profiling(step=step, steps=steps))
            self._tracing = Tracing(range(step, step + steps), time.perf_counter())

    def named(self, step: int) -> "contextlib.AbstractContextManager[object]":
        """Returns a context that annotates this step in the trace, or does nothing if no trace is in progress."""
        if self._tracing is None:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=step + 1)

    def input(self) -> "contextlib.AbstractContextManager[object]":
        """Returns a context that annotates the preparation of a batch, or does nothing if no trace is in progress."""
        return contextlib.nullcontext() if self._tracing is None else jax.profiler.TraceAnnotation(INPUT)

    def is_over(self, step: int) -> bool:
        """Returns whether a trace is in progress and all of its steps are among the `step` steps that have begun."""
        return self._tracing is not None and step >= self._tracing.steps.stop

    def end(self, at: Progress) -> None:
        """Ends the trace in progress, if any, and reads it. Waits for the step in flight."""
        tracing, self._tracing = self._tracing, None
        if tracing is None:
            return
        if not at.is_state_gone:
            jax.block_until_ready(at.state)  # its loss is ready before the step has ended on every device
        seconds = time.perf_counter() - tracing.began
        at.reports.flush()
        step, steps = at.done, at.done - tracing.steps.start
        self._publish(ProfileWriting(step=step, steps=steps))
        try:
            jax.profiler.stop_trace()
        except Exception as error:
            self._publish(ProfileFailed(step=step, problems=problems_in(error)))
            return
        account, problem = self._read(at.program, steps, seconds / max(1, steps))
        profiled = Profiled(step=step, steps=steps, directory=str(self._directory), preset=at.program.name)
        self._publish(replace(profiled, account=account, problem=problem))

    def _read(self, program: Program, steps: int, seconds: float) -> tuple[Account | None, str | None]:
        """The account of the trace that was written last, or why there is none."""
        if not self._reads:
            return None, None
        if steps > MOST_READ:
            return None, f"{steps:,} steps are too many to read: trace at most {MOST_READ}"
        try:
            files = self._directory.glob("plugins/profile/*/*.xplane.pb")
            newest = max(files, key=lambda file: file.stat().st_mtime)
            mesh, kind = program.placement.mesh, program.placement.mesh.devices.flat[0].device_kind
            text = program.step.as_text() or ""  # a trace lacks that of a program from the compilation cache
            return read_account(newest, dict(mesh.shape), text, _places(mesh), seconds, ring_rate(kind)), None
        except Exception as error:  # training continues, whatever is in the trace
            return None, "; ".join(problems_in(error))


def _places(mesh: jax.sharding.Mesh) -> dict[int, Place]:
    """The devices of this process by their number in a trace."""
    return {
        device.local_hardware_id: Place(position, device.id)
        for position, device in enumerate(mesh.devices.flat)
        if device.process_index == jax.process_index()
    }
