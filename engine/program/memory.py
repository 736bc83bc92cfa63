"""Memory of a step on one device: predicted from the compiled program, and what is there while it runs."""

import contextlib
import ctypes
import math
from collections.abc import Sequence

import jax
from jax.stages import Compiled

from ..analysis.layout import bytes_per_device
from ..base.figures import size
from ..base.machine import machine_memory
from ..wire.descriptions import ArrayInfo, MemoryInfo, MeshInfo
from ..wire.events import MemoryMeasured

M_MMAP_THRESHOLD = -3
"""glibc's malloc.h"""
KEPT_BLOCK = 2**30
"""Bytes of the largest."""


def predict(compiled: Compiled, arrays: Sequence[ArrayInfo], mesh: MeshInfo, platform: str) -> MemoryInfo | None:
    """`arrays`: all arguments of the step. None where the backend does not tell.

    The compiler's own peak includes temporaries on TPU; on CPU and GPU it does not, so there the peak is summed:
    arguments + outputs - aliased + temporaries.
    """

    def held(kind: str) -> int:
        return sum(bytes_per_device(array, mesh) for array in arrays if array.kind == kind)

    stats = compiled.memory_analysis()
    if stats is None:
        return None
    kinds = ("parameter", "moment", "variable", "scalar", "batch")
    parameters, moments, variables, scalars, batch = map(held, kinds)
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    aliased, temporaries = stats.alias_size_in_bytes, stats.temp_size_in_bytes
    own = getattr(stats, "peak_memory_in_bytes", 0) if platform == "tpu" else 0
    return MemoryInfo(
        parameters=parameters,
        moments=moments,
        variables=variables,
        scalars=scalars,
        batch=batch,
        padding=arguments - parameters - moments - variables - scalars - batch,
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        temporaries=temporaries,
        peak=own or arguments + outputs - aliased + temporaries,
        peak_source="compiler" if own else "sum",
    )


def keep_freed_blocks() -> None:
    """Has glibc keep large blocks that are freed for the next use, in this process. Devices that are simulated take
    the temporaries of every step from it, and pages that come anew from the system cost a quarter of nano's step."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK)


def limit(devices: Sequence[jax.Device], asked: int | None) -> int | None:
    """Bytes that one device has: what was asked for, and no more than its allocator tells. Simulated devices share
    this machine's memory. None where nobody can tell."""
    told = [stats["bytes_limit"] for stats in _allocators(devices) if "bytes_limit" in stats]
    if devices[0].platform == "cpu":
        told = [machine_memory() // len(devices)]
    return min([*told, *([asked] if asked else [])], default=None)


def shortage(preset: str, memory: MemoryInfo | None, limit: int | None) -> str | None:
    """Why a step would not fit, by its predicted peak."""
    if memory is None or limit is None or memory.peak <= limit:
        return None
    return (
        f"{preset}: a step needs {size(memory.peak)} on a device (predicted), {size(limit)} are there: choose a preset "
        "that splits more, such as fsdp, a smaller --batch-size, or --set remat=true"
    )


def measure(devices: Sequence[jax.Device]) -> MemoryMeasured:
    """Of this process's fullest device, as its allocator tells; where it does not (CPU), the shards of the living
    arrays, which only the thread that makes them can count."""
    return allocated(devices) or MemoryMeasured(
        source="live arrays", bytes_in_use=_live_bytes(devices), peak_bytes=None, limit_bytes=None
    )


def allocated(devices: Sequence[jax.Device]) -> MemoryMeasured | None:
    """Of this process's fullest device, in any thread; None where its allocator does not tell."""
    told = _allocators(devices)
    if not told:
        return None
    fullest = max(told, key=lambda stats: stats["bytes_in_use"])
    return MemoryMeasured(
        source="allocator",
        bytes_in_use=fullest["bytes_in_use"],
        peak_bytes=fullest.get("peak_bytes_in_use"),
        limit_bytes=fullest.get("bytes_limit"),
    )


def _allocators(devices: Sequence[jax.Device]) -> list[dict[str, int]]:
    """What those of this process tell."""
    return [stats for device in _here(devices) if (stats := device.memory_stats())]


def _here(devices: Sequence[jax.Device]) -> list[jax.Device]:
    return [device for device in devices if device.process_index == jax.process_index()]


def _live_bytes(devices: Sequence[jax.Device]) -> int:
    device = _here(devices)[0]
    return sum(
        array.dtype.itemsize * math.prod(array.sharding.shard_shape(array.shape))
        for array in jax.live_arrays()
        if device in array.sharding.device_set
    )
