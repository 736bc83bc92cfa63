"""The memory of this machine."""

import os
from pathlib import Path


def machine_memory() -> int:
    """Returns the bytes of host memory that this machine has, or that the container may use if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # not in a container with a limit
        return total
