"""Reads the planes of a trace: devices, the host and the programs.

Real traces were read of CPUs, of a TPU v6e, and of MI300X GPUs (JAX with ROCm, from
github.com/AMD-AGI/TraceLens, tests/traces/mi300), whose times equal the table beside the trace. No trace of an NVIDIA
GPU was read.
"""

import re
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

from ..base.protobuf import message_class
from ..hlo.module import INSTRUCTION
from .trace import Interval, ProgramTrace, Step, Trace
from .xspace import MODULE, Plane, read_planes

DEVICE = re.compile(r"/device:(TPU|GPU):(\d{1,9})$")
HLO_PROTO = {"HloProto": ("bytes hlo_module 1",)}
OTHER_PLANES = re.compile(r"/host:|/device:CUSTOM|#")
"""Planes without operations of devices."""
INPUT = "shardtui: input"
"""The host annotates the preparation of a batch with this name."""
NO_OPERATIONS = ("end: ", "ThreadpoolListener", "Wait")
"""Beginnings of the names of frequent events that are no operations."""
OTHER_TPU_LINES = ("Overlay", "Steps", "XLA TraceMe", "Framework Ops", "Framework Name Scope", "Source code")
"""Lines that repeat what others say."""
OTHER_GPU_LINES = (
    "Steps",
    "XLA Modules",
    "XLA Ops",
    "Framework Ops",
    "Framework Name Scope",
    "Source code",
    "Launch Stats",
)
"""Lines derived from the streams."""


def read_trace(path: Path) -> Trace:
    """Reads an `.xplane.pb`. Raises UserError if it cannot be read."""
    trace, numbered = Trace(), set[int]()
    for plane in read_planes(path):
        device = DEVICE.match(plane.name)
        if plane.name == "/host:metadata":
            read_programs(plane, trace)
        elif plane.name == "/host:CPU":
            HostPlane(plane, trace).read()
        elif plane.name == "Task Environment":
            start = plane.stats(plane.message).get("profile_start_time")
            trace.epoch = start if isinstance(start, int) else None
        elif device:
            (read_tpu if device[1] == "TPU" else read_gpu)(plane, int(device[2]), trace)
        elif not OTHER_PLANES.match(plane.name):
            trace.skipped.append(plane.name)
        if device:
            numbered |= {int(device[2])}
    for program in trace.programs.values():
        _align(program, numbered)
    return trace


def _align(program: ProgramTrace, devices: set[int]) -> None:
    """Gives runs that begin at about the same time the same number: each device counts them by itself."""
    begins = {
        device: sorted({each.run: each.begin for each in sorted(program.devices[device], reverse=True)}.values())
        for device in devices & program.devices.keys()
    }
    earliest = min(begins.values(), default=[])
    for device, own in begins.items():
        shift = min(range(len(earliest)), key=lambda at, first=own[0]: abs(earliest[at] - first))
        least = min(each.run for each in program.devices[device])
        program.devices[device] = [each._replace(run=each.run - least + shift) for each in program.devices[device]]


class HostPlane:
    """The plane `/host:CPU`: annotated steps and inputs, and the operations of CPU devices, which run in its threads.

    Operations have the stats `hlo_op`, `hlo_module`, `program_id`, `run_id` and `device_ordinal`.
    """

    def __init__(self, plane: Plane, trace: Trace) -> None:
        self._plane, self._trace = plane, trace
        keys = ("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal")
        self._fields = {plane.id_of(name): name for name in keys}
        self._step = plane.id_of("step_num")
        names = plane.event_names
        self._others = {id for id, name in names.items() if name.startswith(NO_OPERATIONS)}
        self._inputs = {id for id, name in names.items() if name == INPUT}

    def read(self) -> None:
        """Adds all events to the trace."""
        for _, start, events in self._plane.lines():
            for event in events:
                if event.metadata_id not in self._others:
                    begin = start + event.offset_ps
                    self._read_event(event, begin, begin + event.duration_ps)

    def _read_event(self, event: Any, begin: int, end: int) -> None:
        if event.metadata_id in self._inputs:
            self._trace.inputs.append((begin, end))
            return
        found: dict[str, Any] = {}
        for stat in event.stats:
            if field := self._fields.get(stat.metadata_id):
                found[field] = stat
            elif stat.metadata_id == self._step:
                self._trace.steps.append(Step(begin, stat.int64_value))
                return
        if "hlo_op" in found and "run_id" in found:
            self._add_operation(found, begin, end)

    def _add_operation(self, found: dict[str, Any], begin: int, end: int) -> None:
        plane = self._plane
        name = plane.value(found["hlo_module"]) if "hlo_module" in found else ""
        key = str(found["program_id"].int64_value) if "program_id" in found else name
        device = found["device_ordinal"].int64_value if "device_ordinal" in found else 0
        interval = Interval(begin, end, plane.value(found["hlo_op"]), found["run_id"].int64_value)
        self._trace.program(key, name).add(device, interval)


def read_tpu(plane: Plane, device: int, trace: Trace) -> None:
    """Adds the operations of one TPU, whose events are named by their whole instruction."""
    trace.kind = str(plane.stats(plane.message).get("device_type_string", trace.kind))
    lines = {name: (start, events) for name, start, events in plane.lines()}
    runs = _runs(plane, trace, *lines.pop("XLA Modules", (0, ())))
    for name in ("XLA Ops", "Async XLA Ops"):
        start, events = lines.pop(name, (0, ()))
        _read_operations(plane, device, runs, start, events, name.startswith("Async"))
    trace.skipped += [f"{plane.name}: {name}" for name in lines if name not in OTHER_TPU_LINES]


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
    """Keeps what the event says about its instruction, for a trace without the program's text."""
    stats = plane.event_stats.get(id, {})
    file, _, line = str(stats.get("source", "")).rpartition(":")
    op_name = str(stats.get("tf_op", "")).rstrip(":")
    about = f'metadata={{op_name="{op_name}" source_file="{file}" source_line={line or 0}}}'
    program.instructions[name] = f"  {plane.event_names[id]}, {about}"
    if "convolution" in str(stats.get("hlo_category", "")):
        program.products.add(name)


def read_gpu(plane: Plane, device: int, trace: Trace) -> None:
    """Adds the kernels of one GPU. Kernels have the stats `hlo_op` and `hlo_module`, but not in a command buffer.

    A library may launch several kernels for one operation, such as a convolution: only its first kernel counts as an
    execution.
    """
    touched: dict[str, ProgramTrace] = {}
    first: dict[tuple[str, str], int] = {}
    for name, start, events in plane.lines():
        if not name.startswith("Stream"):
            trace.skipped += [f"{plane.name}: {name}"] * (name not in OTHER_GPU_LINES)
            continue
        for event in events:
            begin = start + event.offset_ps
            end = begin + event.duration_ps
            stats = {**plane.event_stats.get(event.metadata_id, {}), **plane.stats(event)}
            if op := str(stats.get("hlo_op", "")):
                module = str(stats.get("hlo_module", ""))
                key = str(stats.get("program_id", module))
                touched[key] = trace.program(key, module)
                is_first = first.setdefault((key, op), event.metadata_id) == event.metadata_id
                touched[key].add(device, Interval(begin, end, op, 0, is_execution=is_first))
            else:
                trace.unnamed.setdefault(device, []).append((begin, end))
    for program in touched.values():
        program.devices[device] = _with_runs(program.devices[device])


def _with_runs(intervals: list[Interval]) -> list[Interval]:
    """Numbers the runs, which kernels do not tell: each begins with the first of the least frequent operations."""
    ordered = sorted(intervals)
    counts = Counter(each.name for each in ordered if each.is_execution)
    least = min(counts.values())
    first = next(each.name for each in ordered if counts[each.name] == least)
    run, numbered = 0, list[Interval]()
    for each in ordered:
        run += each.name == first and each.is_execution
        numbered.append(each._replace(run=run))
    return numbered


def read_programs(plane: Plane, trace: Trace) -> None:
    """Adds the text of each program in the plane `/host:metadata`."""
    for id, stats in plane.event_stats.items():
        named = MODULE.match(plane.event_names[id])
        if named and (proto := stats.get("Hlo Proto")):
            trace.program(named[2], named[1]).text = hlo_text(proto)


def hlo_text(proto: bytes) -> str:
    """Returns the text of a serialized `HloProto`; empty if it is not valid."""
    from jaxlib.xla_client import hlo  # type: ignore[attr-defined] # jax has no public way to a text

    options = hlo.HloPrintOptions()
    options.print_metadata = True
    try:
        module = message_class("shardtui.hlo", HLO_PROTO, "HloProto").FromString(proto).hlo_module
        return hlo.XlaComputation(module).get_hlo_module().to_string(options)
    except Exception:  # jax raises its own type, or one of the protobuf library
        return ""
