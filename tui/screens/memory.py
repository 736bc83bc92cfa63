"""A dialog that shows what fills the memory in a step of a compiled program."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Label

from ...engine.wire.descriptions import PeakBuffer, PeakMemory
from ..state.step_words import coverage
from ..widgets.memory_at_peak import MemoryAtPeak
from .dialog import Dialog


class MemoryScreen(Dialog[None]):
    """The memory over the step as a curve, and the largest buffers at its peak."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,m,q", "dismiss", "Close")]

    def __init__(self, subject: str, peak: PeakMemory, buffers: Sequence[PeakBuffer], compiler: int | None) -> None:
        """`subject`: the program. `compiler`: the compiler's own figure of the peak, in bytes; None if nothing is
        compiled."""
        super().__init__()
        self.subject, self.peak, self.buffers = subject, peak, buffers
        self.note = f"Predicted: {coverage(peak, buffers, compiler)}"
        self.memory = MemoryAtPeak()

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = f"{self.subject}: memory of a step, predicted", "esc back"
            yield self.memory
            yield Label(self.note, markup=False)

    def on_mount(self) -> None:
        self.memory.show_peak(self.peak, self.buffers)
        self.memory.table.rows.focus()
