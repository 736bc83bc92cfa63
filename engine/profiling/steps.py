"""The whole runs of a program in a trace, and the window of time that they take."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ..base.invalid import Invalid
from .trace import Interval, Span, Trace


def whole_runs(devices: Mapping[int, Sequence[Interval]]) -> list[int]:
    """Returns the longest sequence of whole runs, in order. Raises Invalid if there is none.

    A run is whole if every device ran as many operations as it mostly does: those at the ends of a trace may be cut.
    """
    counts = {device: Counter(each.run for each in found) for device, found in devices.items()}
    usual = {device: Counter(sizes.values()).most_common(1)[0][0] for device, sizes in counts.items()}
    best: list[int] = []
    current: list[int] = []
    for run in _ordered(devices):
        is_whole = all(counts[device][run] == usual[device] for device in devices)
        current = [*current, run] if is_whole else []
        best = current if len(current) > len(best) else best
    if not best:
        raise Invalid("no step of the trace is whole on every device: trace more steps")
    return best


def step_numbers(trace: Trace, devices: Mapping[int, Sequence[Interval]]) -> Mapping[int, int]:
    """Returns the number of each run's step, as the host annotates them; empty if it annotates more or fewer steps."""
    runs, steps = _ordered(devices), sorted(trace.steps)
    return dict(zip(runs, (step.number for step in steps), strict=True)) if len(runs) == len(steps) else {}


def window_of(trace: Trace, devices: Mapping[int, Sequence[Interval]], runs: Sequence[int]) -> Span:
    """Returns the time from the start of the first run's step to the end of the last operation."""
    chosen = set(runs)
    end = max(each.end for found in devices.values() for each in found if each.run in chosen)
    return _start(trace, devices, _begins(devices)[runs[0]]), end


def _ordered(devices: Mapping[int, Sequence[Interval]]) -> list[int]:
    begins = _begins(devices)
    return sorted(begins, key=lambda run: begins[run])


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
    annotated = max((step.begin for step in trace.steps if step.begin <= begin), default=begin)
    before = max((each.end for found in devices.values() for each in found if each.end <= begin), default=annotated)
    return max(annotated, before)
