"""Reads the plane of a GPU: kernels and copies on its streams. Written after XLA's GPU tracer; no trace was at hand."""

from collections import Counter

from .trace import Interval, ProgramTrace, Trace
from .xspace import Plane

OTHER_LINES = (
    "Steps",
    "XLA Modules",
    "XLA Ops",
    "Framework Ops",
    "Framework Name Scope",
    "Source code",
    "Launch Stats",
)
"""Lines that are not read: they are derived from the streams."""


def read_gpu(plane: Plane, device: int, trace: Trace) -> None:
    """Adds the kernels of one GPU. A kernel has the stats `hlo_op` and `hlo_module`, but not in a command buffer."""
    touched: dict[str, ProgramTrace] = {}
    for name, start, events in plane.lines():
        if not name.startswith("Stream"):
            trace.skipped += [f"{plane.name}: {name}"] * (name not in OTHER_LINES)
            continue
        for event in events:
            begin = start + event.offset_ps
            stats = {**plane.event_stats.get(event.metadata_id, {}), **plane.stats(event)}
            if op := stats.get("hlo_op"):
                module = str(stats.get("hlo_module", ""))
                key = str(stats.get("program_id", module))
                touched[key] = trace.program(key, module)
                touched[key].add(device, Interval(begin, begin + event.duration_ps, str(op), 0))
            else:
                trace.unnamed.setdefault(device, []).append((begin, begin + event.duration_ps))
    for program in touched.values():
        program.devices[device] = _with_runs(program.devices[device])


def _with_runs(intervals: list[Interval]) -> list[Interval]:
    """Numbers the runs, which kernels do not tell: each begins with the first of those that run least often."""
    ordered = sorted(intervals)
    counts = Counter(each.name for each in ordered)
    least = min(counts.values())
    first = next(each.name for each in ordered if counts[each.name] == least)
    run, numbered = 0, list[Interval]()
    for each in ordered:
        run += each.name == first
        numbered.append(each._replace(run=run))
    return numbered
