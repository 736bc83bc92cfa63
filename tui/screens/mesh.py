"""Mesh: the devices on the named mesh axes, and the details of the device under the cursor."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from ...engine.base import formatting
from ...engine.wire.hosts import HostInfo, HostStatus
from ..bindings import identified
from ..messages import ShardChosen
from ..state.run_state import RunState
from ..widgets.device_details import DeviceDetails, waits
from ..widgets.lines import Lines
from ..widgets.mesh_pane import MeshPane
from .run_screen import RunScreen


class MeshScreen(RunScreen):
    """The device grid, details of the device under the cursor and, on several hosts, the processes."""

    HELP = """\
## Mesh

The devices on the mesh axes of the active preset. **Arrows** move the cursor, **v** and **h** put other axes along rows
and columns, **,** and **.** step through the rest. A row of devices shares a colour. Each box shows the bytes of state
and batch that its device holds and, once a step was profiled (**p**), how long it waits for others in a step; beside
them stand the device's group along each axis, its memory, and the parts of its step. **f** follows the device: its
shard of each array is marked with `◆` in Arrays. `✗` marks a device that differed from its replicas
(`--check-devices`). A run on several hosts lists its processes below, also which one is *stuck* and which are *waiting*
for it, and a supervised one its attempts: who was lost, the time without steps, and how many were made again.
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
            waiting = {device: f"waits {formatting.seconds(seconds)}" for device, seconds in waits(state).items()}
            if old is None or (old.mesh, old.followed, old.wrong, old.notes) != (mesh, state.followed, wrong, waiting):
                pane.show_mesh(state.layout, state.ready.devices[0].platform, state.followed, wrong, waiting)
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
