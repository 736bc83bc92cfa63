"""What one device is, where it lies on the mesh, what fills its memory, and what its step consists of."""

import textwrap
from collections.abc import Iterator

from textual.content import Content

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device
from ...engine.wire.descriptions import DeviceInfo, MeshInfo
from ...engine.wire.events import DevicesDiffer
from ...engine.wire.step_breakdown import StepBreakdown
from ..state.run_state import RunState
from .lines import StateLines, axes_content, bar, set_titles
from .step_bar import sums_of

LABEL_WIDTH = 19
MOST_PEERS = 16
"""Devices of a group that are all listed."""
KINDS = {"parameters": "parameter", "moments": "moment", "variables": "variable", "batch": "batch"}
"""The kinds of arrays that a device holds, by their labels."""


class DeviceDetails(StateLines):
    """The device under the cursor."""

    device: int | None = None

    def show_device(self, state: RunState, device: int | None) -> None:
        self.device = device
        self.show_state(state)

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
            *_memory(state, width),
            *_step(info.id, state, width),
        ]
        return lines if len(lines) <= self.size.height else [line for line in lines if line.plain]


def waits(state: RunState) -> dict[int, float]:
    """Returns the seconds per step that each device waits for others in collectives, as last profiled under the active
    preset; empty if it was not."""
    breakdown = _breakdown(state)
    if breakdown is None:
        return {}
    names = [part.name for part in breakdown.parts]
    return {each.device: sums_of(names, each.seconds)["waiting"] for each in breakdown.devices}


def _breakdown(state: RunState) -> StepBreakdown | None:
    return state.profiled.breakdown if state.profiled and state.profiled.preset == state.preset else None


def _difference(info: DeviceInfo, differing: DevicesDiffer | None) -> list[Content]:
    """Returns that the device was found to differ from its replicas; nothing if it was not."""
    if differing is None or all(device.id != info.id for device in differing.devices):
        return []
    what = "differed" if differing.is_certain else "may be what differed"
    lines = f"✗ {what} from its replicas after step {differing.step:,}, in {len(differing.arrays)} arrays"
    return [Content.styled(lines, "$error"), Content()]


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


def _memory(state: RunState, width: int) -> Iterator[Content]:
    """Yields the peak and the bytes in use, as parts of the limit; then the bytes held, by kind, as parts of the peak.
    All devices hold the same, except for dims that do not divide."""
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
    if state.memory:
        whole["in use, fullest"] = state.memory.bytes_in_use
    for sizes, most in ((whole, limit), (parts, memory.peak if memory else sum(parts.values()))):
        for label, size in sizes.items():
            yield bar(label, LABEL_WIDTH, size, most or size, formatting.size(size), width)
    if limit:
        yield from _row("limit", formatting.size(limit), width)
    yield Content()


def _step(device: int, state: RunState, width: int) -> Iterator[Content]:
    """Yields the parts of the device's step, longest first, as last profiled under the active preset."""
    breakdown = _breakdown(state)
    mine = next((each for each in breakdown.devices if each.device == device), None) if breakdown else None
    if breakdown is None or mine is None:
        return
    yield from _row("step, profiled", formatting.seconds(breakdown.step_seconds), width)
    parts = zip(mine.seconds, (part.name for part in breakdown.parts), strict=True)
    for seconds, name in sorted(parts, reverse=True):
        if seconds:
            yield bar(
                name, max(LABEL_WIDTH, width // 2), seconds, breakdown.step_seconds, formatting.seconds(seconds), width
            )
    if caused := next((wait.seconds for wait in breakdown.waits if wait.device == device), 0):
        yield from _row("others wait for it", formatting.seconds(caused), width)


def _row(label: str, value: str, width: int, is_axis: bool = False) -> Iterator[Content]:
    """Yields a label and its value, which goes on in further lines."""
    head = axes_content(f"{label:<{LABEL_WIDTH}}", [label] if is_axis else []).stylize_before("$text-muted")
    for line in textwrap.wrap(value, max(width - LABEL_WIDTH, LABEL_WIDTH)):
        yield head + Content(line)
        head = Content(" " * LABEL_WIDTH)
