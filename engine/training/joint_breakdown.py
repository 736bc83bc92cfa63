"""One account of a step from the traces of all processes: each reads its own, and sends sums."""

from collections.abc import Callable

from msgspec.structs import replace

from ..base.invalid import Invalid
from ..distributed.cluster import Cluster
from ..profiling.breakdown import breakdown_of
from ..profiling.clocks import Clocks, Shared, Traced, kept_steps, shared, traced
from ..profiling.recording import PICOSECONDS, Recording
from ..profiling.sums import Sums
from ..spec.topology import Peaks
from ..wire.step_breakdown import StepBreakdown


def joint_breakdown(cluster: Cluster, read: Callable[[], Recording], peaks: Peaks | None) -> StepBreakdown | None:
    """Returns in process 0 the account of the steps that all processes have traced whole; None in the others.

    Every process calls it. `read` reads its own trace. Raises in all the same, as `Cluster.together`.
    """
    recording = cluster.together(read)
    recording.keep(_common_steps(cluster, recording))
    own = cluster.together(lambda: shared(recording))
    clocks = Clocks(cluster.gather(own, Shared), recording.program)
    sums = cluster.collect(cluster.together(lambda: _sums(recording, clocks, cluster.process)), Sums)
    if cluster.process:
        return None
    account = breakdown_of(recording, sums, clocks.window, clocks.shown, peaks)
    return replace(account, clock_error_seconds=None if clocks.error is None else clocks.error / PICOSECONDS)


def _common_steps(cluster: Cluster, recording: Recording) -> list[int]:
    """Returns the steps to account for, which every process has traced whole. Raises Invalid if there is none."""
    if cluster.count == 1:
        return recording.steps
    found = cluster.gather(cluster.together(lambda: traced(recording)), Traced)
    if common := kept_steps(found):
        return common
    whole = ", ".join(f"{len(each.steps)} on process {process}" for process, each in enumerate(found))
    raise Invalid(f"no step was traced whole on every process ({whole}): trace more steps")


def _sums(recording: Recording, clocks: Clocks, process: int) -> Sums:
    """The sums of this process, whose devices wait for those of the others, too."""
    clocks.add_arrivals(recording.arrivals, process)
    return recording.sums(clocks.by_clock(process, clocks.window), clocks.by_clock(process, clocks.shown))
