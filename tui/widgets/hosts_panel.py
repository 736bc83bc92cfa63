"""The processes of a run on several hosts: host, memory, step and status of each."""

from textual.content import Content

from ...engine.base import formatting
from ...engine.wire.hosts import HostInfo, HostStatus
from ..state.run_state import RunState
from .lines import Lines

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
        Content.styled(header, "$foreground 60%"),
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
        return "■ ended", "$foreground 60%"
    behind = max((other.step for other in state.hosts.values()), default=0) - (status.step if status else 0)
    if status and status.verdict == "stuck":
        return "✗ stuck", "$error"
    if status and status.verdict == "waiting":
        return "◌ waiting", "$warning"
    if status and behind > LAG_STEPS:
        return f"! {behind:,} behind", "$warning"
    return f"● {state.phase.value}", "$success"
