"""Mesh: the devices on their named axes, and what the one under the cursor is and holds."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from ...engine.base import figures
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ..messages import DeviceFollowed, ShardChosen
from ..state.run_state import RunState
from ..widgets.device_details import DeviceDetails
from ..widgets.hosts_panel import HostsPanel
from ..widgets.lines import entitle
from ..widgets.sharding_pane import ShardingPane, Subject
from .run_screen import RunScreen


class MeshScreen(RunScreen):
    HELP = """\
## Mesh

Every device at its place on the mesh axes of the active preset. **Arrows** move the cursor, **r** and **c** lay other
axes along rows and columns, **,** and **.** step through the rest. **f** follows the device: its shard of every array
is marked with `◆` in the Arrays view. Where a run is on several hosts, its processes stand below.
"""
    AUTO_FOCUS: ClassVar[str | None] = "MeshPane"
    BINDINGS: ClassVar[list[BindingType]] = [("f", "follow", "Follow")]

    def body(self) -> Iterable[Widget]:
        yield Horizontal(MeshPane(), DeviceDetails())
        yield HostsPanel()

    def on_mount(self) -> None:
        self.device: int | None = None

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        pane = self.query_one(MeshPane)
        if state.layout and state.ready:
            mesh, old = state.layout.mesh, pane.subject
            if old is None or (old.mesh, old.followed) != (mesh, state.followed):
                pane.show_array(as_array(mesh), mesh, state.ready.devices[0].platform, state.followed)
            self.show_device()
        self.query_one(HostsPanel).show_hosts(state)

    @on(ShardChosen)
    def choose(self, message: ShardChosen) -> None:
        self.device = message.devices[0] if message.devices else None
        self.show_device()

    def show_device(self) -> None:
        self.query_one(DeviceDetails).show_device(self.state, self.device)

    def action_follow(self) -> None:
        self.post_message(DeviceFollowed(None if self.state.followed == self.device else self.device))


class MeshPane(ShardingPane):
    """The mesh drawn as an array of one element a device, each dim split over its axis."""

    def show_title(self, subject: Subject) -> None:
        entitle(self, "mesh", figures.axes(subject.mesh.axes))

    def foot(self, subject: Subject, width: int, height: int) -> list[Content]:
        return []


def as_array(mesh: MeshInfo) -> ArrayInfo:
    spec = [[axis] for axis in mesh.axes]
    return ArrayInfo(
        name="mesh",
        kind="scalar",
        shape=list(mesh.axes.values()),
        dtype="device",
        bytes=len(mesh.device_ids),
        logical_axes=list(mesh.axes),
        spec=spec,
        compiled_spec=spec,
        reasons=[],
    )
