"""Changes between a draft and the preset it is made from: the arrays' layouts, and the cost of a step."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...engine.hlo.layout import bytes_per_device, shards_differ
from ...engine.wire.descriptions import ArrayInfo, MeshInfo, Preview
from ...engine.wire.events import PresetPreviewed

ARGUMENTS, PEAK = "state + batch", "peak"
"""Labels of costs."""


@dataclass(frozen=True)
class Change:
    """One array whose shards differ."""

    before: ArrayInfo | None
    """None if the origin cannot be laid out, or lacks the array."""
    after: ArrayInfo
    bytes_before: int | None
    bytes_after: int
    moments: int = 0
    """Number of optimizer moments that change in the same way."""

    @property
    def difference(self) -> int:
        return (1 + self.moments) * (self.bytes_after - (self.bytes_before or 0))


@dataclass(frozen=True)
class Cost:
    """Bytes on one device, or bytes that it sends per step. None if unknown."""

    label: str
    """`arguments`, `peak` or `sent AXES`."""
    before: int | None
    after: int | None

    @property
    def ratio(self) -> float | None:
        return self.after / self.before - 1 if self.before and self.after is not None else None


def changes(previewed: PresetPreviewed) -> list[Change]:
    """Returns the arrays whose shards differ, the largest difference first; none if the draft cannot be laid out."""
    before, after = previewed.before.mesh, previewed.after.mesh
    if after is None:
        return []
    old_arrays = {array.name: array for array in previewed.before.arrays}
    found = [
        _change(old_arrays.get(array.name), array, before, after)
        for array in previewed.after.arrays
        if before is None or array.name not in old_arrays or shards_differ(old_arrays[array.name], array, before, after)
    ]
    return sorted(_with_moments(found), key=lambda change: -abs(change.difference))


def _change(before: ArrayInfo | None, after: ArrayInfo, mesh: MeshInfo | None, other_mesh: MeshInfo) -> Change:
    old = bytes_per_device(before, mesh) if before and mesh else None
    return Change(before, after, old, bytes_per_device(after, other_mesh))


def _with_moments(found: Iterable[Change]) -> list[Change]:
    """Counts a moment that changes like its parameter in that parameter's entry."""
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


def costs(previewed: PresetPreviewed) -> list[Cost]:
    """Returns the costs of memory, then of each mesh axis over which either preset sends something."""
    before, after = previewed.before, previewed.after
    axes = dict.fromkeys((*after.sent_bytes, *before.sent_bytes))
    return [
        Cost(ARGUMENTS, before.argument_bytes, after.argument_bytes),
        Cost(PEAK, before.peak_bytes, after.peak_bytes),
        *(Cost(f"sent {name}", _sent(before, name), _sent(after, name)) for name in axes),
    ]


def _sent(previewed: Preview, axes: str) -> int | None:
    return None if previewed.peak_bytes is None else previewed.sent_bytes.get(axes, 0)
