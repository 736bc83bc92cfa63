"""The devices on the mesh axes."""

from collections.abc import Mapping
from itertools import zip_longest

import msgspec
from textual.content import Content
from textual.geometry import Size

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ...engine.wire.events import PresetCompiled
from .lines import cut, set_titles
from .sharding_pane import ShardingPane
from .sharding_picture import Subject, draw_sharding

MIN_SLICE_WIDTH = 24
"""Least cells of a slice of the mesh next to others."""
SLICE_GAP = 2


class MeshPane(ShardingPane):
    """The mesh, drawn as an array with one element per device and each dim split over its mesh axis.

    The slices along a third axis are drawn side by side, if there is room.
    """

    def show_mesh(
        self,
        layout: PresetCompiled,
        platform: str,
        followed: int | None,
        wrong: frozenset[int] = frozenset(),
        notes: Mapping[int, str] = {},
    ) -> None:
        """Shows the bytes of state and batch that a device holds, for padded dims the largest shard's. `wrong`: devices
        that were found to differ from their replicas; `notes`: a third line for each device."""
        held = formatting.size(sum(bytes_per_device(array, layout.mesh) for array in layout.arrays))
        marks = {"detail": held, "wrong": wrong, "notes": notes, "tints_by_row": True}
        self.show_array(mesh_as_array(layout.mesh), layout.mesh, platform, followed, marks)

    def show_title(self, subject: Subject) -> None:
        set_titles(self, "mesh", formatting.axes(subject.mesh.axes))

    @property
    def slices(self) -> int:
        dims = self.subject.stepped_dims if self.subject else []
        count = self.subject.counts[dims[0]] if self.subject and len(dims) == 1 else 1
        return count if self.size.width // count >= MIN_SLICE_WIDTH else 1

    @property
    def picture_size(self) -> Size:
        """The size of each slice; nothing stands below them."""
        return Size(self.size.width // self.slices - SLICE_GAP * (self.slices > 1), self.size.height)

    def picture(self, subject: Subject, width: int, height: int) -> list[Content]:
        if self.slices == 1:
            return super().picture(subject, width, height)
        dim = subject.stepped_dims[0]
        rows = [Content()] * height
        for at in range(self.slices):
            cursor = (*subject.cursor[:dim], at, *subject.cursor[dim + 1 :])
            is_current = self.has_focus and at == subject.cursor[dim]
            lines = draw_sharding(msgspec.structs.replace(subject, cursor=cursor), width, height, is_current)
            padded = zip_longest(rows, (cut(line, width) for line in lines), fillvalue=Content())
            rows = [row + line + Content(" " * (width + SLICE_GAP - line.cell_length)) for row, line in padded]
        return rows


def mesh_as_array(mesh: MeshInfo) -> ArrayInfo:
    """Returns an array of the mesh's shape, one element per device, each dim split over the mesh axis of its name.

    Axes of one device come first: of two dims the last one is drawn across, where there is more room.
    """
    axes = sorted(mesh.axes, key=lambda axis: mesh.axes[axis] > 1)
    spec = [[axis] for axis in axes]
    return ArrayInfo(
        name="mesh",
        kind="scalar",
        shape=[mesh.axes[axis] for axis in axes],
        dtype="device",
        bytes=len(mesh.device_ids),
        logical_axes=list(axes),
        spec=spec,
        compiled_spec=spec,
        reasons=[],
    )
