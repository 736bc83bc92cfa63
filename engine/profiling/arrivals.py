"""The times at which devices begin each collective: the early ones wait for the last."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from .program import Program
from .trace import Interval

Execution = tuple[int, str, int]
"""A step, a collective, and its earlier executions in that step."""


class Arrival(NamedTuple):
    """A device at a collective. Picoseconds."""

    begin: int
    """Begin of its first operation."""
    end: int
    """End of its first operation."""
    done: int
    """End of its last operation: the device then has the others' data."""

    def shifted(self, by: int) -> "Arrival":
        """Returns the arrival by a clock that is ahead by this many picoseconds."""
        return Arrival(self.begin + by, self.end + by, self.done + by)


class Arrivals:
    """Arrivals of devices at collectives, and who waits for whom. Devices are known by their positions in the mesh."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.found: dict[Execution, dict[int, Arrival]] = {}
        """The devices that began each execution, by position."""
        self._executions: dict[tuple[int, Interval], Execution] = {}
        self._last: dict[tuple[Execution, tuple[int, ...]], int] = {}

    def add(self, position: int, intervals: Iterable[Interval], steps: Mapping[int, int]) -> None:
        """Adds the operations of a device, in order. `steps`: each run to its step."""
        counts: Counter[tuple[int, str]] = Counter()
        begun: dict[str, Execution] = {}
        for each in intervals:
            operation = self._program.operations[each.name]
            if not operation.collective or each.in_flight:
                continue
            if operation.is_begin:
                step = steps[each.run]
                execution = begun[operation.collective] = step, each.name, counts[step, each.name]
                counts[step, each.name] += 1
                self.put(execution, position, Arrival(each.begin, each.end, each.end))
                self._executions[position, each] = execution
            elif execution := begun.get(operation.collective):
                arrival = self.found[execution][position]
                self.put(execution, position, arrival._replace(done=max(arrival.done, each.end)))

    def put(self, execution: Execution, position: int, arrival: Arrival) -> None:
        """Adds the arrival of one device, or replaces it."""
        self.found.setdefault(execution, {})[position] = arrival

    def met(self, position: int, each: Interval) -> int:
        """Returns the time at which the last device of the group begins a collective; of the last, its own.

        Call it once all arrivals are added.
        """
        execution = self._executions[position, each]
        last = self.found[execution][self._last_partner(execution, position)].begin
        return max(each.begin, min(last, each.end))

    def waits_for(self, positions: Collection[int]) -> Mapping[int, tuple[int, int]]:
        """Returns how often others waited for each of these devices, and how long in all, in picoseconds."""
        times: Counter[int] = Counter()
        waited: Counter[int] = Counter()
        for execution, arrivals in self.found.items():
            late = set[int]()
            for position, arrival in arrivals.items():
                last = self._last_partner(execution, position)
                time = min(arrivals[last].begin, arrival.end) - arrival.begin
                if time > 0 and last in positions:
                    waited[last] += time
                    late.add(last)
            times.update(late)
        return {position: (times[position], waited[position]) for position in times}

    def _last_partner(self, execution: Execution, position: int) -> int:
        partners = self._program.partners(execution[1], position)
        key = execution, partners
        if key not in self._last:
            arrivals = self.found[execution]
            present = [partner for partner in partners if partner in arrivals]
            self._last[key] = max(present, key=lambda partner: arrivals[partner].begin, default=position)
        return self._last[key]
