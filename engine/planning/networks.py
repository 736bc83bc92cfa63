"""Which networks collectives use: ICI inside a slice, DCN between slices; NVLink and the network of GPUs."""

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ..hlo.traffic import Flow, flows
from ..spec.topology import Topology, crossing, spans, within
from ..wire.collective import CollectiveInfo, Network

INSIDE = {"all-reduce": ("reduce-scatter", "all-gather"), "all-to-all": ()}
"""The collectives inside a slice that are part of one over slices; for other kinds the same kind."""


def by_network(collectives: Sequence[CollectiveInfo], mesh: Mapping[str, int], topology: Topology) -> list[Flow]:
    """Returns the flows on a mesh over several slices, with each collective split into what goes over ICI and over DCN.

    Collectives are hierarchical, as the compiler makes them: of V bytes over n devices in each of several slices, an
    all-reduce is a reduce-scatter of V inside the slice, an all-reduce of V ÷ n between slices, and an all-gather of V;
    an all-gather or a reduce-scatter has one step of V inside and one of V ÷ n between slices. An all-to-all goes over
    DCN as one. Of a permutation, each device's hop is on one of the two: both are counted. GPUs leave that to their
    library of collectives: each is one here.
    """
    if topology.chip.target:
        return with_networks(flows(collectives), mesh, topology)
    return flows([part for info in collectives for part in _parts(info, mesh, topology.slices)])


def with_networks(found: Sequence[Flow], mesh: Mapping[str, int], topology: Topology) -> list[Flow]:
    """Names the slowest network of each flow of GPUs, which their programs do not; TPU programs do."""
    if not topology.chip.target:
        return list(found)
    between = set(crossing(mesh, topology.domains))
    return [replace(flow, network="network" if between & set(flow.axes) else "nvlink") for flow in found]


def _parts(info: CollectiveInfo, mesh: Mapping[str, int], slices: int) -> Iterator[CollectiveInfo]:
    inner, spanned = within(mesh, slices), spans(mesh, slices)
    inside, across = (math.prod(sizes[axis] for axis in info.axes) for sizes in (inner, spanned))
    if across == 1:
        yield replace(info, network="ici")
        return
    if inside > 1:
        here = [axis for axis in info.axes if inner[axis] > 1]
        for kind in INSIDE.get(info.kind, (info.kind,)):
            yield _part(info, kind, here, "ici", 1, inside)
    there = [axis for axis in info.axes if spanned[axis] > 1]
    part = 1 if info.kind in ("all-to-all", "collective-permute") else inside
    yield _part(info, info.kind, there, "dcn", part, across)


def _part(
    info: CollectiveInfo, kind: str, axes: list[str], network: Network, divisor: int, group_size: int
) -> CollectiveInfo:
    each = info.bytes_each // divisor
    return replace(
        info,
        kind=kind,
        axes=axes,
        network=network,
        group_size=group_size,
        bytes_each=each,
        bytes_per_device=None if info.count is None else info.count * each,
    )
