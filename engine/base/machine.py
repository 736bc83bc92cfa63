"""This machine, apart from its devices."""

import os
from pathlib import Path


def machine_memory() -> int:
    """Bytes of this machine, or of the container that we are in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such limit
        return total
