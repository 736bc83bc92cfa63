"""Mesh: the devices on the named mesh axes, and the details of the device under the cursor."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device
from ...engine.wire.descriptions import DeviceInfo, MeshInfo
from ...engine.wire.events import DevicesDiffer
from ...engine.wire.hosts import HostInfo, HostStatus
from ..bindings import identified
from ..messages import ShardChosen
from ..state.run_state import RunState
from ..widgets.lines import Lines, StateLines, axes_content, bar, set_titles
from ..widgets.mesh_pane import MeshPane
from ..widgets.step_bar import sums_of
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

    def body(self) -> Iterable[Widget]:
        yield Horizontal(MeshPane(), DeviceDetails(), id="grid")
        yield HostsPanel()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if state.layout and state.ready:
            platform = state.ready.devices[0].platform
            wrong = frozenset(device.id for device in state.differing.devices) if state.differing else frozenset[int]()
            waiting = {device: f"waits {formatting.seconds(seconds)}" for device, seconds in waits(state).items()}
            self.query_one(MeshPane).show_mesh(state.layout, platform, state.followed, wrong, waiting)
            self.query_one(DeviceDetails).show_state(state)
        self.query_one(HostsPanel).show_hosts(state)

    @on(ShardChosen)
    def choose(self, message: ShardChosen) -> None:
        self.query_one(DeviceDetails).show_device(message.devices[0] if message.devices else None)

    def action_follow(self) -> None:
        self.follow_device(self.query_one(DeviceDetails).device)


LABEL_WIDTH = 19
MOST_PEERS = 16
"""Devices of a group that are all listed."""
KINDS = {"parameters": "parameter", "moments": "moment", "variables": "variable", "batch": "batch"}
"""The kinds of arrays that a device holds, by their labels."""


class DeviceDetails(StateLines):
    """The device under the cursor."""

    device: int | None = None

    def show_device(self, device: int | None) -> None:
        self.device = device
        self.show_state(self.state)

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        """Returns no line before the run has reported its devices and a layout."""
        info = next((info for info in state.ready.devices if info.id == self.device), None) if state.ready else None
        set_titles(self, f"device {info.id}{' ◆ followed' if info.id == state.followed else ''}" if info else "device")
        if info is None or state.layout is None:
            return []
        lines = [
            *_difference(info, state.differing),
            *_identity(info, state, width),
            *_mesh_position(info.id, state.layout.mesh, width),
            *_memory(info, state, width),
            *_step(info.id, state, width),
        ]
        return lines if len(lines) <= self.size.height else [line for line in lines if line.plain]


def waits(state: RunState) -> dict[int, float]:
    """Returns the seconds per step that each device waits for others in collectives, as last profiled under the active
    preset; empty if it was not."""
    if (breakdown := state.breakdown) is None:
        return {}
    names = [part.name for part in breakdown.parts]
    return {each.device: sums_of(names, each.seconds)["waiting"] for each in breakdown.devices}


def _difference(info: DeviceInfo, differing: DevicesDiffer | None) -> list[Content]:
    """Returns that the device was found to differ from its replicas; nothing if it was not."""
    if differing is None or all(device.id != info.id for device in differing.devices):
        return []
    what = "differed" if differing.is_certain else "may be what differed"
    arrays = formatting.counted(len(differing.arrays), "array")
    line = f"✗ {what} from its replicas after step {differing.step:,}, in {arrays}"
    return [Content.styled(line, "$error"), Content()]


def _identity(info: DeviceInfo, state: RunState, width: int) -> Iterator[Content]:
    hosts = state.ready.hosts if state.ready else []
    names = [f" on {host.name}" for host in hosts if host.process == info.process]
    yield from _row("device", f"{info.kind} ({info.platform}), process {info.process}{''.join(names)}", width)
    if info.coords is not None:
        core = "" if info.core is None else f", core {info.core}"
        yield from _row("torus coordinates", f"({', '.join(map(str, info.coords))}){core}", width)
    yield Content()


def _mesh_position(device: int, mesh: MeshInfo, width: int) -> Iterator[Content]:
    """Yields the device's index on each mesh axis, and the devices that differ from it in that axis alone."""
    at, stride = mesh.device_ids.index(device), len(mesh.device_ids)
    for axis, size in mesh.axes.items():
        span, stride = stride, stride // size
        first, index = at - at % span + at % stride, at % span // stride
        peers = [*map(str, mesh.device_ids[first : first + span : stride])]
        if size > MOST_PEERS:
            peers = [*peers[:3], "…", peers[-1]]
        group = f"; group: devices {', '.join(peers)}" if size > 1 else ""
        yield from _row(axis, f"index {index} of {size}{group}", width, is_axis=True)
    yield Content()


def _memory(info: DeviceInfo, state: RunState, width: int) -> Iterator[Content]:
    """Yields the peak and the device's bytes in use, as parts of the limit; then the bytes held, by kind, as parts of
    the peak. All devices hold the same, except for dims that do not divide. A device of another process has the bytes
    in use that its process reported: those of its fullest device."""
    assert state.layout and state.ready
    memory, limit = state.layout.memory, state.ready.memory_limit
    held = {
        label: sum(bytes_per_device(array, state.layout.mesh) for array in state.layout.arrays if array.kind == kind)
        for label, kind in KINDS.items()
    }
    parts = {label: size for label, size in held.items() if size}
    whole = {}
    if memory:
        parts["temporaries"] = memory.temporaries
        whole["peak, predicted"] = memory.peak
    if state.memory and info.id in state.memory.bytes_by_device:
        whole["in use"] = state.memory.bytes_by_device[info.id]
    elif info.process in state.hosts:
        whole["in use, fullest"] = state.hosts[info.process].bytes_in_use
    for sizes, most in ((whole, limit), (parts, memory.peak if memory else sum(parts.values()))):
        for label, size in sizes.items():
            yield bar(label, LABEL_WIDTH, size, most or size, formatting.size(size), width)
    if limit:
        yield from _row("limit", formatting.size(limit), width)
    yield Content()


def _step(device: int, state: RunState, width: int) -> Iterator[Content]:
    """Yields the parts of the device's step, longest first, as last profiled under the active preset."""
    breakdown = state.breakdown
    mine = next((each for each in breakdown.devices if each.device == device), None) if breakdown else None
    if breakdown is None or mine is None:
        return
    yield from _row("step, profiled", formatting.seconds(breakdown.step_seconds), width)
    parts = zip(mine.seconds, (part.name for part in breakdown.parts), strict=True)
    shown = [(seconds, name) for seconds, name in sorted(parts, reverse=True) if seconds]
    label = max([LABEL_WIDTH, *(len(name) + 1 for _, name in shown)])
    for seconds, name in shown:
        yield bar(name, label, seconds, breakdown.step_seconds, formatting.seconds(seconds), width)
    if caused := next((wait.seconds for wait in breakdown.waits if wait.device == device), 0):
        yield from _row("others wait for it", formatting.seconds(caused), width)


def _row(label: str, value: str, width: int, is_axis: bool = False) -> Iterator[Content]:
    """Yields a label and its value, which goes on in further lines."""
    head = axes_content(f"{label:<{LABEL_WIDTH}}", [label] if is_axis else []).stylize_before("$text-muted")
    for line in textwrap.wrap(value, max(width - LABEL_WIDTH, LABEL_WIDTH)):
        yield head + Content(line)
        head = Content(" " * LABEL_WIDTH)


MAX_NAME = 20
"""Cells for the longest name of a host."""
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
        self.styles.height = len(table) + len(attempts) + self.gutter.height
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
