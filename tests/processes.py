"""What other processes and threads do."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. One that has ended, but that nobody has waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def awaited(
    found: Callable[[], T],
    missing: str | Callable[[], str] = "it",
    seconds: float = 240.0,
    is_over: Callable[[], bool] = lambda: False,
) -> T:
    """Polls until `found` returns something, and returns that. Raises TimeoutError, which says what is missing, after
    `seconds`, or once nothing more is to come."""
    until = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > until or is_over():
            raise TimeoutError(f"no sign of {missing if isinstance(missing, str) else missing()}")
        time.sleep(0.05)
    return value
