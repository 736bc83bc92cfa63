"""A slice of TPU chips as it is wired: its torus, and the links that each axis of a mesh runs on."""

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
MOST_CHIPS = 2**14
DIMS = "xyz"


class Chip(Struct, frozen=True, forbid_unknown_fields=True):
    """One device of a TPU generation, from `presets/chips.toml`, where the figures have their sources."""

    flops: float
    """A second, in bfloat16."""
    memory: int
    """Bytes that a program may have."""
    memory_rate: float
    """Bytes a second."""
    link_rate: float
    """Bytes a second and direction, of one link to a neighbour."""
    torus: int
    """Dims of a slice."""
    closes: int
    """What the length of a dim is a multiple of where it is a ring."""
    chip_config: str = "default"
    """What the TPU compiler calls a chip whose cores work as one device."""


class Topology(Struct, frozen=True):
    """A slice."""

    name: str
    shape: tuple[int, ...]
    """Chips along x, y and, where the torus has it, z."""
    chip: Chip

    @property
    def devices(self) -> int:
        return math.prod(self.shape)

    @property
    def rings(self) -> tuple[bool, ...]:
        """Which dims close. Slices in three dims are joined of cubes: theirs close where all are whole cubes (Jouppi et
        al. 2023, section 2); in two dims each closes for itself."""
        whole = [size % self.chip.closes == 0 for size in self.shape]
        return tuple(all(whole) if len(whole) == 3 else closes for closes in whole)


class Wiring(Struct, frozen=True, kw_only=True):
    """What one axis of a mesh runs on, or some of them together."""

    axes: list[str]
    size: int
    """Devices in a group."""
    dims: list[str]
    """Of the torus: `x`, `y`, `z`."""
    rings: list[bool]
    """Of each of these dims, whether it closes to a ring."""
    strides: list[int]
    """Of each, the hops from one member to the next; groups that lie between share the links."""
    rate: float
    """Bytes a second that a device can send and receive along the axis, both ways round of a ring together."""


def chips() -> dict[str, Chip]:
    return msgspec.convert(read_toml(PRESETS / "chips.toml"), dict[str, Chip])


def load_topology(name: str) -> Topology:
    """Of a name such as `v5p:4x4x4`. Raises Invalid."""
    known, found = chips(), NAME.fullmatch(name)
    if found is None or found["chip"] not in known:
        raise Invalid(
            f"--topology {name}: no such slice: give a generation of {', '.join(known)} and its chips, "
            "such as v5e:4x4 or v5p:4x4x4"
        )
    chip = known[found["chip"]]
    shape = tuple(map(int, found["shape"].split("x")))
    if len(shape) != chip.torus:
        raise Invalid(
            f"--topology {name}: {len(shape)} dims, the links of a {found['chip']} have {chip.torus}: "
            f"give {'x'.join('4' * chip.torus)}, for example"
        )
    if not 1 <= math.prod(shape) <= MOST_CHIPS:
        raise Invalid(f"--topology {name}: {math.prod(shape):,} chips: from 1 to {MOST_CHIPS:,} can be planned")
    return Topology(name, shape, chip)


def wiring(topology: Topology, mesh: Mapping[str, int], axes: Sequence[str]) -> Wiring:
    """Of some axes together. `mesh`: axis to size, in the order in which the devices fill it."""
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


@lru_cache(maxsize=4)  # a search asks for the members of thousands of groups
def _places(shape: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    """Of each device on the torus, in the order in which a mesh is filled: neighbours stay neighbours."""
    return list(itertools.product(*map(range, shape)))


def _members(topology: Topology, mesh: Mapping[str, int], axes: Sequence[str]) -> list[tuple[int, ...]]:
    """Places of the group that holds the first device: all groups lie as it does."""
    sizes, places = list(mesh.values()), _places(topology.shape)
    ranges = [range(size) if axis in axes else range(1) for axis, size in mesh.items()]
    strides = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    indices = itertools.product(*ranges)
    return [places[sum(i * stride for i, stride in zip(index, strides, strict=True))] for index in indices]
