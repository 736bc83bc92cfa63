"""One device: its kind, its place in the mesh, the devices it shares an axis with, and the bytes it holds."""

from textual.content import Content

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device, coordinates
from ...engine.wire.descriptions import DeviceInfo, MeshInfo
from ...engine.wire.events import DevicesDiffer
from ..state.run_state import RunState
from .lines import Lines, set_titles

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
    return Content.assemble((f"{label:<16}", "$foreground 60%"), value)
