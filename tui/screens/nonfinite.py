"""A dialog about the first non-finite value: the operation or array, its elements, and what leads on."""

from collections.abc import Iterator
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ...engine.base import formatting
from ...engine.hlo.layout import coordinates
from ...engine.wire.descriptions import MeshInfo
from ...engine.wire.number_events import MOST_DEVICES, NonfiniteExplained, NonfiniteOrigin
from ..messages import OriginRequested, RowChosen
from ..state.origin_pages import ValuePage
from ..state.run_state import RunState
from ..widgets.choices import Choices
from ..widgets.lines import set_titles
from .dialog import Dialog

LABEL_WIDTH = 10


class NonfiniteScreen(Dialog[RowChosen | OriginRequested]):
    """A line for each thing that is known; the last two lead to the array and to the origin of its layout."""

    HELP = """\
## The first non-finite value

**N** shows where the loss or gradient of the last step that was not finite came from: the operation whose inputs were
all finite, with its source line, layer and elements, or the array that held such a value before the step. **Enter** on
a line with `›` opens the array in Arrays, or the origin of its layout.
"""
    BINDINGS: ClassVar[list[BindingType]] = [("escape,N,q", "dismiss", "Close")]

    def __init__(self, explained: NonfiniteExplained, state: RunState) -> None:
        super().__init__()
        self.explained = explained
        self.mesh = state.nonfinite_mesh
        origin = explained.origin
        self.array = origin.name if origin and origin.name in {name.name for name in state.arrays} else ""
        """The array that the lines lead to; empty if it is none of this step's."""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Choices()

    def on_mount(self) -> None:
        options = self.query_one(Choices)
        origin = self.explained.origin
        rows = rows_of(origin, self.mesh) if origin else [("unknown", self.explained.problem or "")]
        options.add_options(Option(_content(label, text)) for label, text in rows if text)
        if self.array:
            options.add_option(Option(_content("array", f"{self.array} in Arrays", True), id="array"))
            options.add_option(
                Option(_content("layout", "its origin: the rule or value it comes from", True), id="origin")
            )
            options.highlighted = options.get_option_index("array")
        options.focus()
        took = f", found in {formatting.seconds(self.explained.seconds)}" if self.explained.seconds else ""
        title = f"step {self.explained.step:,}: the first non-finite value{took}"
        set_titles(self.query_one(Vertical), title, "enter follows › · esc back" if self.array else "esc back")

    @on(OptionList.OptionSelected)
    def follow(self, event: OptionList.OptionSelected) -> None:
        match event.option_id:
            case "array":
                self.dismiss(RowChosen("arrays", (self.array,)))
            case "origin":
                self.dismiss(OriginRequested(ValuePage(self.array)))
            case _:
                pass


def rows_of(origin: NonfiniteOrigin, mesh: MeshInfo | None) -> Iterator[tuple[str, str]]:
    """Yields what is known of the origin, with labels."""
    yield "scalar", origin.what
    if origin.operation:
        yield "operation", f"{origin.operation}, {'backward' if origin.is_backward else 'forward'} pass"
        yield "source", origin.source
        yield "scope", origin.scope
        yield "layer", "" if origin.layer is None else str(origin.layer)
        yield "part of", origin.name
        largest = origin.largest_input
        yield "inputs", "" if largest is None else f"finite, largest magnitude {largest:.3g}"
    else:
        yield origin.kind, f"{origin.name}, before the step"
    yield "elements", origin.element_words
    yield "devices", device_words(origin, mesh)


def device_words(origin: NonfiniteOrigin, mesh: MeshInfo | None) -> str:
    """Returns the devices with their places in the mesh: `5 (data 2, model 1)`."""
    if not mesh or len(origin.devices) > MOST_DEVICES:
        return origin.device_words
    places = coordinates(mesh)
    return "; ".join(
        f"{device} ({', '.join(f'{axis} {index}' for axis, index in places[device].items() if mesh.axes[axis] > 1)})"
        for device in origin.devices
    )


def _content(label: str, text: str, opens: bool = False) -> Content:
    return Content.assemble((f"{label:<{LABEL_WIDTH}}", "$text-muted"), text, (" ›" if opens else "", "bold $primary"))
