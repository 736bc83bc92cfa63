"""A view is drawn at once if it is urgent, and later for mere steps."""

import asyncio
import time

from shardtui.tui.terminal.driver import Driver
from shardtui.tui.terminal.redraws import MAX_FRAME_SECONDS, MIN_FRAME_SECONDS, Redraws
from textual.app import App

from .test_app import until


def test_steps_wait_until_the_connection_has_carried_the_previous_frame() -> None:
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
            await asyncio.sleep(2 * MIN_FRAME_SECONDS)
            assert len(drawn) == 3, "the scheduled frame was drawn with it"
            redraws.now()
            began = time.monotonic()
            Driver.written += 10_000_000
            redraws.soon()
            await asyncio.sleep(2 * MIN_FRAME_SECONDS)
            is_early = time.monotonic() < began + MAX_FRAME_SECONDS - MIN_FRAME_SECONDS
            assert not is_early or len(drawn) == 4, "a slow connection is still busy"
            await until(lambda: len(drawn) == 5, "the next frame, after seconds")

    asyncio.run(scenario())
