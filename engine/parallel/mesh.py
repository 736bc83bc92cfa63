"""Devices and the meshes made of them."""

import os
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from ..base.advice import advice
from ..base.invalid import Invalid
from ..wire.descriptions import DeviceInfo, MeshInfo

ACCELERATORS = ("accel[0-9]*", "vfio/[0-9]*", "nvidia[0-9]*", "kfd")
"""Device files of TPUs and GPUs."""


def find_devices(count: int | None) -> list[jax.Device]:
    """The first `count` devices, all with None, in the one order that every preset's mesh is filled in.

    One order for all: arrays can only be moved between meshes by a compiled program where both have the same order
    of devices, and `jax.make_mesh` picks another order for each shape on some TPU slices. Raises Invalid.
    """
    try:
        devices = jax.devices()
    except RuntimeError as error:  # jax's own word for a platform that is not there, or that another process holds
        raise Invalid(advice(str(error)) or f"no devices: {error}: try another --platform") from error
    if count is not None and count > len(devices):
        raise Invalid(f"--devices {count}: {len(devices)} {devices[0].platform} devices found: use at most that many")
    return canonical_order(devices[:count])


def fallback(devices: Sequence[jax.Device], asked: str | None) -> list[str]:
    """Says so where jax took the CPU by itself although this machine has an accelerator."""
    present = [name for name in ACCELERATORS if next(Path("/dev").glob(name), None)]
    if devices[0].platform != "cpu" or asked or os.environ.get("JAX_PLATFORMS") == "cpu" or not present:
        return []
    return [
        f"this runs on the CPU although /dev/{present[0].rstrip('*[0-9]')}… is there: install the extra tpu or gpu, "
        "and see why jax does not find it in engine.log; --platform cpu if it is meant"
    ]


def canonical_order(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """By place on the torus, its last dim fastest: the axes of a mesh then run along dims of the torus, which a path
    that winds through all places would not give them. Devices without a place stay as jax lists them."""

    def place(device: jax.Device) -> tuple[int, ...]:
        coords = getattr(device, "coords", None) or ()
        return getattr(device, "slice_index", 0) or 0, *coords, getattr(device, "core_on_chip", 0) or 0

    return sorted(devices, key=place)


def build_mesh(axes: dict[str, int], devices: Sequence[jax.Device], axis_type: AxisType = AxisType.Auto) -> Mesh:
    grid = np.array(devices).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(axis_type,) * len(axes))


def describe_mesh(mesh: Mesh) -> MeshInfo:
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
