"""A draft's changes: the costs of a step before and after, and the arrays; or why the draft is invalid."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from ...engine.base import formatting
from ...engine.hlo.layout import bytes_per_device, dim_notations, shard_shape, shards_differ
from ...engine.wire.descriptions import ArrayInfo, MeshInfo, Preview
from ...engine.wire.events import PresetPreviewed
from ..state.board_rows import percent
from ..state.preview_request import NO_ENGINE
from .choices import Choices
from .lines import Lines, axes_content, set_titles, wrapped

LABEL_WIDTH, FIGURE_WIDTH, RATIO_WIDTH = 17, 9, 7
"""Widths of the columns in cells."""
ARGUMENTS, PEAK = "state + batch", "peak"
"""Labels of costs."""


@dataclass(frozen=True)
class Change:
    """One array whose shards differ."""

    before: ArrayInfo | None
    """None if the origin cannot be laid out, or lacks the array."""
    after: ArrayInfo
    bytes_before: int | None
    bytes_after: int
    moments: int = 0
    """Number of optimizer moments that change in the same way."""

    @property
    def difference(self) -> int:
        return (1 + self.moments) * (self.bytes_after - (self.bytes_before or 0))


@dataclass(frozen=True)
class Cost:
    """Bytes on one device, or bytes that it sends per step. None if unknown."""

    label: str
    """`arguments`, `peak` or `sent AXES`."""
    before: int | None
    after: int | None

    @property
    def ratio(self) -> float | None:
        return self.after / self.before - 1 if self.before and self.after is not None else None


class Costs(Lines):
    """Bytes before and after, per device and step, and why any are unknown. Its height follows the lines."""

    def show_costs(self, previewed: PresetPreviewed | None, limit: int | None) -> None:
        """Shows the costs of a preview; None hides the panel. `limit`: bytes of memory on a device, None if unknown."""
        lines = (
            [*cost_lines(costs(previewed), limit, self.size.width), *no_estimate_lines(previewed, self.size.width)]
            if previewed
            else []
        )
        set_titles(self, "traced, per device and step")
        self.display = bool(lines)
        self.styles.height = len(lines) + self.gutter.height
        self.show(lines)


class Changes(Choices):
    """The arrays that change, largest difference first, or the problems of the draft."""

    def show_changes(self, previewed: PresetPreviewed) -> None:
        width = self.scrollable_content_region.width - 1
        found = changes(previewed)
        count = sum(1 + change.moments for change in found)
        known = len(previewed.after.arrays)
        title = f"{count} of {known} arrays change" if count else f"none of {known} arrays changes"
        self.show_contents(title, {each.after.name: change_content(each, previewed, width) for each in found})

    def show_problems(self, name: str, problems: Sequence[str]) -> None:
        width = self.scrollable_content_region.width - 1
        problems = [problem.removeprefix(name).removeprefix(".toml").removeprefix(": ") for problem in problems]
        count = formatting.counted(len(problems), "problem")
        contents = {problem: Content("\n").join(wrapped([(problem, "$error")], width)) for problem in problems}
        self.show_contents(f"invalid: {count}", contents)

    def show_contents(self, title: str, contents: Mapping[str, Content]) -> None:
        """Replaces the title and the list, by id."""
        set_titles(self, title)
        self.show_rows(contents)


def cost_lines(rows: Sequence[Cost], limit: int | None, width: int) -> list[Content]:
    """Returns a header and a line for each cost, with a warning under a peak that is above `limit` bytes."""
    label = max(LABEL_WIDTH, min(28, width - 2 * FIGURE_WIDTH - RATIO_WIDTH))
    head = f"{'':<{label}}{'before':>{FIGURE_WIDTH}}{'after':>{FIGURE_WIDTH}}"
    lines = [Content.styled(head, "$text-muted")]
    for row in rows:
        is_too_large = limit is not None and row.label == PEAK and (row.after or 0) > limit
        lines.append(
            Content.assemble(
                (f"{row.label[: label - 1]:<{label}}", "$text-muted"),
                _size(row.before).rjust(FIGURE_WIDTH),
                (_size(row.after).rjust(FIGURE_WIDTH), "$error" if is_too_large else "bold"),
                _ratio(row),
            )
        )
        if is_too_large:
            lines.append(Content.styled(f"a device has {formatting.size(limit or 0)}", "$error"))
    return lines


def no_estimate_lines(previewed: PresetPreviewed, width: int) -> list[Content]:
    reasons = {"before": previewed.before.no_estimate, "after": previewed.after.no_estimate}
    return wrapped(((f"no estimate {when}: {why}", "$warning") for when, why in reasons.items() if why), width)


def _size(count: int | None) -> str:
    return "–" if count is None else formatting.size(count)


def _ratio(row: Cost) -> tuple[str, str]:
    ratio = row.ratio
    if ratio is None or abs(ratio) < 0.0005:
        return "".rjust(RATIO_WIDTH), ""
    text = percent(ratio) if ratio < 10 else f"× {ratio + 1:.0f}"
    return text.rjust(RATIO_WIDTH), "$warning" if ratio > 0 else "$success"


def change_content(change: Change, previewed: PresetPreviewed, width: int) -> Content:
    """Returns an array's name with its bytes per device, then its dims before and after, in two or three lines."""
    sizes = " → ".join(_size(count) for count in (change.bytes_before, change.bytes_after) if count is not None)
    moments = f" and {change.moments} moments" if change.moments else ""
    room = max(8, width - len(sizes) - 1)
    name = Content.styled(change.after.name, "bold").truncate(room, ellipsis=True)
    if name.cell_length + len(moments) <= room:
        name = Content.assemble(name, (moments, "$text-muted"))
    head = Content.assemble(name, " " * max(1, width - name.cell_length - len(sizes)), sizes)
    return Content("\n").join([head, *_notations(change, previewed, width), Content()])


def _notations(change: Change, previewed: PresetPreviewed, width: int) -> list[Content]:
    after = _dims(change.after, change.before)
    if change.before is None:
        return [after]
    before = _dims(change.before, change.after)
    if before.plain == after.plain:
        return [Content.assemble(after, (_shards(change, previewed), "$text-muted"))]
    if before.cell_length + after.cell_length + 3 <= width:
        return [Content.assemble(before, " → ", after)]
    return [Content.assemble("  ", before), Content.assemble("→ ", after)]


def _dims(array: ArrayInfo, other: ArrayInfo | None) -> Content:
    """Returns the dims with their mesh axes in colour; those split differently in `other` are bold."""
    own, axes = dim_notations(array), [*chain(*array.compiled_spec)]
    others = dim_notations(other) if other else own
    dims = [
        axes_content(dim, axes).stylize("" if others[number : number + 1] == [dim] else "bold")
        for number, dim in enumerate(own)
    ]
    return Content.assemble("[", Content(", ").join(dims), "]")


def _shards(change: Change, previewed: PresetPreviewed) -> str:
    assert change.before and previewed.before.mesh and previewed.after.mesh
    before = shard_shape(change.before.shape, change.before.spec, previewed.before.mesh)
    after = shard_shape(change.after.shape, change.after.spec, previewed.after.mesh)
    return f"  {formatting.shape(before)} → {formatting.shape(after)}" if before != after else "  on other devices"


class DraftPreview(Vertical):
    """Costs before and after, and below them the arrays that change or the problems."""

    def compose(self) -> ComposeResult:
        yield Costs()
        yield Changes()

    def show_preview(
        self, name: str, problems: Sequence[str], previewed: PresetPreviewed | None, limit: int | None
    ) -> None:
        """Shows the engine's answer, None if there is no engine to ask. `problems`: why the draft is invalid. `limit`:
        bytes of memory on a device, None if unknown."""
        self.query_one(Costs).show_costs(None if problems else previewed, limit)
        if problems:
            self.query_one(Changes).show_problems(name, problems)
        elif previewed:
            self.query_one(Changes).show_changes(previewed)
        else:
            self.query_one(Changes).show_contents("no preview", {NO_ENGINE: Content(NO_ENGINE)})


def changes(previewed: PresetPreviewed) -> list[Change]:
    """Returns the arrays whose shards differ, the largest difference first; none if the draft cannot be laid out."""
    before, after = previewed.before.mesh, previewed.after.mesh
    if after is None:
        return []
    old_arrays = {array.name: array for array in previewed.before.arrays}
    found = [
        _change(old_arrays.get(array.name), array, before, after)
        for array in previewed.after.arrays
        if before is None or array.name not in old_arrays or shards_differ(old_arrays[array.name], array, before, after)
    ]
    return sorted(_with_moments(found), key=lambda change: -abs(change.difference))


def _change(before: ArrayInfo | None, after: ArrayInfo, mesh: MeshInfo | None, other_mesh: MeshInfo) -> Change:
    old = bytes_per_device(before, mesh) if before and mesh else None
    return Change(before, after, old, bytes_per_device(after, other_mesh))


def _with_moments(found: Iterable[Change]) -> list[Change]:
    """Counts a moment that changes like its parameter in that parameter's entry."""
    kept: dict[str, Change] = {}
    for change in sorted(found, key=lambda change: change.after.kind == "moment"):
        owner = kept.get(change.after.name.partition(".")[2]) if change.after.kind == "moment" else None
        if owner and _specs(owner) == _specs(change):
            kept[owner.after.name] = replace(owner, moments=owner.moments + 1)
        else:
            kept[change.after.name] = change
    return list(kept.values())


def _specs(change: Change) -> tuple[list[list[str]] | None, list[list[str]]]:
    return change.before and change.before.spec, change.after.spec


def costs(previewed: PresetPreviewed) -> list[Cost]:
    """Returns the costs of memory, then of each mesh axis over which either preset sends something."""
    before, after = previewed.before, previewed.after
    axes = dict.fromkeys((*after.sent_bytes, *before.sent_bytes))
    return [
        Cost(ARGUMENTS, before.argument_bytes, after.argument_bytes),
        Cost(PEAK, before.peak_bytes, after.peak_bytes),
        *(Cost(f"sent {name}", _sent(before, name), _sent(after, name)) for name in axes),
    ]


def _sent(previewed: Preview, axes: str) -> int | None:
    return None if previewed.peak_bytes is None else previewed.sent_bytes.get(axes, 0)
