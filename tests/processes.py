"""What Linux says of processes."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. One that has ended, but that nobody has waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
