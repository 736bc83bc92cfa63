"""Checks the machine, and its devices, in this process, one after the other."""

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryFile

import jax
from packaging.requirements import Requirement

from ..base import formatting
from ..base.directories import cache_directory, state_directory
from ..base.machine import accelerators, available_memory, cores, machine_memory, versions
from ..program.presets import list_presets
from ..spec.model_choice import choose_model
from ..wire.checkup import Check, Examination, examined
from ..wire.run_directory import compilation_cache, runtime_directory
from .devices import check_devices, check_digests, check_rates, check_topology
from .kernels import check_attention, check_experts

ACCELERATOR_EXTRAS = ("tpu", "cuda12", "cuda13")
"""Extras of jax, whose packages must have the versions that this jax asks for."""
DEV = Path("/dev")
LEAST_DISK_BYTES = 10_000_000_000
PROBE_BYTES = 64_000_000
MOST_SKEW_SECONDS = 1.0
"""Between this machine's clock and its storage's, before ages of files mislead."""


def check_interpreter() -> Check:
    memory, free = machine_memory(), available_memory()
    return Check(
        found=f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {cores()} cores, "
        f"{formatting.size(memory)} of memory, {formatting.size(free)} available",
        numbers={"cores": cores(), "memory bytes": memory},
    )


def check_packages() -> Check:
    problems = sorted(set(_misfits("shardtui", set())))
    found = ", ".join(f"{name} {version}" for name, version in versions().items() if name != "python")
    if not problems:
        return Check(found=found)
    return Check(
        verdict="broken",
        found="; ".join(problems),
        advice="install shardtui again in a fresh environment, with the extra for this machine, such as shardtui[tpu]",
    )


def _misfits(package: str, seen: set[str]) -> Iterator[str]:
    """Yields what the installed packages lack that `package` needs, directly or not."""
    seen.add(package)
    for text in distribution(package).requires or ():
        requirement = Requirement(text)
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        extras = ACCELERATOR_EXTRAS if package == "jax" else ()
        if not is_needed and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):  # type: ignore[union-attr]
            continue
        try:
            installed = distribution(requirement.name).version
        except PackageNotFoundError:
            if is_needed:
                yield f"{package} needs {requirement.name}, which is not installed"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{package} needs {requirement.name}{requirement.specifier}, but {installed} is installed"
        elif is_needed and requirement.name.lower() not in seen:
            yield from _misfits(requirement.name.lower(), seen)


def check_holders() -> Check:
    """Finds the processes that have opened an accelerator. Other users' are visible to root only."""
    files = accelerators(DEV)
    if not files:
        return Check(found="no accelerator in /dev")
    holders = {pid: name for pid in _processes() if (name := _holder_name(pid, set(files)))}
    found = f"{len(files)} in /dev: {formatting.listed(sorted(path.name for path in files), 4)}"
    if not holders:
        return Check(found=f"{found}, opened by no process that you may see")
    who = ", ".join(f"process {pid} ({name})" for pid, name in holders.items())
    return Check(
        verdict="warning", found=f"{found}, opened by {who}", advice="end it first if it is not a run of yours"
    )


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if int(path.name) != os.getpid()]


def _holder_name(pid: int, files: set[Path]) -> str:
    """Returns the name of a process that has opened one of the files; empty for any other."""
    with contextlib.suppress(OSError):
        if any(link.readlink() in files for link in Path(f"/proc/{pid}/fd").iterdir()):
            return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def check_disk() -> Check:
    """Writes a file of 64 MB where runs are kept, so that it also finds a quota."""
    folders = {"runs": state_directory(), "caches": cache_directory()}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with TemporaryFile(dir=folders["runs"]) as probe:
        probe.write(bytes(PROBE_BYTES))
        probe.flush()
        os.fsync(probe.fileno())
    rate = PROBE_BYTES / (time.monotonic() - began)
    free = {name: shutil.disk_usage(folder).free for name, folder in folders.items()}
    words = ", ".join(f"{formatting.size(left)} free for {name}" for name, left in free.items())
    check = Check(
        found=f"{words}, written at {formatting.size(rate)}/s", numbers={"bytes written per second": round(rate)}
    )
    if min(free.values()) >= LEAST_DISK_BYTES:
        return check
    advice = "checkpoints of large models need more: keep them elsewhere with --checkpoint-dir"
    return Check(verdict="warning", found=check.found, advice=advice, numbers=check.numbers)


def check_sockets() -> Check:
    return Check(found=f"{runtime_directory()}, mode 700")


def check_caches() -> Check:
    """Sizes the cache of compiled programs, which makes the second start of a run fast."""
    place = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(compilation_cache())
    if "://" in place:
        return Check(found=f"compiled programs in {place}")
    cache = Path(place)
    cache.mkdir(parents=True, exist_ok=True)
    sizes = [path.stat().st_size for path in cache.iterdir() if path.is_file()]
    found = f"{formatting.counted(len(sizes), 'file')}, {formatting.size(sum(sizes))} of compiled programs in {cache}"
    if os.access(cache, os.W_OK):
        return Check(found=found)
    advice = "make it writable, or set JAX_COMPILATION_CACHE_DIR: each start compiles everything again"
    return Check(verdict="warning", found=f"{found}, which cannot be written", advice=advice)


def check_clock() -> Check:
    """Compares the clock with the storage's, which for network storage is another machine's."""
    with TemporaryFile(dir=state_directory()) as probe:
        before = time.time()
        probe.write(b"x")
        probe.flush()
        os.fsync(probe.fileno())
        written = os.fstat(probe.fileno()).st_mtime
        after = time.time()
    skew = written - min(max(written, before), after)
    found = f"the storage's clock is within {max(abs(skew), 0.1):.1f} s of this machine's"
    if abs(skew) <= MOST_SKEW_SECONDS:
        return Check(found=found, numbers={"skew of storage seconds": round(skew, 1)})
    return Check(
        verdict="warning",
        found=f"the storage's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's",
        advice="set both by NTP: several hosts judge by times whether a run is alive",
        numbers={"skew of storage seconds": round(skew, 1)},
    )


MACHINE = {
    "interpreter": check_interpreter,
    "packages": check_packages,
    "accelerators": check_holders,
    "disk": check_disk,
    "sockets": check_sockets,
    "compilation cache": check_caches,
    "clock": check_clock,
}
COMPUTING = {"attention": check_attention, "experts": check_experts, "digests": check_digests, "links": check_rates}


def examine(examination: Examination) -> Iterator[Check]:
    """Yields each check before it runs, and after it: a process that ends in between says by which check it does."""
    for name, look in MACHINE.items():
        yield from examined(name, look)
    devices: list[jax.Device] = []
    yield from examined("devices", partial(check_devices, examination, devices))
    if not devices:
        return
    yield from examined("topology", partial(check_topology, devices))
    yield from examined("presets", partial(check_presets, examination, len(devices)))
    for name, compute in COMPUTING.items() if examination.computes else ():
        yield from examined(name, partial(compute, devices))


def check_presets(examination: Examination, devices: int) -> Check:
    """Finds the presets that fit these devices with the smallest model."""
    model = choose_model("nano", (f"batch_size={4 * devices}",))
    listing = list_presets(model.config("doctor", devices=examination.devices))
    others = [preset.name for preset in listing.presets if not preset.fits]
    fitting = len(listing.presets) - len(others)
    found = f"{fitting} of {len(listing.presets)} fit {formatting.counted(devices, 'device')}"
    found += f", all but {formatting.listed(others, 4)}: `shardtui presets` says why" if others else ""
    numbers = {"presets that fit": float(fitting)}
    if listing.problems:
        return Check(verdict="warning", found=f"{found}; not read: {'; '.join(listing.problems)}", numbers=numbers)
    return Check(found=found, numbers=numbers)
