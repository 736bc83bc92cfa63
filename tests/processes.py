"""What Linux says of processes."""

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started and not waited for; none if it has ended."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. One that has ended, but that nobody has waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
