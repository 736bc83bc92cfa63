"""What programs outside pytest share: command-line arguments, simulated devices, and directories of their own."""

import argparse
import importlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("jax", "flax", "orbax-checkpoint", "textual", "libtpu")


def arguments(parser: argparse.ArgumentParser, known: Iterable[str]) -> argparse.Namespace:
    """Parses the command line; `names` are those given, or all known ones. Exits if one is unknown."""
    known = list(known)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    options = parser.parse_args()
    if unknown := set(options.names) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: the names are {', '.join(known)}")
    options.names = options.names or known
    return options


def modules(package: str, names: Iterable[str]) -> Iterator[tuple[str, ModuleType]]:
    """Imports modules one after the other, in directories of their own; prints the seconds of each to stderr."""
    with own_directories():
        for name in names:
            began = time.monotonic()
            yield name, importlib.import_module(f"tests.{package}.{name}")
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def own_directories() -> Iterator[Path]:
    """Sets directories for runs, presets, compiled programs, exports and sockets, whose paths must be short.

    Processes started from here inherit them, and compile as users do.
    """
    kept = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="shardtui-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "XLA_FLAGS": ""}
        os.environ |= {f"XDG_{kind}_HOME": f"{folder}/{kind.lower()}" for kind in ("STATE", "CONFIG", "CACHE")}
        os.environ["SHARDTUI_RUNTIME_DIR"] = f"{folder}/run"
        try:
            with chdir(folder):
                yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(kept)


def loss_of(task: Any) -> Callable[..., Any]:
    """Returns the loss of a task's model without variables, from parameters, a batch and a key."""
    return lambda params, batch, key: task.outcome(params, {}, batch, key)[1][0]["loss"]


def printed(*arguments: str, **environment: str) -> str:
    """Returns what a Python process prints that runs at the root of the tree."""
    command, own = [sys.executable, *arguments], {**os.environ, **environment}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=own).stdout


def memory(of: str, process: int | str = "self") -> int:
    """Returns the bytes of `VmRSS`, resident now, or `VmHWM`, the peak so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(of))


def versions() -> str:
    packages = {"Python": platform.python_version(), **package_versions()}
    return ", ".join(f"{name} {number}" for name, number in packages.items())


def package_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores, {', '.join(names) or platform.machine()}, {memory:.0f} GiB"
