"""Asks before a run is ended."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid
from textual.screen import ModalScreen
from textual.widgets import Button, Label


class ConfirmStop(ModalScreen[bool]):
    """True for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,n", "answer(False)", "No"), ("y", "answer(True)", "Yes")]

    def __init__(self, run: str, step: int) -> None:
        super().__init__()
        self.question = f"End run {run} after step {step:,}?\nDetaching instead (d) leaves it training."

    def compose(self) -> ComposeResult:
        yield Grid(
            Label(self.question, markup=False),
            Button("Keep training", id="no", variant="primary"),
            Button("End it (y)", id="yes", variant="error"),
        )

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)

    @on(Button.Pressed)
    def press(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
