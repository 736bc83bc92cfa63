"""What follows from a draft: which arrays change, and what a step costs, beside the preset that it is made from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...engine.analysis.layout import bytes_per_device, shards_differ
from ...engine.wire.descriptions import ArrayInfo, MeshInfo, Weighed
from ...engine.wire.events import PresetWeighed

ARGUMENTS, PEAK = "arguments", "peak"


@dataclass(frozen=True)
class Change:
    """One array that the devices hold other parts of."""

    before: ArrayInfo | None
    """None where the preset before cannot be laid out."""
    after: ArrayInfo
    bytes_before: int | None
    """On one device."""
    bytes_after: int
    moments: int = 0
    """That change with it."""

    @property
    def difference(self) -> int:
        """On one device, of all of them."""
        return (1 + self.moments) * (self.bytes_after - (self.bytes_before or 0))


@dataclass(frozen=True)
class Cost:
    """Bytes on one device, or that it sends in a step. None where nobody can tell."""

    label: str
    before: int | None
    after: int | None

    @property
    def ratio(self) -> float | None:
        return self.after / self.before - 1 if self.before and self.after is not None else None


def changes(weighed: PresetWeighed) -> list[Change]:
    """The largest difference first."""
    before, after = weighed.before.mesh, weighed.after.mesh
    if after is None:
        return []
    olds = {array.name: array for array in weighed.before.arrays}
    found = [
        _change(olds.get(array.name), array, before, after)
        for array in weighed.after.arrays
        if before is None or array.name not in olds or shards_differ(olds[array.name], array, before, after)
    ]
    return sorted(_with_moments(found), key=lambda change: -abs(change.difference))


def _change(before: ArrayInfo | None, after: ArrayInfo, mesh: MeshInfo | None, other_mesh: MeshInfo) -> Change:
    old = bytes_per_device(before, mesh) if before and mesh else None
    return Change(before, after, old, bytes_per_device(after, other_mesh))


def _with_moments(found: Iterable[Change]) -> list[Change]:
    """A moment that does as its parameter does is counted there."""
    kept: dict[str, Change] = {}
    for change in sorted(found, key=lambda change: change.after.kind == "moment"):
        owner = kept.get(change.after.name.partition(".")[2]) if change.after.kind == "moment" else None
        if owner and _specs(owner) == _specs(change):
            kept[owner.after.name] = replace(owner, moments=owner.moments + 1)
        else:
            kept[change.after.name] = change
    return list(kept.values())


def _specs(change: Change) -> tuple[list[list[str]] | None, list[list[str]]]:
    return change.before and change.before.spec, change.after.spec


def costs(weighed: PresetWeighed) -> list[Cost]:
    """Of memory, then of each axis over which something is sent before or after."""
    before, after = weighed.before, weighed.after
    axes = dict.fromkeys((*after.sent_bytes, *before.sent_bytes))
    return [
        Cost(ARGUMENTS, before.argument_bytes, after.argument_bytes),
        Cost(PEAK, before.peak_bytes, after.peak_bytes),
        *(Cost(f"sent {name}", _sent(before, name), _sent(after, name)) for name in axes),
    ]


def _sent(weighed: Weighed, axes: str) -> int | None:
    return None if weighed.peak_bytes is None else weighed.sent_bytes.get(axes, 0)
