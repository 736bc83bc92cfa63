"""The whole runs of a program in a trace, and the window of time that they take."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..base.invalid import Invalid
from .trace import Interval, Span, Trace


@dataclass(frozen=True)
class Steps:
    """Consecutive whole runs of a program: the steps that are accounted for."""

    runs: Sequence[int]
    """Their numbers, in order."""
    window: Span
    """From the start of the first step to the end of the last operation."""


def whole_steps(trace: Trace, devices: Mapping[int, Sequence[Interval]]) -> Steps:
    """Returns the longest sequence of whole runs. Raises Invalid if there is none.

    A run is whole if every device ran as many operations as it mostly does: those at the ends of a trace may be cut.
    """
    counts = {device: Counter(each.run for each in found) for device, found in devices.items()}
    usual = {device: Counter(sizes.values()).most_common(1)[0][0] for device, sizes in counts.items()}
    begins = _begins(devices)
    best: list[int] = []
    current: list[int] = []
    for run in sorted(begins, key=lambda run: begins[run]):
        is_whole = all(counts[device][run] == usual[device] for device in devices)
        current = [*current, run] if is_whole else []
        best = current if len(current) > len(best) else best
    if not best:
        raise Invalid("no step of the trace is whole on every device: trace more steps")
    chosen = set(best)
    end = max(each.end for found in devices.values() for each in found if each.run in chosen)
    return Steps(best, (_start(trace, devices, begins[best[0]]), end))


def _begins(devices: Mapping[int, Sequence[Interval]]) -> dict[int, int]:
    """The first moment of each run on any device."""
    begins: dict[int, int] = {}
    for found in devices.values():
        for each in found:
            begins[each.run] = min(each.begin, begins.get(each.run, each.begin))
    return begins


def _start(trace: Trace, devices: Mapping[int, Sequence[Interval]], begin: int) -> int:
    """When the step began whose first operation began then: with the host's annotation, or when the step before ended.

    Without annotations, with the operation itself.
    """
    annotated = max((start for start, _ in trace.steps if start <= begin), default=begin)
    before = max((each.end for found in devices.values() for each in found if each.end <= begin), default=annotated)
    return max(annotated, before)
