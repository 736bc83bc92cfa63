"""Why an array is laid out as it is, a paragraph for each dim."""

import textwrap

from textual.content import Content

from ...engine.analysis.layout import is_same_layout, notation, replicas, used_axes, wasted_bytes
from ...engine.base import figures
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from .lines import Lines


class Reasons(Lines):
    def on_mount(self) -> None:
        self.border_title = "why"
        self.array: ArrayInfo | None = None

    def show_array(self, array: ArrayInfo, mesh: MeshInfo) -> None:
        self.array, self.mesh = array, mesh
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        if self.array is not None:
            self.show(reason_lines(self.array, self.mesh, self.size.width))


def reason_lines(array: ArrayInfo, mesh: MeshInfo, width: int) -> list[Content]:
    if not array.shape:
        return [Content.styled("a scalar: every device holds it", "$foreground 60%")]
    told = [("as its own program laid it out", "$foreground 60%")]
    if array.reasons:
        reasons = zip(array.reasons, array.spec, strict=True)
        told = [(reason, "" if axes else "$foreground 60%") for reason, axes in reasons]
        told.append(_compared(array, mesh))
    if array.type:
        told.insert(0, (array.type, "bold"))
    copies = replicas(array.compiled_spec, mesh)
    if copies > 1:
        whole = [axis for axis, size in mesh.axes.items() if size > 1 and axis not in used_axes(array)]
        text = f"{copies} copies, over {' × '.join(whole)}: {figures.size(wasted_bytes(array, mesh))} beyond one"
        told.append((text, "$warning"))
    return [
        Content.styled(line, style)
        for text, style in told
        for line in textwrap.wrap(text, max(width, 8), subsequent_indent="  ")
    ]


def _compared(array: ArrayInfo, mesh: MeshInfo) -> tuple[str, str]:
    if is_same_layout(array.spec, array.compiled_spec, mesh):
        return "compiled as intended", "$success"
    return f"compiled otherwise: {notation(array)}", "$warning"
