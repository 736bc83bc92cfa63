"""When a view is drawn, and which of its lines: over SSH every cell counts."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from shardtui.tui.terminal import driver as redraws_module
from shardtui.tui.terminal.driver import Driver, Redraws
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.lines import Lines, set_titles
from textual.app import App, ComposeResult
from textual.content import Content
from textual.geometry import Region

from .recordings import recorded
from .test_app import finished, until

SHORT, LONG = 0.1, 0.8
"""Seconds between frames."""


async def test_steps_wait_until_the_connection_has_carried_the_previous_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redraws_module, "MIN_FRAME_SECONDS", SHORT)
    monkeypatch.setattr(redraws_module, "MAX_FRAME_SECONDS", LONG)
    drawn: list[None] = []
    app = App[None]()
    async with app.run_test():
        redraws = Redraws(app, lambda: drawn.append(None))
        redraws.soon()
        assert len(drawn) == 1, "there is no previous frame"
        redraws.soon()
        redraws.soon()
        assert len(drawn) == 1
        await until(lambda: len(drawn) == 2, "the second frame")
        redraws.soon()
        redraws.now()
        assert len(drawn) == 3
        await asyncio.sleep(2 * SHORT)
        assert len(drawn) == 3, "the scheduled frame was drawn with it"
        redraws.now()
        began = time.monotonic()
        Driver.written += 10_000_000
        redraws.soon()
        await asyncio.sleep(2 * SHORT)
        is_early = time.monotonic() < began + LONG - SHORT
        assert not is_early or len(drawn) == 4, "a slow connection is still busy"
        await until(lambda: len(drawn) == 5, "the next frame")


class Drawn(Lines):
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


async def test_keys_are_drawn_again_only_where_they_change(home: Path) -> None:
    async with finished(recorded()) as (app, pilot):
        await until(lambda: app.screen.query("FooterKey"), "the keys")
        keys = list(app.screen.query("FooterKey"))
        app.redraws.now()
        await pilot.pause()
        await pilot.pause()
        assert list(app.screen.query("FooterKey")) == keys
        app.state.host = "tpu-vm"
        app.redraws.now()
        await until(lambda: "Resume" not in screen_text(app), "the keys of a run on another host")
        assert not set(app.screen.query("FooterKey")) & set(keys)
