"""Which networks collectives use: ICI inside a slice, DCN between slices; NVLink and the network of GPUs."""

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ..hlo.traffic import Flow
from ..spec.topology import Topology, crossing, spans, within
from ..wire.collective import Network, ring_bytes

INSIDE = {"all-reduce": ("reduce-scatter", "all-gather"), "all-to-all": ()}
"""The collectives inside a slice that are part of one over slices; for other kinds the same kind."""


def by_network(flows: Sequence[Flow], mesh: Mapping[str, int], topology: Topology) -> list[Flow]:
    """Returns the flows of a mesh over several slices, each split into what goes over ICI and what over DCN.

    Collectives are hierarchical, as the compiler makes them: of V bytes over n devices in each of several slices, an
    all-reduce is a reduce-scatter of V inside the slice, an all-reduce of V ÷ n between slices, and an all-gather of V;
    an all-gather or a reduce-scatter has one step of V inside and one of V ÷ n between slices. An all-to-all goes over
    DCN as one. Of a permutation, each device's hop is on one of the two: both are counted. GPUs leave that to their
    library of collectives: each is one here.
    """
    if topology.chip.target:
        return with_networks(flows, mesh, topology)
    groups: dict[tuple[str, tuple[str, ...], Network | None], list[Flow]] = {}
    for part in (part for flow in flows for part in _parts(flow, mesh, topology.slices)):
        groups.setdefault((part.kind, tuple(part.axes), part.network), []).append(part)
    return sorted(map(_sum, groups.values()), key=lambda flow: -flow.bytes_sent)


def with_networks(flows: Sequence[Flow], mesh: Mapping[str, int], topology: Topology) -> list[Flow]:
    """Names the slowest network of each flow of GPUs, which their programs do not; TPU programs do."""
    if not topology.chip.target:
        return list(flows)
    between = set(crossing(mesh, topology.domains))
    return [replace(flow, network="network" if between & set(flow.axes) else "nvlink") for flow in flows]


def _parts(flow: Flow, mesh: Mapping[str, int], slices: int) -> Iterator[Flow]:
    inner, spanned = within(mesh, slices), spans(mesh, slices)
    inside, across = (math.prod(sizes[axis] for axis in flow.axes) for sizes in (inner, spanned))
    if across == 1:
        yield replace(flow, network="ici")
        return
    if inside > 1:
        here = [axis for axis in flow.axes if inner[axis] > 1]
        for kind in INSIDE.get(flow.kind, (flow.kind,)):
            yield _part(flow, kind, here, "ici", 1, inside)
    there = [axis for axis in flow.axes if spanned[axis] > 1]
    part = 1 if flow.kind in ("all-to-all", "collective-permute") else inside
    yield _part(flow, flow.kind, there, "dcn", part, across)


def _sum(parts: Sequence[Flow]) -> Flow:
    moved = sum(part.bytes_known for part in parts)
    return replace(
        parts[0],
        count=sum(part.count or 0 for part in parts),
        bytes_per_device=moved,
        bytes_known=moved,
        bytes_sent=sum(part.bytes_sent for part in parts),
    )


def _part(flow: Flow, kind: str, axes: list[str], network: Network, divisor: int, group_size: int) -> Flow:
    moved = flow.bytes_known // divisor
    return replace(
        flow,
        kind=kind,
        axes=axes,
        network=network,
        bytes_per_device=moved,
        bytes_known=moved,
        bytes_sent=round(ring_bytes(kind, moved, group_size)),
    )
