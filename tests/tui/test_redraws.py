"""A view is drawn at once if it is urgent, and later for mere steps."""

import asyncio
import time

import pytest
from shardtui.tui.terminal import driver as redraws_module
from shardtui.tui.terminal.driver import Driver, Redraws
from textual.app import App

from .test_app import until

SHORT, LONG = 0.1, 0.8
"""Seconds between frames."""


def test_steps_wait_until_the_connection_has_carried_the_previous_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redraws_module, "MIN_FRAME_SECONDS", SHORT)
    monkeypatch.setattr(redraws_module, "MAX_FRAME_SECONDS", LONG)

    async def scenario() -> None:
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

    asyncio.run(scenario())
