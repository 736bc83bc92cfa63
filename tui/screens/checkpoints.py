"""A dialog that asks which checkpoint to restore."""

import time
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from ...engine.base import formatting
from ...engine.spec.preset_reader import name_of
from ...engine.wire.checkpoints import CheckpointInfo
from ..state.run_state import RunState
from ..widgets.choices import Choices
from .dialog import Dialog


class CheckpointsScreen(Dialog[int | None]):
    """The checkpoints of the run, newest first. Its result is the step of the chosen one, or None if it was closed."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,c", "dismiss(None)", "Close")]

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self.checkpoints = state.checkpoints
        ended = "A new engine process resumes from it." if state.is_over else "Training resumes from it."
        self.explanation = f"{ended} Later checkpoints are set aside, not deleted."

    def compose(self) -> ComposeResult:
        newest_first = self.checkpoints[::-1]
        best = min(self.checkpoints, key=lambda info: info.rank, default=None)
        rows = [Option(checkpoint_row(info, info is best), id=str(info.step)) for info in newest_first]
        with Vertical() as box:
            box.border_title = "go back to a checkpoint"
            yield Choices(*rows)
            yield Label(self.explanation if rows else "No checkpoint yet: w saves one.", markup=False)

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(event.option_id or 0))


def checkpoint_row(info: CheckpointInfo, is_best: bool) -> Content:
    """Returns one row: step, loss, size, time, preset and device count.

    For example `1,200    2.8165 best  10.1 MB  14:03:12  dp-tp2 on 8`.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(info.time))
    return Content.assemble(
        (f"{info.step:>9,}", "bold"),
        f"  {info.loss_words:>8}",
        (" best " if is_best else "      ", "$success"),
        f"{formatting.size(info.bytes):>8}  ",
        (f"{clock}  {name_of(info.preset)} on {info.devices}", "$text-muted"),
    )
