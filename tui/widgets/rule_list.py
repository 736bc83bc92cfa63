"""A draft as rows: its name, the mesh axes with their sizes, the rules, and the overrides, which cannot be edited."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList

from ...engine.base import formatting
from ...engine.base.output import printable
from ...engine.spec.preset import FOLLOWS, LOGICAL_AXES
from ...engine.spec.preset_reader import REST
from ..bindings import identified
from ..state.draft import Draft
from .choices import Choices
from .lines import axes_content, cut, set_titles

Kind = Literal["name", "heading", "axis", "rule", "override"]
MESH_PROBLEM = re.compile(r": mesh \S+=|\[mesh\]: ")
"""Matches problems of the mesh as a whole, not of one axis."""
LABEL_WIDTH = 17
"""Cells of the label: the longest logical axis and a space."""
VALUE_WIDTH = 12
"""Least cells of the value: most are no wider."""
LEAST_EXPLANATION = 20
"""Least cells in which an explanation is cut."""


@dataclass(frozen=True)
class Row:
    """A row of the list, identified by what it edits."""

    kind: Kind
    key: str
    """The mesh axis, logical axis or glob; the text of a heading."""

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.key}"


class RuleList(Choices):
    """The draft's rows: `●` marks a changed one, `✗` one with a problem. The border says what a row may be."""

    BINDING_GROUP_TITLE = "Rules"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "rules",
        [
            Binding("right", "screen.turn(1)", "Change", key_display="←→"),
            Binding("left", "screen.turn(-1)", "Change back", show=False),
            ("enter", "select", "Type"),
        ],
    )

    def on_mount(self) -> None:
        self.draft: Draft | None = None
        self.rows: dict[str, Row] = {}

    @property
    def row(self) -> Row | None:
        return self.rows.get(self.highlighted_id or "")

    def show_draft(self, draft: Draft, logical_axes: Sequence[str], problems: Sequence[str]) -> None:
        """Shows the draft. `logical_axes`: the model's; each gets a row. The cursor stays at its place if its row is
        gone."""
        self.draft = draft
        width = self.content_region.width - 1
        rows = {row.id: row for row in rows_of(draft, logical_axes)}
        at, self.rows = self.highlighted or 0, rows
        headings = {id for id, row in rows.items() if row.kind == "heading"}
        self.show_rows({id: row_content(row, draft, problems, width) for id, row in rows.items()}, headings)
        if self.highlighted is None:  # its row is gone
            self.highlighted = max(index for index, id in enumerate(rows) if index <= at and id not in headings)
        self.show_hint()

    @on(OptionList.OptionHighlighted)
    def show_hint(self) -> None:
        if self.draft:
            set_titles(self, f"rules of {self.draft.origin.name}", hint(self.row, self.draft) if self.row else "")


def rows_of(draft: Draft, logical_axes: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of a draft under their headings."""
    yield Row("name", "name")
    yield Row("heading", f"mesh of {formatting.counted(draft.devices, 'device')}")
    yield from (Row("axis", axis) for axis in draft.preset.mesh)
    yield Row("heading", "rules: logical → mesh axes")
    yield from (Row("rule", logical) for logical in dict.fromkeys((*logical_axes, *draft.preset.rules)))
    if draft.preset.overrides:
        yield Row("heading", "overrides (not editable here)")
        yield from (Row("override", glob) for glob in draft.preset.overrides)


def row_content(row: Row, draft: Draft, problems: Sequence[str], width: int) -> Content:
    """Returns one row: `● embed            fsdp+model   model width`, cut or without explanation if narrow."""
    is_wrong = any(is_about(row, problem) for problem in problems)
    if row.kind == "heading":
        return Content.styled(f"\n{'✗ ' if is_wrong else '  '}{row.key}", "$error" if is_wrong else "$text-muted")
    mark, style = ("✗", "$error") if is_wrong else ("●", "$accent") if is_changed(row, draft) else (" ", "")
    name = printable(row.key)
    label = axes_content(name, [name] if row.kind == "axis" else []).truncate(LABEL_WIDTH - 1, ellipsis=True)
    axes = () if row.kind == "name" else tuple(draft.sizes)
    value = axes_content(value_of(row, draft), axes).stylize_before(style or value_style(row, draft))
    parts = [(f"{mark} ", style), label, " " * (LABEL_WIDTH - label.cell_length), value]
    room = width - 2 - LABEL_WIDTH - max(VALUE_WIDTH, value.cell_length)
    text = explanation(row, draft)
    if room > min(len(text), LEAST_EXPLANATION):
        words = Content.styled(text, "$text-muted").truncate(room - 1, ellipsis=True)
        parts += [" " * (max(VALUE_WIDTH, value.cell_length) - value.cell_length + 1), words]
    return cut(Content.assemble(*parts), width)


def value_of(row: Row, draft: Draft) -> str:
    """Returns the row's value as it is shown: a size, mesh axes, or an override's spec."""
    match row.kind:
        case "name":
            return draft.name
        case "axis":
            return str(draft.sizes[row.key])
        case "rule":
            is_derived = row.key in FOLLOWS and row.key not in draft.preset.rules
            return f"like {FOLLOWS[row.key]}" if is_derived else draft.rule_words(row.key)
        case "override":
            override = draft.preset.overrides[row.key]
            return formatting.spec(override.spec) + (f", min_size {override.min_size:,}" if override.min_size else "")
        case "heading":
            return ""


def value_style(row: Row, draft: Draft) -> str:
    """Returns the style of a value: bold if something is split, dim for an override or an unsharded dim."""
    is_quiet = row.kind == "override" or (row.kind == "rule" and not draft.preset.axes(row.key))
    return "$text-muted" if is_quiet else "bold"


def explanation(row: Row, draft: Draft) -> str:
    """Returns what the row's name or value means; empty if there is nothing to explain."""
    match row.kind:
        case "axis":
            return "remaining devices" if draft.preset.mesh[row.key] == REST else ""
        case "rule":
            return LOGICAL_AXES.get(row.key, "")
        case "override":
            return "wins over the rules for arrays of this name"
        case _:
            return ""


def hint(row: Row, draft: Draft) -> str:
    """Returns what the row was before and may be: `was 2, choose from 1 2 4 8`."""
    texts = [f"was {value_of(row, draft.reset())}"] if is_changed(row, draft) and is_in_origin(row, draft) else []
    if row.kind == "axis" and (sizes := draft.fitting_sizes(row.key)):
        texts.append(f"choose from {' '.join(map(str, sizes))}")
    return ", ".join(filter(None, [*texts, explanation(row, draft)]))


def is_in_origin(row: Row, draft: Draft) -> bool:
    return row.kind != "axis" or row.key in draft.origin.mesh


def is_changed(row: Row, draft: Draft) -> bool:
    """Whether the row's value differs from the original preset's."""
    match row.kind:
        case "name":
            return draft.name != draft.origin.name
        case "axis":
            return draft.is_size_changed(row.key)
        case "rule":
            return draft.is_rule_changed(row.key)
        case _:
            return False


def is_about(row: Row, problem: str) -> bool:
    """Whether a problem is about this row: problems quote the key as the preset's file has it."""
    key = printable(row.key)
    match row.kind:
        case "rule":
            return f"[rules] {key}: " in problem or f": {key}: rule → " in problem
        case "override":
            return f'[overrides] "{key}"' in problem or f'override "{key}"' in problem
        case "heading":
            return row.key.startswith("mesh") and bool(MESH_PROBLEM.search(problem))
        case _:
            return False
