"""Mesh: the devices on the named mesh axes, and the details of the device under the cursor."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from ..bindings import identified
from ..messages import DeviceFollowed, ShardChosen
from ..state.run_state import RunState
from ..widgets.device_details import DeviceDetails
from ..widgets.hosts_panel import HostsPanel
from ..widgets.mesh_pane import MeshPane
from .run_screen import RunScreen


class MeshScreen(RunScreen):
    """The device grid, details of the device under the cursor and, on several hosts, the processes."""

    HELP = """\
## Mesh

The devices on the mesh axes of the active preset. **Arrows** move the cursor, **v** and **h** put other
axes along rows and columns, **,** and **.** step through the rest. A row of devices shares a colour, and each box shows
the bytes of state and batch that its device holds. **f** follows the device: its shard of each array
is marked with `◆` in Arrays. `✗` marks a device that differed from its replicas
(`--check-devices`). A run on several hosts lists its processes below, also which one is *stuck* and which
are *waiting* for it, and a supervised one its attempts: who was lost, the time without steps, and how many were made
again.
"""
    AUTO_FOCUS: ClassVar[str | None] = "MeshPane"
    BINDINGS: ClassVar[list[BindingType]] = identified("mesh", [("f", "follow", "Follow")])

    def __init__(self) -> None:
        super().__init__()
        self.device: int | None = None

    def body(self) -> Iterable[Widget]:
        yield Horizontal(MeshPane(), DeviceDetails(), id="grid")
        yield HostsPanel()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        pane = self.query_one(MeshPane)
        if state.layout and state.ready:
            mesh, old = state.layout.mesh, pane.subject
            wrong = frozenset(device.id for device in state.differing.devices) if state.differing else frozenset[int]()
            if old is None or (old.mesh, old.followed, old.wrong) != (mesh, state.followed, wrong):
                pane.show_mesh(state.layout, state.ready.devices[0].platform, state.followed, wrong)
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
