"""The array whose sharding is drawn, the dims drawn along rows and columns, and the place of the cursor."""

from collections.abc import Mapping

import msgspec

from ...engine.hlo.layout import holders, parts
from ...engine.wire.descriptions import ArrayInfo, MeshInfo

Part = tuple[int, ...]
"""The index of a shard along each dim."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """An array, and what of its sharding is drawn."""

    array: ArrayInfo
    mesh: MeshInfo
    platform: str
    """The platform of the devices, such as `cpu`."""
    rows: int | None
    """The dim along the rows; None for arrays of fewer than two dims."""
    columns: int | None
    """The dim along the columns; None for scalars."""
    cursor: Part
    """The shard under the cursor."""
    folds: bool = True
    """Whether a grid larger than the pane is folded instead of scrolled."""
    followed: int | None = None
    """The device whose shard is marked, None for none."""
    wrong: frozenset[int] = frozenset()
    """Devices that are marked with `✗`."""
    tints_by_row: bool = False
    """Whether the boxes of a row share a colour, instead of each having its own."""
    detail: str = ""
    """A second line in each box."""
    notes: Mapping[int, str] = {}
    """A third line in the box of one device, by its id."""

    @property
    def counts(self) -> Part:
        return parts(self.array.compiled_spec, self.mesh)

    @property
    def holders(self) -> dict[Part, list[int]]:
        return holders(self.array.compiled_spec, self.mesh)

    @property
    def stepped_dims(self) -> list[int]:
        flat = (self.rows, self.columns)
        return [dim for dim, count in enumerate(self.counts) if count > 1 and dim not in flat]


def initial_subject(array: ArrayInfo, mesh: MeshInfo, platform: str, followed: int | None = None) -> Subject:
    """Returns the first view of an array: its split dims are drawn, or its last ones if none is split."""
    rank = len(array.shape)
    counts = parts(array.compiled_spec, mesh)
    if rank <= 2:
        rows, columns = (0 if rank == 2 else None, rank - 1 if rank else None)
    else:
        split = [dim for dim in range(rank) if counts[dim] > 1]
        unsharded = [dim for dim in reversed(range(rank)) if counts[dim] == 1]
        rows, columns = sorted([*split, *unsharded][:2])
    at = (0,) * rank
    return Subject(array=array, mesh=mesh, platform=platform, rows=rows, columns=columns, cursor=at, followed=followed)


def with_next_dim(subject: Subject, direction: str) -> Subject:
    """Returns the subject with the next dim along `rows` or `columns`; swaps the two if that dim is drawn already."""
    if subject.rows is None or subject.columns is None:
        return subject
    mine, other = ("rows", "columns") if direction == "rows" else ("columns", "rows")
    dim = (getattr(subject, mine) + 1) % len(subject.array.shape)
    if dim == getattr(subject, other):
        return msgspec.structs.replace(subject, **{mine: dim, other: getattr(subject, mine)})
    return msgspec.structs.replace(subject, **{mine: dim})


def next_slice(subject: Subject, step: int) -> Subject:
    """Returns the subject with its cursor one step along the split dims that are not drawn, the last one fastest."""
    cursor = list(subject.cursor)
    for dim in reversed(subject.stepped_dims):
        cursor[dim] += step
        if 0 <= cursor[dim] < subject.counts[dim]:
            break
        cursor[dim] %= subject.counts[dim]
    return msgspec.structs.replace(subject, cursor=tuple(cursor))
