"""A step's memory on one device: predicted from the compiled program, and measured while it runs."""

import contextlib
import ctypes
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
from jax.stages import Compiled

from ..base.formatting import size
from ..base.machine import machine_memory
from ..wire.descriptions import MemoryInfo
from ..wire.events import MemoryMeasured, PresetCompiled

PARTS = {"parameter": "parameters", "moment": "moments", "variable": "variables", "batch": "batch", "scalar": "scalars"}
"""Words for all arrays of a kind."""
M_MMAP_THRESHOLD = -3
"""The parameter's number in glibc's malloc.h."""
LARGEST_KEPT_BLOCK = 2**30
"""Bytes."""

TOO_LARGE = "RESOURCE_EXHAUSTED"
"""XLA's word for a program that needs more memory than the device has."""


def predict(compiled: Compiled, arguments: Iterable[tuple[str, int]], platform: str) -> MemoryInfo | None:
    """Returns a step's predicted bytes per device; None if the backend does not report them.

    `arguments`: of each argument of the step its kind and its bytes on a device. The peak is a sum: arguments + outputs
    - aliased + temporaries.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    parts = dict.fromkeys(PARTS.values(), 0)
    for kind, count in arguments:
        parts[PARTS[kind]] += count
    taken, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    aliased, temporaries = stats.alias_size_in_bytes, temporary_bytes(stats, platform)
    return MemoryInfo(
        **parts,
        padding=taken - sum(parts.values()),
        arguments=taken,
        outputs=outputs,
        aliased=aliased,
        temporaries=temporaries,
        peak=taken + outputs - aliased + temporaries,
    )


def temporary_bytes(stats: Any, platform: str) -> int:
    """Returns the bytes that a program needs besides its arguments and outputs. TPU compilers count them in all
    memories of a chip, and say a peak: of HBM, or of VMEM if that holds more, as in small programs. The smaller is
    HBM's. jaxlib 0.12 also says all that is allocated there: for GPT-2 medium 1 % more than its peak."""
    if platform != "tpu" or not stats.peak_memory_in_bytes:
        return stats.temp_size_in_bytes
    kept = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return min(stats.temp_size_in_bytes, max(0, stats.peak_memory_in_bytes - kept))


def keep_freed_blocks() -> None:
    """Makes glibc keep large freed blocks for reuse in this process.

    Simulated devices allocate each step's temporaries with malloc. Getting new pages from the system every time would
    take a quarter of nano's step time.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)


def limit(devices: Sequence[jax.Device], requested: int | None) -> int | None:
    """Returns the bytes available per device, None if unknown.

    That is the allocator's limit, or an equal share of this machine's memory for simulated devices; a smaller
    `requested` limit takes precedence.
    """
    limits = [stats["bytes_limit"] for stats in _allocator_stats(devices).values() if "bytes_limit" in stats]
    if devices[0].platform == "cpu":
        limits = [machine_memory() // len(devices)]
    return min([*limits, *([requested] if requested else [])], default=None)


def shortage(program: PresetCompiled, limit: int | None) -> str | None:
    """Returns why a step does not fit into `limit` bytes per device, by its predicted peak; None if it does."""
    if program.memory is None or limit is None or program.memory.peak <= limit:
        return None
    shard = "choose a preset that shards more, such as fsdp"
    advice = f"{shard}, reduce --batch-size, or add --set remat=auto"
    if program.remat in (True, "full"):
        advice = f"{shard}, or reduce --batch-size"
    needed = f"{size(program.memory.peak)} per device (predicted), {size(limit)} available"
    return f"{program.preset}: a step needs {needed}: {advice}"


def measure(devices: Sequence[jax.Device]) -> MemoryMeasured:
    """Measures this process's devices.

    If their allocator reports nothing (CPU), the shards of live arrays are counted; only the thread that creates arrays
    may do that.
    """
    return allocated(devices) or _of_fullest("live arrays", _live_bytes(devices))


def allocated(devices: Sequence[jax.Device]) -> MemoryMeasured | None:
    """Returns what the allocators of this process's devices report; None if they report nothing. Any thread."""
    stats = _allocator_stats(devices)
    return _of_fullest("allocator", stats) if stats else None


def _of_fullest(source: Literal["allocator", "live arrays"], stats: Mapping[int, Mapping[str, int]]) -> MemoryMeasured:
    fullest = max(stats.values(), key=lambda each: each["bytes_in_use"])
    return MemoryMeasured(
        source=source,
        bytes_in_use=fullest["bytes_in_use"],
        peak_bytes=fullest.get("peak_bytes_in_use"),
        limit_bytes=fullest.get("bytes_limit"),
        bytes_by_device={device: each["bytes_in_use"] for device, each in stats.items()},
    )


def _allocator_stats(devices: Sequence[jax.Device]) -> dict[int, dict[str, int]]:
    return {device.id: stats for device in _local(devices) if (stats := device.memory_stats())}


def _local(devices: Sequence[jax.Device]) -> list[jax.Device]:
    return [device for device in devices if device.process_index == jax.process_index()]


def _live_bytes(devices: Sequence[jax.Device]) -> dict[int, dict[str, int]]:
    shards = Counter[jax.sharding.Sharding]()
    for array in jax.live_arrays():
        shards[array.sharding] += array.dtype.itemsize * math.prod(array.sharding.shard_shape(array.shape))
    held = dict.fromkeys(_local(devices), 0)
    for sharding, shard in shards.items():
        for device in sharding.addressable_devices & held.keys():
            held[device] += shard
    return {device.id: {"bytes_in_use": size} for device, size in held.items()}
