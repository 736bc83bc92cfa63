"""The line in which the user types the value of a row."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, Label

from .rule_list import Row


class Prompt(Horizontal):
    """A label and an input, hidden until they are needed."""

    row: Row | None = None
    """The row whose value is typed; None while the prompt is hidden."""

    def compose(self) -> ComposeResult:
        yield Label(markup=False)
        yield Input(compact=True, max_length=200)

    def on_mount(self) -> None:
        self.display = False

    def open(self, row: Row, label: str, value: str) -> None:
        """Shows the prompt with the row's present value and focuses it."""
        self.row = row
        self.display = True
        self.query_one(Label).update(label)
        field = self.query_one(Input)
        field.value = value
        field.focus()

    def close(self) -> None:
        """Hides the prompt."""
        self.row = None
        self.display = False
