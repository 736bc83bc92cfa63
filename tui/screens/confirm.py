"""A dialog that asks before a run is ended or deleted, its engine is restarted or a file is replaced."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid
from textual.widgets import Button, Label

from .dialog import Dialog


class Confirm(Dialog[bool]):
    """A question with two buttons. Its result is True for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,n", "answer(False)", "No"), ("y", "answer(True)", "Yes")]

    def __init__(self, question: str, yes: str, no: str = "Keep training") -> None:
        super().__init__()
        self.question = question
        self.yes = yes
        self.no = no

    def compose(self) -> ComposeResult:
        yield Grid(
            Label(self.question, markup=False),
            Button(self.no, id="no", variant="primary"),
            Button(f"{self.yes} (y)", id="yes", variant="error"),
        )

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)

    @on(Button.Pressed)
    def press(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
