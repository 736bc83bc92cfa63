"""Decides whether an engine that has ended is started again."""

import time
from collections import deque

from ..wire.ending import Ending

WINDOW_SECONDS = 3600.0
"""Restarts are counted over this time."""
SAME_FAULTS = 3
"""An engine that ends in the same way after the same step so often in a row is not started again."""


class Retries:
    """Counts restarts and repeated faults."""

    def __init__(self, most: int) -> None:
        """`most`: restarts within `WINDOW_SECONDS`."""
        self._most = most
        self._restarts: deque[float] = deque(maxlen=most + 1)
        self._faults: deque[tuple[int, Ending, int]] = deque(maxlen=SAME_FAULTS)

    def note(self, rank: int, ending: Ending, step: int) -> None:
        """Counts the end of an engine. `rank`: the process that ended it. `step`: the last step that was trained."""
        begun = ending.step if ending.kind == "stuck" else 0  # not known if the process could not say it
        self._faults.append((rank, ending, begun or step))
        self._restarts.append(time.monotonic())

    @property
    def is_repeated(self) -> bool:
        """Whether the last `SAME_FAULTS` engines ended in the same way after the same step."""
        different = {(rank, ending.fault, step) for rank, ending, step in self._faults}
        return len(different) == 1 and len(self._faults) == SAME_FAULTS

    def forget_faults(self) -> None:
        """Counts repeated faults anew: the process that had them is left out."""
        self._faults.clear()

    @property
    def problem(self) -> str | None:
        """Why the engine is not started again; None if it is. Call `note` first."""
        rank, ending, step = self._faults[-1]
        why = "; ".join(ending.problems) or ending.kind
        if self.is_repeated:
            return (
                f"process {rank} ended {SAME_FAULTS} times in a row after step {step:,}, each time because: {why}: not "
                "started again: the cause is in that step or in the model, not in the machine"
            )
        if len(self._restarts) > self._most and time.monotonic() - self._restarts[0] < WINDOW_SECONDS:
            return (
                f"the engine was restarted {self._most} times within an hour, the limit of --restarts, and ended "
                f"again: process {rank}: {why}"
            )
        return None
