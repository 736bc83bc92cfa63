"""When a view is drawn, and which of its lines: over SSH every cell counts."""

import asyncio
import time
from collections.abc import Callable
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
    """Two rows of 18 cells inside a border."""

    CSS = "Drawn { height: 4; width: 20; border: round white; }"

    def compose(self) -> ComposeResult:
        yield Drawn()


def show(*lines: str) -> Callable[[Drawn], None]:
    return lambda widget: widget.show([Content(line) for line in lines])


def title(text: str) -> Callable[[Drawn], None]:
    return lambda widget: set_titles(widget, text, "[x]")


FIRST, SECOND = Region(0, 0, 18, 1), Region(0, 1, 18, 1)


@pytest.mark.parametrize(
    ("changes", "redrawn"),
    [
        ([show("a", "b"), show("a", "b"), show("a", "c")], [[(FIRST, SECOND)], [], [(SECOND,)]]),
        ([show("a", "b", "c"), show("a", "b", "d")], [[(FIRST, SECOND)], []]),
        ([title("[a] b"), title("[a] b"), title("c")], [[(), ()], [], [()]]),
    ],
    ids=["changed lines", "lines below the edge", "a title"],
)
async def test_only_what_has_changed_is_redrawn(
    changes: list[Callable[[Drawn], None]], redrawn: list[list[tuple[Region, ...]]]
) -> None:
    app = OneWidget()
    async with app.run_test():
        widget = app.query_one(Drawn)
        for change, regions in zip(changes, redrawn, strict=True):
            widget.redrawn = []
            change(widget)
            assert widget.redrawn == regions


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
