"""Reads the host's plane: its annotations and, on CPU, the operations of its devices, which run in its threads."""

from typing import Any

from .trace import Interval, Step, Trace
from .xspace import Plane

INPUT = "shardtui: input"
"""The annotation of the host while it prepares a batch."""
NO_OPERATIONS = ("end: ", "ThreadpoolListener", "Wait")
"""What the names of the most frequent other events start with."""


def read_host(plane: Plane, trace: Trace) -> None:
    """Adds the operations of CPU devices, the steps and the inputs."""
    HostReader(plane, trace).read()


class HostReader:
    """Reads `/host:CPU`. Operations have `hlo_op`, `hlo_module`, `program_id`, `run_id`, `device_ordinal`."""

    def __init__(self, plane: Plane, trace: Trace) -> None:
        self._plane, self._trace = plane, trace
        keys = ("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal")
        self._fields = {plane.id_of(name): name for name in keys}
        self._step = plane.id_of("step_num")
        names = plane.event_names
        self._others = {id for id, name in names.items() if name.startswith(NO_OPERATIONS)}
        self._inputs = {id for id, name in names.items() if name == INPUT}

    def read(self) -> None:
        """Reads all events."""
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
