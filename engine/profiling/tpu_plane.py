"""Reads the plane of a TPU: runs of programs, operations on the core, and asynchronous operations in flight."""

from bisect import bisect_right
from collections import Counter
from typing import Any

from ..analysis.hlo import INSTRUCTION
from .trace import Interval, ProgramTrace, Trace
from .xspace import MODULE, Plane

OTHER_LINES = ("Overlay", "Steps", "XLA TraceMe", "Framework Ops", "Framework Name Scope", "Source code")
"""Lines that are not read: others have the same."""


def read_tpu(plane: Plane, device: int, trace: Trace) -> None:
    """Adds the operations of one TPU. An event's name is its whole instruction."""
    trace.kind = str(plane.stats(plane.message).get("device_type_string", trace.kind))
    lines = {name: (start, events) for name, start, events in plane.lines()}
    runs = _runs(plane, trace, *lines.pop("XLA Modules", (0, ())))
    for name in ("XLA Ops", "Async XLA Ops"):
        start, events = lines.pop(name, (0, ()))
        _read_operations(plane, device, runs, start, events, name.startswith("Async"))
    trace.skipped += [f"{plane.name}: {name}" for name in lines if name not in OTHER_LINES]


def _runs(plane: Plane, trace: Trace, start: int, events: Any) -> list[tuple[int, int, int, ProgramTrace]]:
    """Begin, end, number and program of each run of a program, in order. Their `run_id` differs between devices."""
    runs: Counter[str] = Counter()
    found: list[tuple[int, int, int, ProgramTrace]] = []
    for event in sorted(events, key=lambda event: event.offset_ps):
        name = plane.event_names.get(event.metadata_id, "")
        named = MODULE.match(name)
        program = trace.program(named[2], named[1]) if named else trace.program(name, name)
        begin = start + event.offset_ps
        found.append((begin, begin + event.duration_ps, runs[name], program))
        runs[name] += 1
    return found


def _read_operations(
    plane: Plane, device: int, runs: list[tuple[int, int, int, ProgramTrace]], start: int, events: Any, flight: bool
) -> None:
    begins = [begin for begin, *_ in runs]
    names = {id: _name(text) for id, text in plane.event_names.items()}
    for event in events:
        begin = start + event.offset_ps
        at = bisect_right(begins, begin) - 1
        if at < 0 or not (name := names.get(event.metadata_id)):
            continue
        _, _, run, program = runs[at]
        if name not in program.instructions:
            _describe(plane, event.metadata_id, name, program)
        program.add(device, Interval(begin, begin + event.duration_ps, name, run, flight))


def _name(text: str) -> str:
    found = INSTRUCTION.match(f"  {text}")
    return found[2] if found else ""


def _describe(plane: Plane, id: int, name: str, program: ProgramTrace) -> None:
    """Keeps what the events say of an instruction, for a trace without the program's text."""
    stats = plane.event_stats.get(id, {})
    file, _, line = str(stats.get("source", "")).rpartition(":")
    op_name = str(stats.get("tf_op", "")).rstrip(":")
    about = f'metadata={{op_name="{op_name}" source_file="{file}" source_line={line or 0}}}'
    program.instructions[name] = f"  {plane.event_names[id]}, {about}"
    if "convolution" in str(stats.get("hlo_category", "")):
        program.products.add(name)
