"""Checks of the devices: what they are, what they hold, and how fast they send to one another."""

import contextlib
import math
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..base import formatting
from ..base.user_error import UserError
from ..parallel.mesh import build_mesh, fallback, find_devices
from ..program.compilation_cache import use_compilation_cache
from ..program.digest import joined, shard_digests
from ..program.memory import allocated
from ..spec.config import SIMULATED_DEVICES
from ..spec.topology import DIMS, Topology, chip_of, chips, load_topology, wiring
from ..wire.checkup import Check, Examination
from ..wire.collective import ring_bytes

DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int32", "int8", "uint8", "bool")
DIGESTED_ELEMENTS = 2**16
SENT_BYTES, SENT_BYTES_ON_CPU = 2**27, 2**22
"""Bytes that a device has after the all-gather whose rate is measured."""
REPEATS = 5
LEAST_SHARE, MOST_SHARE = 0.5, 1.1
"""Measured rates ÷ the table's that are as expected: protocols take a part of a link."""


def check_devices(examination: Examination, found: list[jax.Device]) -> Check:
    """Adds the devices to `found`."""
    jax.config.update("jax_num_cpu_devices", examination.devices or SIMULATED_DEVICES)
    asked: str = examination.platform or jax.config.jax_platforms or ""  # type: ignore[attr-defined]
    if asked and "cpu" not in asked:
        asked += ",cpu"  # what devices compute is compared with the host
    jax.config.update("jax_platforms", asked or None)
    use_compilation_cache()
    began = time.monotonic()
    found += find_devices(examination.devices)
    seconds = time.monotonic() - began
    words = f"{len(found)} × {found[0].device_kind} ({found[0].platform}), found after {formatting.seconds(seconds)}"
    numbers: dict[str, float] = {"devices": len(found), "seconds to find devices": round(seconds, 2)}
    if measured := allocated(found):
        words += f"; {formatting.size(measured.bytes_in_use)} in use on the fullest"
        if limit := measured.limit_bytes:
            words += f" of {formatting.size(limit)}"
            numbers["memory bytes per device"] = limit
    else:
        words += "; they report no memory"
    if problems := fallback(found, examination.platform):
        return Check(verdict="warning", found=words, advice=problems[0], numbers=numbers)
    return Check(found=words, numbers=numbers)


def topology_of(devices: Sequence[jax.Device]) -> Topology | None:
    """Returns the slice or the hosts that the devices fill; None if their kind is not in the tables, or if they are a
    part of a slice with gaps."""
    chip = next((name for name, chip in chips().items() if devices[0].device_kind in chip.kinds), None)
    if chip is None:
        return None
    if chips()[chip].target:
        shape = [hosts := len({device.process_index for device in devices}), len(devices) // hosts]
        slices = 1
    else:
        shape = [len({device.coords[dim] for device in devices}) for dim in range(chips()[chip].torus)]
        slices = len({getattr(device, "slice_index", 0) for device in devices})
    with contextlib.suppress(UserError):  # no slice has this shape
        topology = load_topology(f"{slices}*{chip}:{'x'.join(map(str, shape))}")
        return topology if topology.devices == len(devices) else None
    return None


def check_topology(devices: Sequence[jax.Device]) -> Check:
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        return Check(found="simulated devices have no links of their own")
    if topology := topology_of(devices):
        return Check(found=f"the devices fill {topology.title}, as --topology {topology.name} plans for it")
    if chip_of(kind):
        coords = ", ".join(str(getattr(device, "coords", None)) for device in devices[:8])
        return Check(
            verdict="warning",
            found=f"{len(devices)} devices do not fill a slice: their coordinates are {coords}",
            advice="meshes run along fewer links than on a whole slice: use all devices of the slice",
        )
    advice = "rooflines, MFU and predicted times need its rates: add them to presets/chips.toml or gpus.toml"
    return Check(verdict="warning", found=f"{kind} is not in the tables of devices", advice=advice)


def check_digests(devices: Sequence[jax.Device]) -> Check:
    """Compares a digest of each dtype on each device with the digest on the host."""
    arrays = _arrays()
    on_host = _words(jax.local_devices(backend="cpu")[:1], arrays)[0]
    on_devices = _words(devices, arrays)
    wrong = {
        device.id: [dtype for dtype, one, other in zip(DTYPES, row, on_host, strict=True) if one != other]
        for device, row in zip(devices, on_devices, strict=True)
    }
    if bad := {device: dtypes for device, dtypes in wrong.items() if dtypes}:
        words = "; ".join(f"device {device}: {', '.join(dtypes)}" for device, dtypes in bad.items())
        return Check(
            verdict="broken",
            found=f"digests differ from the host's on {words}",
            advice="a device that holds other bits than were sent to it trains wrongly: leave it out, and report it",
        )
    return Check(found=f"of {len(DTYPES)} dtypes on {len(devices)} devices: equal to the host's")


def _arrays() -> list[np.ndarray]:
    """Returns random bits as an array of each dtype."""
    words = np.random.default_rng(0).integers(0, 2**8, 4 * DIGESTED_ELEMENTS, np.uint8)
    return [words.view(jnp.dtype(dtype)) if dtype != "bool" else words > 127 for dtype in DTYPES]


def _words(devices: Sequence[jax.Device], arrays: Sequence[np.ndarray]) -> list[list[int]]:
    """Returns the digest of each array that each device holds."""
    mesh = Mesh(np.array(devices), ("all",))
    whole = [NamedSharding(mesh, PartitionSpec()) for _ in arrays]
    placed = jax.device_put(list(arrays), whole)
    found = jax.jit(lambda given: shard_digests(given, whole))(placed)
    return [joined(row).tolist() for row in np.asarray(found)]


def check_rates(devices: Sequence[jax.Device]) -> Check:
    """Measures an all-gather along each dim of the topology, or over all devices, against the tables' rates."""
    if len(devices) == 1:
        return Check(found="one device sends to no other")
    topology = topology_of(devices)
    sizes = _dims(topology, len(devices))
    mesh = build_mesh(sizes, devices, AxisType.Auto)
    rates = {axis: _rate(mesh, axis) for axis, size in sizes.items() if size > 1}
    expected = {axis: wiring(topology, sizes, [axis]).rate for axis in rates} if topology else {}
    return judged(rates, expected)


def judged(rates: dict[str, float], expected: dict[str, float]) -> Check:
    """Compares bytes sent per second, by axis, with the tables' rates, if there are any."""
    parts, unusual = list[str](), list[str]()
    for axis, rate in rates.items():
        words = f"{axis} {formatting.size(rate)}/s"
        if table := expected.get(axis):
            words += f", {rate / table:.0%} of {formatting.size(table)}/s"
            if not LEAST_SHARE <= rate / table <= MOST_SHARE:
                unusual.append(axis)
        parts.append(words)
    numbers = {f"bytes sent per second over {axis}": float(round(rate)) for axis, rate in rates.items()}
    found = f"sent by each device in an all-gather: {'; '.join(parts)}"
    if not unusual:
        return Check(found=found if expected else f"{found}; no table has these links", numbers=numbers)
    advice = "plans and predicted times of this machine are off by as much: other programs may use the links"
    found += f": not as expected over {', '.join(unusual)}"
    return Check(verdict="warning", found=found, advice=advice, numbers=numbers)


def _dims(topology: Topology | None, devices: int) -> dict[str, int]:
    """Returns the axes along which the devices are wired, in the order that they fill a mesh."""
    if topology is None or topology.platform == "gpu":
        return {"all": devices}
    dims = dict(zip(DIMS, topology.shape, strict=False))
    return {"slices": topology.slices, **dims, "cores": topology.chip.cores}


def _rate(mesh: Mesh, axis: str) -> float:
    """Returns the bytes that a device sends per second in an all-gather over an axis, at best."""
    size, platform = mesh.shape[axis], mesh.devices.flat[0].platform
    whole = (SENT_BYTES_ON_CPU if platform == "cpu" else SENT_BYTES) // 4 // size * size
    split, gathered = PartitionSpec(axis), PartitionSpec()

    def gather(x: jax.Array) -> jax.Array:
        return jax.lax.all_gather(x, axis, tiled=True)

    gather_all = jax.jit(jax.shard_map(gather, mesh=mesh, in_specs=split, out_specs=gathered, check_vma=False))
    x = jax.device_put(np.ones(whole, np.float32), NamedSharding(mesh, split))
    jax.block_until_ready(gather_all(x))
    best = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(gather_all(x))
        best = min(best, time.perf_counter() - began)
    return ring_bytes("all-gather", 4 * whole, size) / best
