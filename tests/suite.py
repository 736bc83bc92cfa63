"""What the suites outside of pytest share: simulated devices, and directories of their own."""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("jax", "flax", "orbax-checkpoint", "textual")


@contextmanager
def own_directories() -> Iterator[None]:
    """For runs, presets, compiled programs and sockets, whose paths must be short. The processes that are started
    from here have them, too, and compile as users do."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "XLA_FLAGS": ""}
    with tempfile.TemporaryDirectory(prefix="shardtui-", dir="/tmp") as folder:
        for kind in ("STATE", "CONFIG", "CACHE"):
            os.environ[f"XDG_{kind}_HOME"] = f"{folder}/{kind.lower()}"
        os.environ["SHARDTUI_RUNTIME_DIR"] = f"{folder}/run"
        yield


def versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"Python {sys.version.split()[0]}, {packages}"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores, {', '.join(names) or platform.machine()}, {memory:.0f} GiB"
