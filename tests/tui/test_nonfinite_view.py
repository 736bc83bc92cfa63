"""What N shows of the first non-finite value, and where its lines lead."""

from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.number_events import NonfiniteExplained, NonfiniteOrigin
from shardtui.tui.screens.nonfinite import NonfiniteScreen
from shardtui.tui.state.announcements import Announcement
from shardtui.tui.terminal.export import screen_text

from .test_app import finished, until
from .test_number_views import UP, run_with, see
from .test_views import press, table

LOG: dict[str, Any] = {
    "what": "loss",
    "is_nan": False,
    "name": "blocks.mlp.up",
    "kind": "activation",
    "shape": [16, 8],
    "dims": ["batch", ""],
    "indices": [[5], [0, 1]],
    "elements": 2,
    "devices": [2],
    "operation": "log",
    "scope": "blocks/mlp",
    "layer": 3,
    "source": "/home/me/bad.py:31",
    "largest_input": 1.0,
}
KERNEL = LOG | {"name": UP, "kind": "parameter", "operation": "", "is_nan": True, "devices": [*range(8)]}


def explained(origin: dict[str, Any] | None, problem: str | None = None) -> NonfiniteExplained:
    found = NonfiniteOrigin(**origin) if origin else None
    return NonfiniteExplained(step=9, origin=found, problem=problem, seconds=4.5)


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=("80 × 24", "140 × 40"))
async def test_n_shows_the_operation_line_by_line(home: Path, size: tuple[int, int]) -> None:
    paused = wire.Paused(step=8, problem="the loss of step 9 is not finite")
    async with finished(run_with(explained(LOG), paused), size) as (app, pilot):
        app.notify("N: where it comes from", timeout=60)
        await press(pilot, "N")
        assert not app._notifications, "nothing covers the lines"
        await see(app, "step 9: the first non-finite value, found in 4.5 s")
        app.notices.show(Announcement("held until it is closed"))
        await pilot.pause()
        assert not app._notifications
        for text in (
            "operation log, forward pass",
            "source /home/me/bad.py:31",
            "layer 3",
            "inputs finite, largest magnitude 1",
            "elements 2 of 128 elements infinite (batch 5; 0, 1)",
            "devices 2 (fsdp 1, model 0)",
        ):
            await see(app, text)
        await press(pilot, "escape")
        assert app.current_mode == "watch" and not isinstance(app.screen, NonfiniteScreen)
        await until(lambda: [each.message for each in app._notifications] == ["held until it is closed"], "it")


async def test_its_lines_lead_to_the_array_and_the_origin_of_its_layout(home: Path) -> None:
    async with finished(run_with(explained(KERNEL))) as (app, pilot):
        await press(pilot, "N")
        await see(app, f"parameter {UP}, before the step")
        await press(pilot, "enter")
        await until(lambda: app.current_mode == "arrays" and app.screen.query("ArrayTable"), "Arrays")
        assert app.screen.table.selected == UP and table(app).row_count
        await press(pilot, "N", "down", "enter")
        await until(lambda: "OriginScreen" in type(app.screen).__name__, "the origin of its layout")


async def test_what_is_unknown_is_said(home: Path) -> None:
    async with finished(run_with(explained(None, "save more often"))) as (app, pilot):
        await press(pilot, "N")
        await see(app, "unknown save more often")


async def test_other_runs_have_no_such_key(home: Path) -> None:
    async with finished(run_with()) as (app, pilot):
        assert "First NaN" not in screen_text(app)
        await press(pilot, "N")
        assert [notice.message for notice in app._notifications] == ["no non-finite value was explained in this run"]
