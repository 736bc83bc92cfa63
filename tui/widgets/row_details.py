"""One preset of a board in full: memory, time, and what it sends over which links."""

import textwrap
from collections.abc import Iterator

from textual.content import Content

from ...engine.base import figures
from ...engine.planning.ranking import Cost, Row
from ..state import board_rows
from .lines import Lines, entitle

LABEL = 15


class RowDetails(Lines):
    def on_mount(self) -> None:
        self.row: Row | None = None

    def show_row(self, row: Row | None) -> None:
        self.row = row
        entitle(self, row.preset if row else "preset", figures.axes(row.mesh) if row else "")
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        self.show(detail_lines(self.row, self.size.width) if self.row else [])


def detail_lines(row: Row, width: int) -> list[Content]:
    """What is wrong comes first: the last lines are cut where there is little room."""
    style = "$warning" if row.cost else "$error"
    lines = [
        Content.styled(line, style)
        for text in (*row.problems, *board_rows.no_estimate(row))
        for line in textwrap.wrap(text, max(8, width))
    ]
    for label, text in _texts(row):
        wrapped = textwrap.wrap(text, max(8, width - LABEL)) or [""]
        head = Content.styled(f"{label:<{LABEL}}", "$foreground 60%")
        lines += [Content.assemble(head if first else " " * LABEL, line) for first, line in _firsts(wrapped)]
    return lines


def _firsts(lines: list[str]) -> Iterator[tuple[bool, str]]:
    return ((index == 0, line) for index, line in enumerate(lines))


def _texts(row: Row) -> Iterator[tuple[str, str]]:
    if row.cost is None:
        return
    yield "memory", _memory(row, row.cost)
    if cost := row.timed:
        yield "a step", _times(cost)
    if row.pipeline:
        yield "pipeline", row.pipeline.words
    for axes, size in row.mesh.items():
        if size > 1:
            yield f"{axes} {size}", _axis(row, axes)
    for axes in _together(row):
        yield axes, _sent(row, axes)
    yield from _collectives(row)


def _memory(row: Row, cost: Cost) -> str:
    of = f" of {figures.size(cost.capacity_bytes)}" if cost.capacity_bytes else ""
    said = "" if cost.fits else f", {board_rows.verdict(row)}"
    told = f"{figures.size(cost.peak_bytes)}{of}{said}, {figures.size(cost.argument_bytes)} of it state and batch"
    errors = board_rows.errors(row)
    if errors is None or row.estimate is None:
        return f"{told}, by formula"
    return f"{told}; by formula {figures.size(row.estimate.peak_bytes)}, {board_rows.percent(errors.peak)}"


def _times(cost: Cost) -> str:
    parts = {"compute": cost.compute_seconds, "memory": cost.memory_seconds, "network": cost.network_seconds}
    known = (f"{name} {figures.seconds(seconds)}" for name, seconds in parts.items() if seconds is not None)
    rate = f"{figures.count(cost.tokens_per_second or 0)} tokens/s"
    longest = f"{figures.seconds(cost.step_seconds or 0)}, the longest of {', '.join(known)}"
    return f"{longest}; {rate}, FLOP utilisation {figures.part(cost.flop_utilisation or 0)}"


def _axis(row: Row, axis: str) -> str:
    wired = next((wired for wired in row.wiring if wired.axes == [axis]), None)
    links = f"{board_rows.run_on(wired)}, {board_rows.rate(wired)}; " if wired else ""
    return links + _sent(row, axis)


def _together(row: Row) -> list[str]:
    """What collectives run over besides single axes."""
    moved = board_rows.sent(row)
    return [axes for axes in moved.sent_by_axis if axes not in row.mesh] if moved else []


def _sent(row: Row, axes: str) -> str:
    moved = board_rows.sent(row)
    told = f"sends {figures.size(moved.sent_by_axis.get(axes, 0) if moved else 0)} a step"
    if row.estimate is None or moved is row.estimate:
        return f"{told}, by formula"
    return f"{told}; by formula {figures.size(row.estimate.sent_by_axis.get(axes, 0))}"


def _collectives(row: Row) -> Iterator[tuple[str, str]]:
    moved = board_rows.sent(row)
    for flow in moved.collectives or () if moved else ():
        times = f"{figures.times(flow.count)} times over {figures.over(flow.axes)}"
        yield flow.kind[: LABEL - 1], f"{times}, {figures.in_step(flow.bytes_per_device)} in all"
