"""Decides whether an engine that has ended is started again."""

import time
from collections import deque

from ..wire.ending import Ending

WINDOW_SECONDS = 3600.0
"""Restarts are counted over this time."""
SAME_FAULTS = 3
"""An engine that has ended in the same way at the same step this often in a row is not started again."""


class Retries:
    """Counts restarts and repeated faults."""

    def __init__(self, most: int) -> None:
        """`most`: restarts within `WINDOW_SECONDS`."""
        self._most = most
        self._restarts: deque[float] = deque(maxlen=most + 1)
        self._faults: deque[tuple[int, str, int, tuple[str, ...]]] = deque(maxlen=SAME_FAULTS)

    def problem(self, rank: int, ending: Ending, step: int) -> str | None:
        """Returns why the engine is not started again; None if it is.

        `rank`: the process whose end ended the engine. `step`: the last step that the run had trained.
        """
        self._faults.append((rank, ending.kind, step, tuple(ending.problems)))
        why = "; ".join(ending.problems) or ending.kind
        if len(self._faults) == SAME_FAULTS and len(set(self._faults)) == 1:
            return (
                f"process {rank} ended {SAME_FAULTS} times in a row after step {step:,}, each time because: {why}: not "
                "started again: the cause is in that step or in the model, not in the machine"
            )
        now = time.monotonic()
        self._restarts.append(now)
        if len(self._restarts) > self._most and now - self._restarts[0] < WINDOW_SECONDS:
            return (
                f"the engine was restarted {self._most} times within an hour, the limit of --restarts, and ended "
                f"again: process {rank}: {why}"
            )
        return None
