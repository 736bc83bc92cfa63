"""The processes of a run on several hosts: where each is, what it holds, and how it stands."""

from textual.content import Content

from ...engine.base import figures
from ...engine.wire.descriptions import HostInfo, HostStatus
from ..state.run_state import RunState
from .lines import Lines

HEADS = f"{'process':<8} {'host':<20} {'pid':>8} {'devices':>8} {'in use':>9} {'step':>9}  "
FRAME = 3
"""Rows of the border and the heads."""
LAG = 2
"""Steps that a process may be behind when it was looked at."""


class HostsPanel(Lines):
    DEFAULT_CSS = """
    HostsPanel { max-height: 40%; display: none; }
    """

    def on_mount(self) -> None:
        self.border_title = "processes"

    def show_hosts(self, state: RunState) -> None:
        hosts = state.ready.hosts if state.ready else []
        self.display = bool(hosts)
        self.styles.height = len(hosts) + FRAME
        self.show([Content.styled(HEADS, "$foreground 60%"), *(_line(host, state) for host in hosts)])


def _line(host: HostInfo, state: RunState) -> Content:
    devices = sum(device.process == host.process for device in state.ready.devices) if state.ready else 0
    status = state.hosts.get(host.process)
    held = figures.size(status.bytes_in_use) if status else ""
    step = f"{status.step:,}" if status else ""
    figures_of = f"{host.process:<8} {host.name[:20]:<20} {host.pid:>8} {devices:>8} {held:>9} {step:>9}  "
    return Content.assemble(figures_of, _standing(host.process, status, state))


def _standing(process: int, status: HostStatus | None, state: RunState) -> tuple[str, str]:
    if why := state.hosts_lost.get(process):
        return f"✗ lost: {why}", "$error"
    if state.is_over:
        return "■ ended", "$foreground 60%"
    behind = max((other.step for other in state.hosts.values()), default=0) - (status.step if status else 0)
    if status and behind > LAG:
        return f"! {behind} steps behind", "$warning"
    return f"● {state.phase.value}", "$success"
