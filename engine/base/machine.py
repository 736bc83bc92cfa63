"""This machine: its accelerators, its memory, its room for compilations, and the versions of its packages."""

import contextlib
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
"""Packages that decide what a compiled program is and what it computes."""
COMPILATION_BYTES = 2_500_000_000
"""Memory of a process that compiles for TPU: 1.4 to 1.7 GB for a slice of 8 chips, some 2 GB for a pod (measured)."""
CORES_OF_COMPILATION = 2
"""Cores that a compilation uses: with fewer, two at a time take as long as one after the other (measured)."""

ACCELERATORS = ("accel[0-9]*", "vfio/[0-9]*", "nvidia[0-9]*", "dxg", "kfd")
"""Files in /dev of TPUs and of GPUs, on WSL `dxg`."""


CONTAINER = Path("/sys/fs/cgroup")
"""The control group of a container, as it is seen inside."""


def accelerators(dev: Path = Path("/dev")) -> list[Path]:
    return [path for pattern in ACCELERATORS for path in sorted(dev.glob(pattern))]


def machine_memory() -> int:
    """Bytes of host memory of this machine, or the container's limit if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, _container_limit() or total)


def available_memory() -> int:
    """Bytes of host memory for new processes: of this machine, or what a container's limit leaves if that is less."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    if limit := _container_limit():
        counts = dict(line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        cached = int(counts["inactive_file"])  # which the kernel frees when the limit is reached
        available = min(available, max(0, limit - int((CONTAINER / "memory.current").read_text()) + cached))
    return available


def _container_limit() -> int | None:
    with contextlib.suppress(OSError, ValueError):  # `max` without a limit
        return int((CONTAINER / "memory.max").read_text())
    return None


def cores() -> int:
    """The cores on which this process may run."""
    return len(os.sched_getaffinity(0))


def most_compilations() -> int:
    return max(1, cores() // CORES_OF_COMPILATION)


def has_room(running: int) -> bool:
    """Whether this machine has the cores and the memory for a compilation beside those that are `running`."""
    return running < most_compilations() and available_memory() >= COMPILATION_BYTES


def versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], **{name: version(name) for name in PACKAGES}}


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
