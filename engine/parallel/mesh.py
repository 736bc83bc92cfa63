"""Finds devices and builds meshes of them."""

import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from ..base import formatting
from ..base.advice import advice
from ..base.machine import accelerators
from ..base.user_error import UserError
from ..wire.descriptions import DeviceInfo, MeshInfo


def find_devices(count: int | None) -> list[jax.Device]:
    """Returns the first `count` devices, or all, in `canonical_order`. Raises UserError if there are fewer or none. A
    compiled program can move arrays between meshes only if both list the devices in the same order, and on some TPU
    slices `jax.make_mesh` picks another order for each shape."""
    try:
        devices = jax.devices()
    except RuntimeError as error:  # the platform is missing, or another process uses it
        raise UserError(advice(str(error)) or f"no devices: {error}: try another --platform") from error
    if count is not None and count > len(devices):
        found = formatting.counted(len(devices), f"{devices[0].platform} device")
        raise UserError(f"--devices {count}: {found} found: use at most that many")
    return canonical_order(devices[:count])


def fallback(devices: Sequence[jax.Device], platform: str | None) -> list[str]:
    """Returns a warning if jax fell back to the CPU although this machine has an accelerator; else nothing."""
    present = accelerators()
    if devices[0].platform != "cpu" or platform or os.environ.get("JAX_PLATFORMS") == "cpu" or not present:
        return []
    return [
        f"this runs on the CPU although {present[0]} exists: install the extra `tpu` or `gpu`, "
        "and see engine.log for why jax does not find the accelerator; give --platform cpu if the CPU is intended"
    ]


def canonical_order(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Sorts devices by their coordinates on the torus, the last dim fastest, so that mesh axes run along torus dims;
    without coordinates as jax lists them."""

    def place(device: jax.Device) -> tuple[int, ...]:
        coords = getattr(device, "coords", None) or ()
        return getattr(device, "slice_index", 0) or 0, *coords, getattr(device, "core_on_chip", 0) or 0

    return sorted(devices, key=place)


def build_mesh(axes: dict[str, int], devices: Sequence[jax.Device], axis_type: AxisType = AxisType.Auto) -> Mesh:
    """Builds a mesh from devices in `canonical_order`: the last axis varies fastest."""
    grid = np.array(devices).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(axis_type,) * len(axes))


def describe_mesh(mesh: Mesh) -> MeshInfo:
    """Describes a mesh for the wire, with device ids in row-major order."""
    return MeshInfo(dict(mesh.shape), [device.id for device in mesh.devices.flat])


def describe_device(device: jax.Device) -> DeviceInfo:
    coords = getattr(device, "coords", None)
    return DeviceInfo(
        id=device.id,
        platform=device.platform,
        kind=device.device_kind,
        process=device.process_index,
        coords=None if coords is None else list(coords),
        core=getattr(device, "core_on_chip", None),
    )
