"""When each device begins each collective: those that are early wait for the last."""

from collections import Counter
from collections.abc import Iterable, Mapping

from .program import Program
from .trace import Interval

Execution = tuple[int, str, int]
"""The run, the collective, and how often it ran before in that run."""


class Arrivals:
    """When devices begin collectives, and which they wait for."""

    def __init__(self, program: Program, positions: Mapping[int, int]) -> None:
        """`positions`: the position in the mesh of each device."""
        self._program = program
        self._positions = positions
        self._devices = {position: device for device, position in positions.items()}
        self._begun: dict[Execution, dict[int, int]] = {}
        self._executions: dict[tuple[int, Interval], Execution] = {}
        self.waited_for: Counter[int] = Counter()
        """Picoseconds that others waited for a device, summed over them."""
        self.times: Counter[int] = Counter()
        """Collectives in which others waited for a device."""
        self._counted: set[tuple[Execution, int]] = set()

    def add(self, device: int, intervals: Iterable[Interval]) -> None:
        """Adds the operations of a device, in order."""
        counts: Counter[tuple[int, str]] = Counter()
        for each in intervals:
            operation = self._program.operations[each.name]
            if operation.collective and operation.is_begin and not each.in_flight:
                execution = each.run, each.name, counts[each.run, each.name]
                counts[each.run, each.name] += 1
                self._begun.setdefault(execution, {})[device] = each.begin
                self._executions[device, each] = execution

    def met(self, device: int, each: Interval) -> int:
        """Returns when the last partner of a device begins a collective, if this is after the device itself."""
        execution = self._executions[device, each]
        begun = self._begun[execution]
        partners = self._program.partners(each.name, self._positions[device])
        present = [self._devices[position] for position in partners if self._devices.get(position) in begun]
        last = max(present, key=lambda other: begun[other], default=device)
        met = min(begun[last], each.end)
        if met > each.begin:
            self.waited_for[last] += met - each.begin
            if (execution, last) not in self._counted:
                self._counted.add((execution, last))
                self.times[last] += 1
        return max(met, each.begin)
