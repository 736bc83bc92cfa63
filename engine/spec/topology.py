"""TPU slices and hosts of GPUs, and the links that each axis of a mesh uses: ICI inside a slice, DCN between slices."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import Struct

from ..base import formatting
from ..base.user_error import UserError
from .preset_files import PRESETS, read_toml

NAME = re.compile(r"(?:(?P<slices>\d{1,4})\*)?(?P<slice>(?P<chip>[a-z0-9]+):(?P<shape>\d{1,4}(?:x\d{1,4})*))")
MAX_CHIPS = 2**14
DIMS = "xyz"


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    """Properties of a GPU for XLA's compiler. Sizes in bytes; a core is a streaming multiprocessor."""

    capability: int
    core_count: int
    fpus_per_core: int
    shared_memory_per_core: int
    l2_cache_size: int


class Chip(Struct, frozen=True, forbid_unknown_fields=True):
    """One device of a TPU generation, or a GPU, from `presets/chips.toml` and `gpus.toml`, which name sources. Rates
    per second: FLOPs in bfloat16, bytes, cycles. `memory`: bytes of HBM for programs; `kinds`: jax's names."""

    flops: float
    memory: int
    memory_rate: float
    link_rate: float
    """Bandwidth of one ICI link to a neighbour, or of all NVLinks of a GPU, in bytes per second and direction."""
    clock_rate: float
    kinds: tuple[str, ...]
    torus: int = 2
    """Dims of the torus, 2 or 3; of GPUs, hosts and the GPUs of a host."""
    closes: int = 1
    """A torus dim is a ring (has wraparound links) if its length is a multiple of this."""
    dcn_rate: float | None = None
    """Bandwidth to other slices, or hosts, over the data center network (DCN), in bytes per second; None if unknown."""
    cores: int = 1
    """Devices in a chip. They share the chip's ICI links."""
    core_rate: float = 0.0
    """Bandwidth between the devices of a chip, in bytes per second and direction; 0 if a chip is one device."""
    chip_config: str = "default"
    """The TPU compiler's name for the configuration in which a chip's cores are one device."""
    domain_hosts: int = 1
    """Hosts whose GPUs are connected by NVLink."""
    target: Target | None = None

    def rate_of(self, network: str | None) -> float | None:
        """Returns the bytes per second that a device sends over a network, as in `CollectiveInfo`; None if unknown. On
        a ring of ICI links it sends in both directions."""
        if network in ("dcn", "network"):
            return self.dcn_rate
        return self.link_rate if self.target else 2 * self.link_rate / self.cores


class Topology(Struct, frozen=True):
    """A TPU slice, or several equal ones that are connected by DCN; or hosts of GPUs."""

    name: str
    shape: tuple[int, ...]
    """Chips along x, y and, in a 3-D torus, z; or hosts and the GPUs of each."""
    chip: Chip
    slices: int = 1

    @property
    def devices(self) -> int:
        return math.prod(self.shape) * self.chip.cores * self.slices

    @property
    def chips(self) -> int:
        return self.devices // self.chip.cores

    @property
    def platform(self) -> Literal["tpu", "gpu"]:
        return "gpu" if self.chip.target else "tpu"

    @property
    def domains(self) -> int:
        """Slices, or groups of hosts that share NVLink: a slower network connects them."""
        return max(1, self.shape[0] // self.chip.domain_hosts) if self.chip.target else self.slices

    @property
    def title(self) -> str:
        return self.name if self.slices == 1 else f"{self.slices} × {self.name}"

    @property
    def rings(self) -> tuple[bool, ...]:
        """Whether each dim is a ring, that is, has wraparound links. 3-D slices are built of cubes: their dims are
        rings if all lengths are multiples of a cube's (Jouppi et al. 2023, section 2). In 2-D slices each dim is a ring
        or not by itself."""
        closed = [size % self.chip.closes == 0 for size in self.shape]
        return tuple(all(closed) if len(closed) == 3 else closes for closes in closed)

    def check_mesh(self, mesh: Mapping[str, int]) -> None:
        """Raises UserError if a program's mesh does not have all devices."""
        devices = math.prod(mesh.values())
        if devices != self.devices:
            its = f"the mesh {formatting.axes(dict(mesh))} has {devices:,}" if mesh else "the program has no mesh"
            own = f"{self.title} has {formatting.counted(self.devices, 'device')}"
            raise UserError(f"{own}, but {its}: give a mesh and a --topology of one size")


class Wiring(Struct, frozen=True, kw_only=True):
    """The links that the collectives over some mesh axes use."""

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
    nvlink: bool = False
    """Whether a switch connects the devices, as for GPUs: `dims` is empty."""
    rate: float
    """Bytes per second that a device can send over these axes on ICI, in both directions of a ring together; 0 if a
    group has one device in each slice."""
    slices: int = 1
    """Slices, or groups of hosts with NVLink, that a group spans. Between them the data cross DCN."""
    dcn_rate: float | None = None
    """Bytes per second that a device can send to other slices or hosts; null if a group is inside one."""


@lru_cache
def chip_of(kind: str) -> Chip | None:
    """Returns the chip of a device of this kind, as jax or the profiler names it; None if unknown."""
    return next((chip for chip in chips().values() if kind.lower() in map(str.lower, chip.kinds)), None)


@lru_cache
def chips() -> dict[str, Chip]:
    """Returns the known TPU generations and GPUs by name, such as `v5e` and `h100`."""
    tables = read_toml(PRESETS / "chips.toml") | read_toml(PRESETS / "gpus.toml")
    return msgspec.convert(tables, dict[str, Chip])


def load_topology(name: str) -> Topology:
    """Returns the devices with a name such as `v5p:4x4x4`, `2*v5p:4x4x4` or `h100:4x8`. Raises UserError."""
    known, found = chips(), NAME.fullmatch(name)
    if found is None or found["chip"] not in known:
        raise UserError(
            f"--topology {name}: no such devices: give a TPU generation or GPU ({', '.join(known)}) and the chips "
            "along each dim, such as v5e:4x4 or v5p:4x4x4, or the hosts and the GPUs of each, such as h100:4x8"
        )
    shape = tuple(map(int, found["shape"].split("x")))
    topology = Topology(found["slice"], shape, known[found["chip"]], int(found["slices"] or 1))
    if problem := _problem(topology, found["chip"]):
        raise UserError(f"--topology {name}: {problem}")
    return topology


def wiring(topology: Topology, mesh: Mapping[str, int], axes: Sequence[str], group: Sequence[int] = ()) -> Wiring:
    """Returns the links of some mesh axes together; of TPUs, of a `group` that spans only a part of them, as positions
    in the mesh. `mesh`: in the order that devices fill it. Raises UserError if it cannot be laid over the slices."""
    return _wiring(topology, tuple(mesh.items()), tuple(axes), tuple(group))


@lru_cache(maxsize=2**16)  # a search asks for the same few thousand groups again and again
def _wiring(
    topology: Topology, sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...], group: tuple[int, ...]
) -> Wiring:
    mesh = dict(sizes)
    chip, crossed = topology.chip, spans(mesh, topology.domains)
    if chip.target:
        return _switched(chip, mesh, crossed, axes)
    places = _places(topology.shape, chip.cores)
    members = [places[at] for at in group or _positions(within(mesh, topology.slices), axes)]
    *along, cores = [sorted({place[dim] for place in members}) for dim in range(len(topology.shape) + 1)]
    dims = [dim for dim, values in enumerate(along) if len(values) > 1]
    box = math.prod(map(len, along)) * len(cores) == len(members)
    strides = [(along[dim][-1] - along[dim][0]) // (len(along[dim]) - 1) for dim in dims]
    rings = [box and len(along[dim]) == topology.shape[dim] and topology.rings[dim] for dim in dims]
    rates = [(2 if ring else 1) / stride for ring, stride in zip(rings, strides, strict=True)]
    shared = chip.cores // len(cores)  # groups that use the same links at the same time
    across = math.prod(crossed[axis] for axis in axes)
    return Wiring(
        axes=list(axes),
        size=len(members) * across,
        dims=[DIMS[dim] for dim in dims],
        rings=rings,
        strides=strides,
        rate=chip.link_rate * (math.fsum(rates) if box else 1) / shared if dims else chip.core_rate * (len(cores) > 1),
        slices=across,
        dcn_rate=chip.dcn_rate if across > 1 else None,
    )


def spans(mesh: Mapping[str, int], slices: int) -> dict[str, int]:
    """Returns for each mesh axis how many slices it spans: 1 inside one. Raises UserError if the mesh does not fit.
    Devices fill a mesh slice after slice, the last axis fastest, whatever the preset. So the first axis is the
    outermost part of every slice boundary, and the slices must divide it, or it must divide them."""
    found: dict[str, int] = {}
    rest = slices
    for axis, size in mesh.items():
        if size % rest and rest % size:
            raise UserError(
                f"mesh {formatting.axes(dict(mesh))} cannot be laid over {slices} slices: {axis} ({size}) and {rest} "
                f"slices do not divide each other: make the first axis a multiple of {slices}"
            )
        found[axis] = math.gcd(size, rest)
        rest //= found[axis]
    return found


def within(mesh: Mapping[str, int], slices: int) -> dict[str, int]:
    """Returns the part of a mesh in one slice: axis to size. Raises UserError as `spans` does."""
    return {axis: mesh[axis] // span for axis, span in spans(mesh, slices).items()}


def crossing(mesh: Mapping[str, int], slices: int) -> list[str]:
    """Returns the mesh axes that cross slices. Raises UserError as `spans` does."""
    return [axis for axis, span in spans(mesh, slices).items() if span > 1]


def _problem(topology: Topology, generation: str) -> str | None:
    chip, count, dims = topology.chip, topology.slices, len(topology.shape)
    hosts, domain = topology.shape[0], chip.domain_hosts
    if chip.target and count > 1:
        return "GPUs have no slices: leave out --slices, and give more hosts"
    if chip.target and dims != 2:
        return "give the hosts and the GPUs of each, such as 4x8"
    if chip.target and hosts > domain and hosts % domain:
        return f"NVLink connects the GPUs of {domain} hosts: give at most {domain}, or a multiple"
    if dims != chip.torus:
        has = f"{formatting.counted(dims, 'dim')}, but a {generation} slice has {chip.torus}"
        return f"{has}: give {'x'.join('4' * chip.torus)}, for example"
    if not 1 <= topology.chips <= MAX_CHIPS:
        return f"{topology.chips:,} chips: {'slices have' if count > 1 else 'a slice has'} 1 to {MAX_CHIPS:,}"
    if count > 1 and chip.dcn_rate is None:
        able = ", ".join(other for other, each in chips().items() if each.dcn_rate)
        return f"no bandwidth between {generation} slices is published: plan {able}"
    return None


def _switched(chip: Chip, mesh: Mapping[str, int], spans: Mapping[str, int], axes: Sequence[str]) -> Wiring:
    """The links of GPUs: to all others of its hosts with NVLink, a GPU can send at the rate of all its links."""
    across, size = (math.prod(sizes[axis] for axis in axes) for sizes in (spans, mesh))
    return Wiring(
        axes=list(axes),
        size=size,
        dims=[],
        rings=[],
        strides=[],
        nvlink=True,
        rate=chip.link_rate if size > across else 0,
        slices=across,
        dcn_rate=chip.dcn_rate if across > 1 else None,
    )


@lru_cache(maxsize=4)  # a search needs the members of thousands of groups
def _places(shape: tuple[int, ...], cores: int) -> Sequence[tuple[int, ...]]:
    """The coordinates on the torus, and the core, of each device of a slice, in the order that they fill a mesh."""
    return list(itertools.product(*map(range, shape), range(cores)))


def _positions(mesh: Mapping[str, int], axes: Sequence[str]) -> list[int]:
    """The group that the first device is in. All groups have the same shape. `mesh`: in one slice."""
    stride = math.prod(mesh.values())
    offsets = list[range]()
    for axis, size in mesh.items():
        stride //= size
        offsets.append(range(0, size * stride, stride) if axis in axes else range(1))
    return [sum(each) for each in itertools.product(*offsets)]
