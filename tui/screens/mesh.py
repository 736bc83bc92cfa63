"""Mesh: the devices on the named mesh axes, and the details of the device under the cursor."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device, coordinates
from ...engine.wire.descriptions import DeviceInfo, MeshInfo
from ...engine.wire.events import DevicesDiffer
from ...engine.wire.hosts import HostInfo, HostStatus
from ..bindings import identified
from ..messages import ShardChosen
from ..state.run_state import RunState
from ..widgets.lines import Lines, set_titles
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
        self.follow_device(self.device)


MAX_PEERS = 16


class DeviceDetails(Lines):
    """Identity, mesh position and bytes by kind of the device under the cursor."""

    def on_mount(self) -> None:
        self.border_title = "device"

    def show_device(self, state: RunState, device: int | None) -> None:
        """Shows the device with this id, once the run has reported its devices and a layout."""
        info = next((info for info in state.ready.devices if info.id == device), None) if state.ready else None
        if info and state.layout:
            set_titles(self, f"device {info.id}{' ◆ followed' if info.id == state.followed else ''}")
            self.show(
                _difference(info, state.differing)
                + _identity(info)
                + _mesh_position(info.id, state.layout.mesh)
                + _held_bytes(state)
            )


def _identity(info: DeviceInfo) -> list[Content]:
    rows = [("device", f"{info.kind} ({info.platform}), process {info.process}")]
    if info.coords is not None:
        core = "" if info.core is None else f", core {info.core}"
        rows.append(("torus coordinates", f"({', '.join(map(str, info.coords))}){core}"))
    return [_row(label, value) for label, value in rows]


def _difference(info: DeviceInfo, differing: DevicesDiffer | None) -> list[Content]:
    """Returns that the device was found to differ from its replicas; nothing if it was not."""
    if differing is None or all(device.id != info.id for device in differing.devices):
        return []
    what = "differed" if differing.is_certain else "may be what differed"
    lines = f"✗ {what} from its replicas after step {differing.step:,}, in {len(differing.arrays)} arrays"
    return [Content.styled(lines, "$error"), Content()]


def _mesh_position(device: int, mesh: MeshInfo) -> list[Content]:
    """Returns the device's index on each mesh axis, and the devices that differ from it in that axis alone."""
    places = coordinates(mesh)
    mine = places[device]
    lines = [Content()]
    for axis, size in mesh.axes.items():
        peers = [other for other, place in places.items() if {**place, axis: 0} == {**mine, axis: 0}]
        shown = ", ".join(map(str, peers[:MAX_PEERS])) + (" …" if len(peers) > MAX_PEERS else "")
        lines.append(_row(axis, f"index {mine[axis]} of {size}" + (f"; group: devices {shown}" if size > 1 else "")))
    return lines


def _held_bytes(state: RunState) -> list[Content]:
    """Returns the bytes that a device holds, by kind. All devices hold the same, except for dims that do not divide."""
    assert state.layout
    kinds = ("parameter", "moment", "variable", "batch")
    lines = [Content()]
    for kind in kinds:
        held = [bytes_per_device(array, state.layout.mesh) for array in state.layout.arrays if array.kind == kind]
        if held:
            lines.append(_row(f"{kind} bytes", f"{formatting.size(sum(held))} in {len(held)} shards"))
    return lines


def _row(label: str, value: str) -> Content:
    return Content.assemble((f"{label:<16}", "$text-muted"), value)


MAX_NAME = 20
"""Cells for the longest name of a host."""
FRAME_ROWS = 3
"""Rows of the border and the header."""
LAST_ATTEMPTS = 3
"""Attempts that are shown."""
LAG_STEPS = 2
"""Steps that a process may be behind without a warning: its report is older than the others'."""


class HostsPanel(Lines):
    """One row for each process, and the last attempts; hidden in a run of a single process that was never lost."""

    DEFAULT_CSS = """
    HostsPanel { max-height: 40%; display: none; }
    """

    def on_mount(self) -> None:
        self.border_title = "processes"

    def show_hosts(self, state: RunState) -> None:
        hosts = state.ready.hosts if state.ready else []
        table = _table(hosts, state) if hosts else []
        attempts = [Content(recovery.words) for recovery in state.attempts.recoveries[-LAST_ATTEMPTS:]]
        self.display = bool(table or attempts)
        self.styles.height = len(table) + len(attempts) + FRAME_ROWS - 1
        self.show([*table, *attempts])


def _table(hosts: list[HostInfo], state: RunState) -> list[Content]:
    """Returns a header, a line for each process, and where those are that are stuck: 80 columns hold the statuses."""
    name = min(MAX_NAME, max(len(host.name) for host in hosts))
    header = f"{'process':<7} {'host':<{name}} {'pid':>7} {'devices':>7} {'in use':>8} {'step':>9}  "
    stuck = [status for status in state.hosts.values() if status.verdict == "stuck" and not state.is_over]
    return [
        Content.styled(header, "$text-muted"),
        *(_line(host, name, state) for host in hosts),
        *(Content.styled(_stuck(status), "$error") for status in stuck),
    ]


def _line(host: HostInfo, name: int, state: RunState) -> Content:
    devices = sum(device.process == host.process for device in state.ready.devices) if state.ready else 0
    status = state.hosts.get(host.process)
    held = formatting.size(status.bytes_in_use) if status else ""
    step = f"{status.step:,}" if status else ""
    columns = f"{host.process:<7} {host.name[:name]:<{name}} {host.pid:>7} {devices:>7} {held:>8} {step:>9}  "
    return Content.assemble(columns, _status(host.process, status, state))


def _stuck(status: HostStatus) -> str:
    activity = status.activity
    return f"process {status.process}: stuck in {activity.where or 'native code'}, step {activity.step:,}"


def _status(process: int, status: HostStatus | None, state: RunState) -> tuple[str, str]:
    if why := state.hosts_lost.get(process):
        return f"✗ lost: {why}", "$error"
    if state.is_over:
        return "■ ended", "$text-muted"
    behind = max((other.step for other in state.hosts.values()), default=0) - (status.step if status else 0)
    if status and status.verdict == "stuck":
        return "✗ stuck", "$error"
    if status and status.verdict == "waiting":
        return "◌ waiting", "$warning"
    if status and behind > LAG_STEPS:
        return f"! {behind:,} behind", "$warning"
    return f"● {state.phase.value}", "$success"
