"""Which lines are redrawn: over SSH every cell counts."""

import asyncio
from typing import Any

from shardtui.tui.widgets.lines import Lines, set_titles
from textual.app import App, ComposeResult
from textual.content import Content
from textual.geometry import Region


class Drawn(Lines):
    """Records the regions that are redrawn."""

    redrawn: list[tuple[Region, ...]]

    def refresh(self, *regions: Region, **options: Any) -> "Drawn":
        if hasattr(self, "redrawn"):
            self.redrawn.append(regions)
        return super().refresh(*regions, **options)


class OneWidget(App[None]):
    CSS = "Drawn { height: 4; width: 20; border: round white; }"

    def compose(self) -> ComposeResult:
        yield Drawn()


def drawn_by(*changes: Any) -> list[list[tuple[Region, ...]]]:
    """Returns the regions that each change redraws in a widget of two rows inside a border."""

    async def run() -> list[list[tuple[Region, ...]]]:
        app = OneWidget()
        async with app.run_test():
            widget = app.query_one(Drawn)
            found: list[list[tuple[Region, ...]]] = []
            for change in changes:
                widget.redrawn = []
                change(widget)
                found.append(widget.redrawn)
            return found

    return asyncio.run(run())


def show(*lines: str) -> Any:
    return lambda widget: widget.show([Content(line) for line in lines])


def test_only_changed_lines_are_redrawn() -> None:
    first, same, other = drawn_by(show("a", "b"), show("a", "b"), show("a", "c"))
    assert first == [(Region(0, 0, 18, 1), Region(0, 1, 18, 1))]
    assert same == []
    assert other == [(Region(0, 1, 18, 1),)]


def test_lines_below_the_edge_are_not_drawn() -> None:
    _, below = drawn_by(show("a", "b", "c"), show("a", "b", "d"))
    assert below == []


def test_an_unchanged_title_does_not_redraw_the_widget() -> None:
    titled = [lambda widget, title=title: set_titles(widget, title, "[x]") for title in ("[a] b", "[a] b", "c")]
    first, same, other = drawn_by(*titled)
    assert first == [(), ()]
    assert same == []
    assert other == [()]
