"""TPU slices: their torus of chips, and the ICI links that each axis of a mesh uses."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec import Struct

from ..base.invalid import Invalid
from .preset_files import PRESETS, read_toml

NAME = re.compile(r"(?P<chip>[a-z0-9]+):(?P<shape>\d{1,4}(?:x\d{1,4})*)")
"""A slice, such as `v5e:4x4`."""
MAX_CHIPS = 2**14
"""Chips in a slice at most."""
DIMS = "xyz"
"""Names of the torus dims."""


class Chip(Struct, frozen=True, forbid_unknown_fields=True):
    """One device of a TPU generation. The figures are from `presets/chips.toml`, which names their sources."""

    flops: float
    """Peak FLOP/s in bfloat16."""
    memory: int
    """Bytes of HBM that a program may use."""
    memory_rate: float
    """HBM bandwidth in bytes per second."""
    link_rate: float
    """Bandwidth of one ICI link to a neighbour, in bytes per second and direction."""
    clock_rate: float
    """Cycles per second."""
    torus: int
    """Dims of the torus: 2 or 3."""
    closes: int
    """A torus dim is a ring (has wraparound links) if its length is a multiple of this."""
    kinds: tuple[str, ...]
    """What jax calls its devices."""
    chip_config: str = "default"
    """The TPU compiler's name for the configuration in which a chip's cores are one device."""

    @property
    def peaks(self) -> "Peaks":
        """The highest rates of the device."""
        return Peaks(self.flops, self.memory_rate, 2 * self.link_rate)


class Peaks(Struct, frozen=True):
    """The highest rates of one device."""

    flops: float
    """FLOP/s in bfloat16."""
    memory_rate: float
    """HBM bandwidth in bytes per second."""
    ring_rate: float
    """Bytes per second that it sends on a ring of ICI links, both directions."""


class Topology(Struct, frozen=True):
    """A TPU slice."""

    name: str
    """Such as `v5p:4x4x4`."""
    shape: tuple[int, ...]
    """Chips along x, y and, in a 3-D torus, z."""
    chip: Chip
    """The TPU generation."""

    @property
    def devices(self) -> int:
        """Devices in the slice, one for each chip."""
        return math.prod(self.shape)

    @property
    def rings(self) -> tuple[bool, ...]:
        """Which dims are rings, that is have wraparound links.

        3-D slices are built of cubes: their dims are rings if all lengths are multiples of a cube's (Jouppi et al.
        2023, section 2). In 2-D slices each dim is a ring or not by itself.
        """
        closed = [size % self.chip.closes == 0 for size in self.shape]
        return tuple(all(closed) if len(closed) == 3 else closes for closes in closed)


class Wiring(Struct, frozen=True, kw_only=True):
    """The ICI links that the collectives over some mesh axes use."""

    axes: list[str]
    """The mesh axes."""
    size: int
    """Devices in a group."""
    dims: list[str]
    """The torus dims that a group extends along: `x`, `y`, `z`."""
    rings: list[bool]
    """For each of these dims, whether the group forms a ring along it."""
    strides: list[int]
    """For each of these dims, the links from one member to the next. Groups in between share these links."""
    rate: float
    """Bytes per second that a device can send over these axes, in both directions of a ring together."""


@lru_cache
def peak_flops(kind: str) -> float | None:
    """Returns the peak FLOP/s of a device of this kind, as jax names it, in bfloat16; None if unknown."""
    return next((chip.flops for chip in chips().values() if kind in chip.kinds), None)


@lru_cache
def peaks(kind: str) -> Peaks | None:
    """Returns the peak rates of a device of this kind, as jax or the profiler names it; None if unknown."""
    named = kind.lower()
    chip = next((chip for chip in chips().values() if named in map(str.lower, chip.kinds)), None)
    return chip.peaks if chip else None


def chips() -> dict[str, Chip]:
    """Returns the known TPU generations by name, such as `v5e`."""
    return msgspec.convert(read_toml(PRESETS / "chips.toml"), dict[str, Chip])


def load_topology(name: str) -> Topology:
    """Returns the slice with a name such as `v5p:4x4x4`. Raises Invalid."""
    known, found = chips(), NAME.fullmatch(name)
    if found is None or found["chip"] not in known:
        raise Invalid(
            f"--topology {name}: no such slice: give a TPU generation ({', '.join(known)}) and the chips "
            "along each dim, such as v5e:4x4 or v5p:4x4x4"
        )
    chip = known[found["chip"]]
    shape = tuple(map(int, found["shape"].split("x")))
    if (dims := len(shape)) != chip.torus:
        raise Invalid(
            f"--topology {name}: {dims} dim{'s' * (dims != 1)}, but a {found['chip']} slice has {chip.torus}: "
            f"give {'x'.join('4' * chip.torus)}, for example"
        )
    if not 1 <= math.prod(shape) <= MAX_CHIPS:
        raise Invalid(f"--topology {name}: {math.prod(shape):,} chips: a slice has 1 to {MAX_CHIPS:,}")
    return Topology(name, shape, chip)


def wiring(topology: Topology, mesh: Mapping[str, int], axes: Sequence[str]) -> Wiring:
    """Returns the links that some mesh axes use together. `mesh`: axis to size, in the order devices fill it."""
    members = _members(topology, mesh, axes)
    along = [sorted({place[dim] for place in members}) for dim in range(len(topology.shape))]
    dims = [dim for dim, values in enumerate(along) if len(values) > 1]
    box = math.prod(map(len, along)) == len(members)
    strides = [(along[dim][-1] - along[dim][0]) // (len(along[dim]) - 1) for dim in dims]
    rings = [box and len(along[dim]) == topology.shape[dim] and topology.rings[dim] for dim in dims]
    rates = [(2 if ring else 1) / stride for ring, stride in zip(rings, strides, strict=True)]
    return Wiring(
        axes=list(axes),
        size=len(members),
        dims=[DIMS[dim] for dim in dims],
        rings=rings,
        strides=strides,
        rate=topology.chip.link_rate * (math.fsum(rates) if box else 1),
    )


@lru_cache(maxsize=4)  # a search needs the members of thousands of groups
def _places(shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    """The coordinates of each device on the torus, in the order in which devices fill a mesh."""
    return list(itertools.product(*map(range, shape)))


def _members(topology: Topology, mesh: Mapping[str, int], axes: Sequence[str]) -> list[tuple[int, ...]]:
    """The coordinates of the group that the first device is in. All groups have the same shape."""
    sizes, places = list(mesh.values()), _places(topology.shape)
    ranges = [range(size) if axis in axes else range(1) for axis, size in mesh.items()]
    strides = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    indices = itertools.product(*ranges)
    return [places[sum(i * stride for i, stride in zip(index, strides, strict=True))] for index in indices]
