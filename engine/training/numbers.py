"""Measures the numbers in a run's arrays between two steps: on request, and from time to time."""

import math
import time
from concurrent.futures import Future

from ..distributed.outcomes import UNSUCCESSFUL
from ..program.array_numbers import Numbers
from ..wire.events import NumbersMeasured
from .inputs import DeviceBatches
from .progress import Progress
from .tools import Tools

EVERY = 100
"""Steps between measurements at least, unless the run's configuration says otherwise."""
SHARE = 0.01
"""Fraction of the steps done that lies between them at least: so a long run's history of them stays short."""
MAX_COST = 0.01
"""Fraction of the time that they may take then."""


class ArrayMeter:
    """Compiles the program that measures in the background, at the first use under a preset. Only the training thread
    uses it. Every process measures before the same step, when process 0 is ready."""

    def __init__(self, tools: Tools, batches: DeviceBatches) -> None:
        self.tools, self._batches = tools, batches
        self._every = tools.config.anomalies.numbers_every
        self._due: float = EVERY
        """The first step that may be measured by itself, where the run's configuration says nothing."""
        self._reached = 0
        """The step that was reached last: while paused it is reached again and again."""
        self._compiled: tuple[str, Future[Numbers]] | None = None
        """The last program that measures, and the preset that it is for."""
        self._is_wanted = False

    def request(self, at: Progress) -> Future[Numbers]:
        """Compiles what is needed, to measure as soon as that is done."""
        self._is_wanted = True
        self.tools.inbox.wake()
        return self._program(at)

    def _program(self, at: Progress) -> Future[Numbers]:
        """Returns the program that measures under the active preset; compiles it if it is the first there."""
        if self._compiled is None or self._compiled[0] != at.program.name:
            self._compiled = at.program.name, self.tools.compiler.numbers(at.program)
        return self._compiled[1]

    def is_due(self, at: Progress) -> bool:
        """Returns whether the run is told to measure at this step, which it has just reached: then it waits for the
        compiler."""
        step, before, self._reached = at.begun + 1, self._reached, at.begun + 1
        return step != before and bool(self._every) and step % self._every == 0

    def is_overdue(self, at: Progress) -> bool:
        return self._every is None and self._due <= at.begun + 1 and not self._is_wanted

    def is_ready(self, at: Progress) -> bool:
        """Returns whether a measurement is wanted and its program is compiled in this process."""
        return self._is_wanted and self._program(at).done()

    def measure(self, at: Progress) -> None:
        """Measures the state and what the next step would do to it; the time this takes counts for no step."""
        at.reports.flush()
        began = time.perf_counter()
        arrays, experts, problem, self._is_wanted = [], None, None, False
        try:
            program = self.tools.cluster.run_on_all(self._program(at).result)
            arrays, experts = self.tools.cluster.run_on_all(
                lambda: program.measure(at.state, self._batches.batch(at.begun, at.program)), has_collectives=True
            )
        except UNSUCCESSFUL as error:  # training continues without it
            problem = "; ".join(error.problems)
        seconds, step = time.perf_counter() - began, at.begun + 1
        steps_it_takes = seconds / (at.reports.step_seconds or math.inf)  # unknown before the first step
        self._due = step + max(EVERY, SHARE * step, steps_it_takes / MAX_COST)
        if problem:
            self._every = 0
        self.tools.publish(
            NumbersMeasured(
                step=step,
                preset=at.program.name,
                seconds=round(seconds, 6),
                arrays=arrays,
                experts=experts,
                problem=problem,
            )
        )
        at.reports.restart_clock()
