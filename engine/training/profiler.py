"""Traces of a few steps by `jax.profiler`, written to the run directory, and the breakdown of where their time went."""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from msgspec import structs

from ..base.advice import problems_in
from ..base.user_error import UserError
from ..distributed.cluster import Cluster
from ..distributed.outcomes import UNSUCCESSFUL
from ..profiling.breakdown import breakdown_of
from ..profiling.clocks import Clocks, Shared, Traced, kept_steps, shared, traced
from ..profiling.partial_breakdown import PartialBreakdown
from ..profiling.recording import PICOSECONDS, Place, Recording, read_recording
from ..program.program import Program
from ..spec.topology import Chip, chip_of
from ..wire.events import Event, PartsMeasured, Profiled, ProfileFailed, ProfileWriting, Profiling
from ..wire.step_breakdown import StepBreakdown
from .progress import Progress

WARM_UP = 3
"""Steps that are skipped if a trace is requested for the start of a run."""
PERIODIC_STEPS = 2
"""Steps of a breakdown that is made from time to time."""
MAX_COST = 0.01
"""Fraction of the time that these breakdowns may take; if they take long, they are made less often."""
KEPT = 10
"""Traces in the run's directory: older ones are deleted."""
MOST_READ = 50
"""Steps in a trace at most for it to be read: 2.5 MB each, and several times that in memory."""


@dataclass(frozen=True)
class Request:
    steps: range
    is_periodic: bool
    """Whether it is time for a breakdown of the step: its trace is not kept."""


@dataclass(frozen=True)
class Tracing:
    request: Request
    """The steps to trace, from the one with which it began."""
    waited: float
    """When training first waited for it, by the engine's clock."""
    began: float
    """When its first step began."""


class Profiler:
    """Traces steps, at most one trace at a time; only the training thread uses it."""

    def __init__(
        self, directory: Path, publish: Callable[[Event], None], cluster: Cluster, every: float | None = None
    ) -> None:
        """`directory`: for the traces of this process. `every`: minutes between breakdowns of a step; None for none."""
        self._directory, self._publish, self._cluster = directory, publish, cluster
        self._every = None if every is None else 60 * every
        self._due: float | None = None
        """When the next breakdown of a step is due; None before training begins, and for never."""
        self._requested: Request | None = None
        self._tracing: Tracing | None = None

    def request(self, first: int, steps: int, is_periodic: bool = False) -> None:
        """Requests a trace of `steps` steps from step `first` on; replaces a request that has not begun. `is_periodic`:
        only the parts of the step are reported, and the trace is not kept; it replaces none, as it is due again."""
        if self._requested is None or not is_periodic:
            self._requested = Request(range(first, first + steps), is_periodic)

    def is_overdue(self) -> bool:
        """Returns whether a breakdown of the step is due, and nothing else is traced."""
        if self._due is None:
            self._put_off(0.0)
        is_free = self._requested is None and self._tracing is None
        return is_free and self._due is not None and time.monotonic() >= self._due

    def begin(self, at: Progress) -> None:
        """Starts the requested trace if its first step is reached and no other trace is in progress. Waits for the step
        in flight, so that the trace has only whole steps."""
        step, request = at.begun, self._requested
        if request is None or self._tracing is not None or step < request.steps.start:
            return
        self._requested = None
        steps, waited = len(request.steps), time.perf_counter()
        jax.block_until_ready(at.state)
        try:
            self._cluster.run_on_all(self._start)
        except UNSUCCESSFUL as error:
            _stop_quietly()  # another process could not start its own
            self._put_off(0.0)
            self._publish(ProfileFailed(step=step, problems=problems_in(error)))
        else:
            if not request.is_periodic:
                self._publish(Profiling(step=step, steps=steps))
            following = replace(request, steps=range(step, step + steps))
            self._tracing = Tracing(following, waited, time.perf_counter())

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing every Python call would slow the traced steps
        options.host_tracer_level = 1  # has all operations and annotations; level 2 slows steps on CPU
        _stop_quietly()  # jax 0.10 keeps a trace active that could not be written
        self._directory.mkdir(parents=True, exist_ok=True)
        jax.profiler.start_trace(self._directory, profiler_options=options)

    def is_over(self, step: int) -> bool:
        """Returns whether a trace is in progress and all of its steps are among the `step` steps that have begun."""
        return self._tracing is not None and step >= self._tracing.request.steps.stop

    def end(self, at: Progress) -> None:
        """Waits for the step in flight, then ends the trace in progress, if any, and reads it."""
        at.reports.flush()
        tracing, self._tracing = self._tracing, None
        if tracing is None:
            return
        if not at.is_state_gone:
            jax.block_until_ready(at.state)  # its loss is ready before the step has ended on every device
        seconds = time.perf_counter() - tracing.began
        is_periodic = tracing.request.is_periodic
        step, steps = at.done, at.done - tracing.request.steps.start
        if not is_periodic:
            self._publish(ProfileWriting(step=step, steps=steps))
        try:
            self._cluster.run_on_all(jax.profiler.stop_trace)
        except UNSUCCESSFUL as error:
            self._put_off(0.0)
            self._publish(ProfileFailed(step=step, problems=problems_in(error)))
            return
        breakdown, problem = self._read(at.program, steps, seconds / max(1, steps))
        paused = time.perf_counter() - tracing.waited - seconds
        for file in self._traces()[-1:] if is_periodic else self._traces()[:-KEPT]:
            shutil.rmtree(file.parent, ignore_errors=True)
        if is_periodic:
            self._put_off(paused)
        else:
            profiled = Profiled(step=step, steps=steps, directory=str(self._directory), preset=at.program.name)
            self._publish(structs.replace(profiled, breakdown=breakdown, problem=problem))
        if is_periodic or breakdown:
            self._publish(
                PartsMeasured(
                    step=step,
                    preset=at.program.name,
                    step_seconds=breakdown.step_seconds if breakdown else None,
                    parts=breakdown.parts if breakdown else [],
                    pause_seconds=round(paused, 3),
                    problem=problem,
                )
            )

    def _put_off(self, paused: float) -> None:
        if self._every is not None:
            self._due = time.monotonic() + max(self._every, paused / MAX_COST)

    def _read(self, program: Program, steps: int, seconds: float) -> tuple[StepBreakdown | None, str | None]:
        """The breakdown of the traces that were written last, which process 0 makes, or why there is none."""
        if steps > MOST_READ:
            return None, f"{steps:,} steps are too many to read: trace at most {MOST_READ}"
        kind = program.placement.mesh.devices.flat[0].device_kind
        try:
            breakdown = joint_breakdown(self._cluster, lambda: self._recording(program), chip_of(kind))
            if breakdown is None:
                return None, None
            breakdown = structs.replace(breakdown, clock_seconds=seconds)
        except Exception as error:  # training continues, whatever is in the trace
            return None, "; ".join(problems_in(error))
        return breakdown, None

    def _recording(self, program: Program) -> Recording:
        mesh = program.placement.mesh
        text = program.step.as_text() or ""  # traces lack the text of programs from the compilation cache
        return read_recording(self._traces()[-1], dict(mesh.shape), text, _places(mesh))

    def _traces(self) -> list[Path]:
        files = self._directory.glob("plugins/profile/*/*.xplane.pb")
        return sorted(files, key=lambda file: file.stat().st_mtime)


def _stop_quietly() -> None:
    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()


def _places(mesh: jax.sharding.Mesh) -> dict[int, Place]:
    """The devices of this process by their number in a trace."""
    return {
        device.id if device.platform == "cpu" else device.local_hardware_id: Place(position, device.id)
        for position, device in enumerate(mesh.devices.flat)
        if device.process_index == jax.process_index()
    }


def joint_breakdown(cluster: Cluster, read: Callable[[], Recording], chip: Chip | None) -> StepBreakdown | None:
    """Returns in process 0 the breakdown of the steps that all processes have traced whole; None in the others. Every
    process calls it. `read` reads its own trace. Raises in all the same, as `Cluster.run_on_all`."""
    recording = cluster.run_on_all(read)
    recording.keep(_common_steps(cluster, recording))
    own = cluster.run_on_all(lambda: shared(recording))
    clocks = Clocks(cluster.all_gather(own, Shared), recording.program)
    found = cluster.gather(cluster.run_on_all(lambda: _breakdown(recording, clocks, cluster.process)), PartialBreakdown)
    if cluster.process:
        return None
    breakdown = breakdown_of(recording, found, clocks.window, clocks.shown, chip)
    return structs.replace(breakdown, clock_error_seconds=None if clocks.error is None else clocks.error / PICOSECONDS)


def _common_steps(cluster: Cluster, recording: Recording) -> list[int]:
    """Returns the steps to break down, which every process has traced whole. Raises UserError if there is none."""
    if cluster.count == 1:
        return recording.steps
    found = cluster.all_gather(cluster.run_on_all(lambda: traced(recording)), Traced)
    if common := kept_steps(found):
        return common
    whole = ", ".join(f"{len(each.steps)} on process {process}" for process, each in enumerate(found))
    raise UserError(f"no step was traced whole on every process ({whole}): trace more steps")


def _breakdown(recording: Recording, clocks: Clocks, process: int) -> PartialBreakdown:
    """The breakdown of this process, whose devices wait for other processes' devices, too."""
    clocks.add_arrivals(recording.arrivals, process)
    return recording.breakdown(clocks.by_clock(process, clocks.window), clocks.by_clock(process, clocks.shown))
