"""Why an array is laid out as it is."""

import textwrap

from textual.content import Content

from ...engine.analysis.layout import is_same_layout, notation, replicas, used_axes, wasted_bytes
from ...engine.base import figures
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from .lines import Lines


class Reasons(Lines):
    """A paragraph for each dim, whether the compiler kept the intended layout, and what copies cost."""

    def on_mount(self) -> None:
        self.border_title = "why"
        self.border_subtitle = "enter: origin"
        self.array: ArrayInfo | None = None

    def show_array(self, array: ArrayInfo, mesh: MeshInfo) -> None:
        """Shows the reasons for this array."""
        self.array, self.mesh = array, mesh
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Draws the contents again, for example at another width."""
        if self.array is not None:
            self.show(reason_lines(self.array, self.mesh, self.size.width))


def reason_lines(array: ArrayInfo, mesh: MeshInfo, width: int) -> list[Content]:
    """Returns the paragraphs about an array, wrapped at `width`."""
    if not array.shape:
        return [Content.styled("scalar: replicated on every device", "$foreground 60%")]
    texts = [("laid out by its own program", "$foreground 60%")]
    if array.reasons:
        reasons = zip(array.reasons, array.spec, strict=True)
        texts = [(reason, "" if axes else "$foreground 60%") for reason, axes in reasons]
        texts.append(_compared(array, mesh))
    if array.type:
        texts.insert(0, (array.type, "bold"))
    copies = replicas(array.compiled_spec, mesh)
    if copies > 1:
        unused = [axis for axis, size in mesh.axes.items() if size > 1 and axis not in used_axes(array)]
        text = f"replicated {copies}× over {' × '.join(unused)}: {figures.size(wasted_bytes(array, mesh))} redundant"
        texts.append((text, "$warning"))
    return [
        Content.styled(line, style)
        for text, style in texts
        for line in textwrap.wrap(text, max(width, 8), subsequent_indent="  ")
    ]


def _compared(array: ArrayInfo, mesh: MeshInfo) -> tuple[str, str]:
    """Says whether the compiled layout is the intended one."""
    if is_same_layout(array.spec, array.compiled_spec, mesh):
        return "compiled as intended", "$success"
    return f"compiled differently: {notation(array)}", "$warning"
