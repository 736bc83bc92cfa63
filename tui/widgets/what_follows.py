"""What follows from a draft: what a step costs beside before, and each array that changes; or why it cannot be."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from textual.content import Content
from textual.widgets.option_list import Option

from ...engine.analysis.layout import dim_notations, shard_shape
from ...engine.base import figures
from ...engine.wire.descriptions import ArrayInfo
from ...engine.wire.events import PresetWeighed
from ..state.board_rows import percent
from ..state.consequences import PEAK, Change, Cost, changes, costs
from .choices import Choices
from .lines import Lines, entitle

LABEL, FIGURE, RATIO = 17, 9, 7
"""Cells of the columns."""


class Costs(Lines):
    """Before and after, per device and step; as high as it needs to be."""

    def show_costs(self, weighed: PresetWeighed | None, limit: int | None) -> None:
        """`limit`: bytes that a device has."""
        lines = (
            [*cost_lines(costs(weighed), limit, self.size.width), *why_lines(weighed, self.size.width)]
            if weighed
            else []
        )
        entitle(self, "by formula, per device and step")
        self.display = bool(lines)
        if self.styles.height is None or self.styles.height.value != len(lines) + 2:
            self.styles.height = len(lines) + 2
        self.show(lines)


class Consequences(Choices):
    """Arrays that change, the largest difference first; or problems."""

    def on_mount(self) -> None:
        self.shown: Sequence[Content] = ()

    def show_changes(self, weighed: PresetWeighed) -> None:
        width = self.scrollable_content_region.width - 1
        found = changes(weighed)
        count = sum(1 + change.moments for change in found)
        known = len(weighed.after.arrays)
        title = f"{count} of {known} arrays change" if count else f"none of {known} arrays changes"
        self.show_contents(title, [change_content(change, weighed, width) for change in found])

    def show_problems(self, name: str, problems: Sequence[str]) -> None:
        """Without the name of the preset, which they all begin with."""
        width = self.scrollable_content_region.width - 1
        problems = [problem.removeprefix(name).removeprefix(".toml").removeprefix(": ") for problem in problems]
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        wrapped = (Content("\n".join(textwrap.wrap(problem, max(8, width)))) for problem in problems)
        self.show_contents(f"cannot be: {count}", [text.stylize("$error") for text in wrapped])

    def show_contents(self, title: str, contents: Sequence[Content]) -> None:
        entitle(self, title)
        if not (
            len(contents) == len(self.shown) and all(a.is_same(b) for a, b in zip(contents, self.shown, strict=True))
        ):
            self.shown = contents
            self.set_options(map(Option, contents))


def cost_lines(rows: Sequence[Cost], limit: int | None, width: int) -> list[Content]:
    """Under a line that names the columns. What is above the limit is told."""
    label = max(LABEL, min(28, width - 2 * FIGURE - RATIO))
    head = f"{'':<{label}}{'before':>{FIGURE}}{'after':>{FIGURE}}"
    lines = [Content.styled(head, "$foreground 60%")]
    for row in rows:
        is_too_large = limit is not None and row.label == PEAK and (row.after or 0) > limit
        lines.append(
            Content.assemble(
                (f"{row.label[: label - 1]:<{label}}", "$foreground 60%"),
                _size(row.before).rjust(FIGURE),
                (_size(row.after).rjust(FIGURE), "$error" if is_too_large else "bold"),
                _ratio(row),
            )
        )
        if is_too_large:
            lines.append(Content.styled(f"a device has {figures.size(limit or 0)}", "$error"))
    return lines


def why_lines(weighed: PresetWeighed, width: int) -> list[Content]:
    """Why figures are not known."""
    said = {"before": weighed.before.no_estimate, "after": weighed.after.no_estimate}
    texts = (f"no estimate {when}: {why}" for when, why in said.items() if why)
    return [Content.styled(line, "$warning") for text in texts for line in textwrap.wrap(text, max(8, width))]


def _size(count: int | None) -> str:
    return "–" if count is None else figures.size(count)


def _ratio(row: Cost) -> tuple[str, str]:
    ratio = row.ratio
    if ratio is None or abs(ratio) < 0.0005:
        return "".rjust(RATIO), ""
    told = percent(ratio) if ratio < 10 else f"× {ratio + 1:.0f}"
    return told.rjust(RATIO), "$warning" if ratio > 0 else "$success"


def change_content(change: Change, weighed: PresetWeighed, width: int) -> Content:
    """Its name with the bytes of one device, then its dims before and after; in three lines where two are too wide."""
    sizes = " → ".join(_size(count) for count in (change.bytes_before, change.bytes_after) if count is not None)
    moments = f" and {change.moments} moments" if change.moments else ""
    room = max(8, width - len(sizes) - 1)
    name = Content.styled(change.after.name, "bold").truncate(room, ellipsis=True)
    if name.cell_length + len(moments) <= room:
        name = Content.assemble(name, (moments, "$foreground 60%"))
    head = Content.assemble(name, " " * max(1, width - name.cell_length - len(sizes)), sizes)
    return Content("\n").join([head, *_notations(change, weighed, width), Content()])


def _notations(change: Change, weighed: PresetWeighed, width: int) -> list[Content]:
    after = _dims(change.after, change.before)
    if change.before is None:
        return [after]
    before = _dims(change.before, change.after)
    if before.plain == after.plain:
        return [Content.assemble(after, (_shards(change, weighed), "$foreground 60%"))]
    if before.cell_length + after.cell_length + 3 <= width:
        return [Content.assemble(before, " → ", after)]
    return [Content.assemble("  ", before), Content.assemble("→ ", after)]


def _dims(array: ArrayInfo, other: ArrayInfo | None) -> Content:
    """Those that are split otherwise stand out."""
    others = dim_notations(other) if other else []
    dims = [
        Content.styled(dim, "" if dim == same or not other else "$accent")
        for dim, same in zip_longest(dim_notations(array), others)
    ]
    return Content.assemble("[", Content(", ").join(dims), "]")


def _shards(change: Change, weighed: PresetWeighed) -> str:
    """The part of one device, where the dims are split over the same axes as before."""
    assert change.before and weighed.before.mesh and weighed.after.mesh
    before = shard_shape(change.before.shape, change.before.spec, weighed.before.mesh)
    after = shard_shape(change.after.shape, change.after.spec, weighed.after.mesh)
    return f"  {figures.shape(before)} → {figures.shape(after)}" if before != after else "  on other devices"
