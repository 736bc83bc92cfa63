"""The line in which the user types the value of a row of a draft, and what a key or typed text makes of it."""

import re

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, Label

from ...engine.base.user_error import UserError
from ...engine.spec.preset import AXIS_NAME
from ...engine.spec.preset_files import FILE_NAME
from ...engine.spec.preset_reader import LARGEST_AXIS, REST
from ..state.draft import UNSHARDED, Draft
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
        self.row = row
        self.display = True
        self.query_one(Label).update(label)
        field = self.query_one(Input)
        field.value = value
        field.focus()

    def close(self) -> None:
        self.row = None
        self.display = False


NEW_AXIS = Row("axis", "")
"""Stands for an axis whose name is being typed."""


def stepped(draft: Draft, row: Row, by: int) -> Draft | None:
    """Returns the draft with the row's next (`by` 1) or previous (-1) value; None for rows that can only be typed."""
    match row.kind:
        case "axis":
            return draft.next_size(row.key, by)
        case "rule":
            return draft.next_rule(row.key, by)
        case _:
            return None


def editable_text(draft: Draft, row: Row) -> str | None:
    """Returns the row's value as the user would type it; None for rows that cannot be typed."""
    match row.kind:
        case "name":
            return draft.name
        case "axis":
            return str(draft.preset.mesh[row.key])
        case "rule":
            return ", ".join(draft.preset.axes(row.key))
        case _:
            return None


def with_text(draft: Draft, row: Row, text: str) -> Draft:
    """Returns the draft with the text as the row's value, even if the preset is then invalid.

    Raises UserError if the text cannot be a value of the row.
    """
    if row is NEW_AXIS:
        if not AXIS_NAME.fullmatch(text):
            raise UserError(f"{text!r}: an axis name has only letters, digits and _")
        return draft.with_axis(text)
    match row.kind:
        case "name" if text and not FILE_NAME.fullmatch(text):
            raise UserError(f"{text!r}: a preset's name has 1 to 64 letters, digits, '.', '_' and '-'")
        case "name":
            return draft.with_name(text)
        case "axis":
            size = int(text) if re.fullmatch(r"-1|\d{1,7}", text) else 0
            if size != REST and not 1 <= size <= LARGEST_AXIS:
                raise UserError(f"{text!r}: a size must be from 1 to {LARGEST_AXIS:,}, or -1 for the remaining devices")
            return draft.with_size(row.key, size)
        case _:
            axes = tuple(filter(None, re.split(r"[\s,+]+", text)))
            return draft.with_rule(row.key, () if axes == (UNSHARDED,) else axes)
