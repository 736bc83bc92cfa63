"""A dialog that shows what fills the memory in a step of the running program."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Label

from ...engine.wire.descriptions import MemoryInfo, PeakMemory
from ...engine.wire.events import PresetCompiled
from ..state.peak_words import coverage
from ..widgets.memory_at_peak import MemoryAtPeak
from .dialog import Dialog


class MemoryScreen(Dialog[None]):
    """The memory over the step as a curve, and the largest buffers at its peak."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,m,q", "dismiss", "Close")]

    def __init__(self, compiled: PresetCompiled, memory: MemoryInfo, peak: PeakMemory) -> None:
        super().__init__()
        self.peak, self.buffers = peak, compiled.peak_buffers
        self.preset = compiled.preset
        self.note = f"Predicted: {coverage(peak, self.buffers, memory.peak)}"
        self.memory = MemoryAtPeak()

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = f"{self.preset}: memory of a step, predicted", "esc back"
            yield self.memory
            yield Label(self.note, markup=False)

    def on_mount(self) -> None:
        self.memory.show_peak(self.peak, self.buffers)
        self.memory.table.rows.focus()
