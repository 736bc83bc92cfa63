"""Collectives summed by kind and mesh axes, and how two presets differ in them."""

from collections.abc import Sequence

from msgspec import Struct

from ..wire.collective import CollectiveInfo, Network

Key = tuple[str, tuple[str, ...], Network | None]
"""The kind of collective, its mesh axes, and what carries it."""


class Flow(Struct, frozen=True, kw_only=True):
    """All collectives of one kind over the same mesh axes."""

    kind: str
    """The kind of collective, such as `all-gather`."""
    axes: list[str]
    """The mesh axes that the groups span."""
    count: int | None
    """Collectives in a step; None if it is unknown how often one of them runs."""
    bytes_per_device: int | None
    """Bytes per device in a step; None if it is unknown how often one of them runs."""
    bytes_known: int
    """Bytes per device in a step, of those collectives whose count is known."""
    bytes_sent: int
    """Bytes that a device sends to its neighbours on a ring in a step, of those whose count is known: `ring_bytes`."""
    bytes_overlapped: int | None = None
    """Bytes of `bytes_sent` that are sent while the device computes; null for a traced flow."""
    network: Network | None = None
    """The network; null if unknown, as on simulated devices."""

    @property
    def sent(self) -> int | None:
        """`bytes_sent`; None if it is unknown how often one of the collectives runs."""
        return None if self.count is None else self.bytes_sent


class FlowChange(Struct, frozen=True, kw_only=True):
    """A flow under one preset and under the other. Count and bytes are 0 if a preset does not have it."""

    kind: str
    """The kind of collective."""
    axes: list[str]
    """The mesh axes that the groups span."""
    count: int | None
    """Collectives in a step of the first preset; None if unknown."""
    other_count: int | None
    """Collectives in a step of the other preset; None if unknown."""
    bytes_per_device: int | None
    """Bytes per device in a step of the first preset; None if unknown."""
    other_bytes_per_device: int | None
    """Bytes per device in a step of the other preset; None if unknown."""
    bytes_sent: int | None
    """Bytes that a device sends in a step of the first preset, as in a `Flow`; None if unknown."""
    other_bytes_sent: int | None
    """Bytes that a device sends in a step of the other preset; None if unknown."""
    network: Network | None = None
    """The network; null if unknown, as on simulated devices."""


def flows(collectives: Sequence[CollectiveInfo]) -> list[Flow]:
    """Sums collectives to flows, those that send most bytes first."""
    groups: dict[Key, list[CollectiveInfo]] = {}
    for info in collectives:
        groups.setdefault((info.kind, tuple(info.axes), info.network), []).append(info)
    found = [_flow(key, infos) for key, infos in groups.items()]
    return sorted(found, key=lambda flow: -flow.bytes_sent)


def changes(before: Sequence[CollectiveInfo], after: Sequence[CollectiveInfo]) -> list[FlowChange]:
    """Compares two presets: every flow that either has."""
    old, new = ({_key(flow): flow for flow in flows(side)} for side in (before, after))
    found: list[FlowChange] = []
    for key in dict.fromkeys((*old, *new)):
        one, other = (side.get(key) or _flow(key, []) for side in (old, new))
        found.append(
            FlowChange(
                kind=one.kind,
                axes=one.axes,
                network=one.network,
                count=one.count,
                other_count=other.count,
                bytes_per_device=one.bytes_per_device,
                other_bytes_per_device=other.bytes_per_device,
                bytes_sent=one.sent,
                other_bytes_sent=other.sent,
            )
        )
    return found


def _key(flow: Flow) -> Key:
    return flow.kind, tuple(flow.axes), flow.network


def overlapped_share(found: Sequence[Flow]) -> float | None:
    """Returns the share of the bytes sent that is sent while the device computes; None if unknown or nothing is sent.

    Collectives whose count depends on data are left out.
    """
    overlapped = [flow.bytes_overlapped for flow in found if flow.bytes_overlapped is not None]
    moved = sum(flow.bytes_sent for flow in found)
    return sum(overlapped) / moved if moved and len(overlapped) == len(found) else None


def _flow(key: Key, infos: Sequence[CollectiveInfo]) -> Flow:
    kind, axes, network = key
    counts = [info.count for info in infos if info.count is not None]
    known = sum(info.bytes_per_device or 0 for info in infos)
    complete = len(counts) == len(infos)
    return Flow(
        kind=kind,
        axes=list(axes),
        network=network,
        count=sum(counts) if complete else None,
        bytes_per_device=known if complete else None,
        bytes_known=known,
        bytes_sent=_sent(infos),
        bytes_overlapped=_sent([info for info in infos if info.overlapped]),
    )


def _sent(infos: Sequence[CollectiveInfo]) -> int:
    return sum(info.bytes_sent or 0 for info in infos)
