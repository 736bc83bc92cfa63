"""Dialogs that ask before a run is ended or deleted, its engine is restarted or a file is replaced; or for a name."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid
from textual.widgets import Button, Input, Label

from .dialog import Dialog


class Confirm(Dialog[bool]):
    """A question with two buttons. Its result is True for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,n", "dismiss(False)", "No"), ("y", "dismiss(True)", "Yes")]

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

    @on(Button.Pressed)
    def press(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class AskName(Dialog[str | None]):
    """An input with a name to change. Its result is the new name, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Cancel")]

    def __init__(self, question: str, name: str) -> None:
        super().__init__()
        self.question, self.old_name = question, name

    def compose(self) -> ComposeResult:
        yield Grid(Label(self.question, markup=False), Input(self.old_name, max_length=200))

    @on(Input.Submitted)
    def answer(self, event: Input.Submitted) -> None:
        name = event.value.strip()
        self.dismiss(name if name != self.old_name else None)
