"""One device: what it is, where it stands, whom it shares an axis with, and what it holds."""

from textual.content import Content

from ...engine.analysis.layout import bytes_per_device, coordinates
from ...engine.base import figures
from ...engine.wire.descriptions import DeviceInfo, MeshInfo
from ..state.run_state import RunState
from .lines import Lines, entitle

MOST_PEERS = 16


class DeviceDetails(Lines):
    def on_mount(self) -> None:
        self.border_title = "device"

    def show_device(self, state: RunState, device: int | None) -> None:
        info = next((info for info in state.ready.devices if info.id == device), None) if state.ready else None
        if info and state.layout:
            entitle(self, f"device {info.id}{' ◆ followed' if info.id == state.followed else ''}")
            self.show(_identity(info) + _place(info.id, state.layout.mesh) + _held(state))


def _identity(info: DeviceInfo) -> list[Content]:
    rows = [("device", f"{info.kind} ({info.platform}), process {info.process}")]
    if info.coords is not None:
        core = "" if info.core is None else f", core {info.core}"
        rows.append(("on the torus", f"({', '.join(map(str, info.coords))}){core}"))
    return [_row(label, value) for label, value in rows]


def _place(device: int, mesh: MeshInfo) -> list[Content]:
    """Its index on each axis, and the devices that differ from it in that axis alone."""
    places = coordinates(mesh)
    mine = places[device]
    lines = [Content()]
    for axis, size in mesh.axes.items():
        peers = [other for other, place in places.items() if {**place, axis: 0} == {**mine, axis: 0}]
        shown = ", ".join(map(str, peers[:MOST_PEERS])) + (" …" if len(peers) > MOST_PEERS else "")
        lines.append(_row(axis, f"{mine[axis]} of {size}" + (f", with {shown}" if size > 1 else "")))
    return lines


def _held(state: RunState) -> list[Content]:
    """Bytes by kind: the same on every device, up to dims that do not divide."""
    assert state.layout
    kinds = ("parameter", "moment", "variable", "batch")
    lines = [Content()]
    for kind in kinds:
        held = [bytes_per_device(array, state.layout.mesh) for array in state.layout.arrays if array.kind == kind]
        if held:
            lines.append(_row(f"{kind} bytes", f"{figures.size(sum(held))} in {len(held)} shards"))
    return lines


def _row(label: str, value: str) -> Content:
    return Content.assemble((f"{label:<16}", "$foreground 60%"), value)
