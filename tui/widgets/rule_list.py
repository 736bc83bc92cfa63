"""A draft as rows: its name, the mesh axes with their sizes, the rules, and the overrides, which stay as they are."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ...engine.base import figures
from ...engine.spec.preset import LOGICAL_AXES
from ...engine.spec.preset_reader import REST
from ..state.draft import Draft, in_words
from ..terminal.clean import printable
from .choices import Choices
from .lines import entitle
from .whole import cut

Kind = Literal["name", "heading", "axis", "rule", "override"]
OF_MESH = re.compile(r": mesh \S+=|\[mesh\]: ")
"""In problems of all its axes together."""
LABEL = 17
"""Cells, as wide as the longest logical axis and a space."""
VALUE = 12
"""Cells, as wide as most values."""


@dataclass(frozen=True)
class Row:
    kind: Kind
    key: str
    """The axis, logical axis or glob; of a heading its text."""

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.key}"


@dataclass
class RowTurned(Message):
    """The user wants the next value of the row under the cursor, or with -1 the one before."""

    by: int


class RuleList(Choices):
    BINDING_GROUP_TITLE = "Rules"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "turn(1)", "Change", key_display="←→"),
        Binding("left", "turn(-1)", "Change", show=False),
        ("enter", "select", "Type"),
    ]

    def on_mount(self) -> None:
        self.draft: Draft | None = None
        self.rows: dict[str, Row] = {}
        self.shown: dict[str, Content] = {}

    @property
    def row(self) -> Row | None:
        """Under the cursor."""
        return self.rows.get(self.highlighted_option.id or "") if self.highlighted_option else None

    def show_draft(self, draft: Draft, logical_axes: Sequence[str], problems: Sequence[str]) -> None:
        """Redraws the rows that changed. `logical_axes`: those of the model."""
        self.draft = draft
        width = self.content_region.width - 1
        rows = {row.id: row for row in rows_of(draft, logical_axes)}
        shown = {id: row_content(row, draft, problems, width) for id, row in rows.items()}
        if list(shown) != list(self.shown):
            at, chosen = self.highlighted or 0, self.row
            self.rows = rows
            self.set_options(Option(shown[id], id=id, disabled=row.kind == "heading") for id, row in rows.items())
            self.highlighted = max(
                index
                for index, row in enumerate(rows.values())
                if row == chosen or (chosen not in rows.values() and index <= at and row.kind != "heading")
            )
        else:
            for id, content in shown.items():
                if not content.is_same(self.shown[id]):
                    self.replace_option_prompt(id, content)
        self.shown = shown
        self.show_hint()

    def put_cursor_on(self, row: Row) -> None:
        if row.id in self.rows:
            self.highlighted = self.get_option_index(row.id)

    @on(OptionList.OptionHighlighted)
    def show_hint(self) -> None:
        if self.draft:
            entitle(self, f"rules of {self.draft.origin.name}", hint(self.row, self.draft) if self.row else "")

    def action_turn(self, by: int) -> None:
        self.post_message(RowTurned(by))


def rows_of(draft: Draft, logical_axes: Sequence[str]) -> Iterator[Row]:
    yield Row("name", "name")
    yield Row("heading", f"mesh of {draft.devices} devices")
    yield from (Row("axis", axis) for axis in draft.preset.mesh)
    yield Row("heading", "rules: a dim over mesh axes")
    yield from (Row("rule", logical) for logical in dict.fromkeys((*logical_axes, *draft.preset.rules)))
    if draft.preset.overrides:
        yield Row("heading", "overrides, which stay as they are")
        yield from (Row("override", glob) for glob in draft.preset.overrides)


def row_content(row: Row, draft: Draft, problems: Sequence[str], width: int) -> Content:
    """`● embed            fsdp+model   model width, in parameters`; the meaning where there is room."""
    is_wrong = any(is_about(row, problem) for problem in problems)
    if row.kind == "heading":
        return Content.styled(f"\n{'✗ ' if is_wrong else '  '}{row.key}", "$error" if is_wrong else "$foreground 60%")
    mark, style = ("✗", "$error") if is_wrong else ("●", "$accent") if is_changed(row, draft) else (" ", "")
    label = Content(printable(row.key)).truncate(LABEL - 1, ellipsis=True)
    value = Content(value_of(row, draft)).stylize(style or tone(row, draft))
    parts = [(f"{mark} ", style), label, " " * (LABEL - label.cell_length), value]
    room = width - 2 - LABEL - max(VALUE, value.cell_length)
    told = meaning(row, draft)
    if room > len(told):
        parts += [" " * (max(VALUE, value.cell_length) - value.cell_length + 1), (told, "$foreground 60%")]
    return cut(Content.assemble(*parts), width)


def value_of(row: Row, draft: Draft) -> str:
    match row.kind:
        case "name":
            return draft.name
        case "axis":
            return str(draft.sizes[row.key])
        case "rule":
            return in_words(draft.rule(row.key))
        case "override":
            override = draft.preset.overrides[row.key]
            return figures.spec(override.spec) + (f" from {override.min_size:,} on" if override.min_size else "")
        case "heading":
            return ""


def tone(row: Row, draft: Draft) -> str:
    """What is split stands out."""
    is_quiet = row.kind == "override" or (row.kind == "rule" and not draft.rule(row.key))
    return "$foreground 60%" if is_quiet else "bold"


def meaning(row: Row, draft: Draft) -> str:
    match row.kind:
        case "axis":
            return "takes what is left" if draft.preset.mesh[row.key] == REST else ""
        case "rule":
            return LOGICAL_AXES.get(row.key, "")
        case _:
            return ""


def hint(row: Row, draft: Draft) -> str:
    """For the row under the cursor: `was 2, of 1 2 4 8`."""
    told = [f"was {value_of(row, draft.reset())}"] if is_changed(row, draft) and is_known(row, draft) else []
    if row.kind == "axis" and (sizes := draft.fitting_sizes(row.key)):
        told.append(f"of {' '.join(map(str, sizes))}")
    return ", ".join(filter(None, [*told, meaning(row, draft)]))


def is_known(row: Row, draft: Draft) -> bool:
    """The preset that the draft is made from has it."""
    return row.kind != "axis" or row.key in draft.origin.mesh


def is_changed(row: Row, draft: Draft) -> bool:
    match row.kind:
        case "name":
            return draft.name != draft.origin.name
        case "axis":
            return draft.is_other_size(row.key)
        case "rule":
            return draft.is_other_rule(row.key)
        case _:
            return False


def is_about(row: Row, problem: str) -> bool:
    """As problems of presets and of their placement name what they are about."""
    key = printable(row.key)
    match row.kind:
        case "rule":
            return f"[rules] {key}: " in problem or f": {key}: rule → " in problem
        case "override":
            return f'[overrides] "{key}"' in problem or f'override "{key}"' in problem
        case "heading":
            return row.key.startswith("mesh") and bool(OF_MESH.search(problem))
        case _:
            return False
