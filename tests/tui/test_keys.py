"""Keys and clicks that once ended the UI, or did what nobody asked for. Over a run that has ended."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.palette import Palette
from shardtui.tui.state.run_state import Phase
from shardtui.tui.widgets.choices import Choices
from shardtui.tui.widgets.preset_list import PresetList
from textual.command import CommandList
from textual.events import MouseDown
from textual.pilot import Pilot
from textual.widgets._key_panel import BindingsTable

from ..recorded import recorded_run
from .test_app import shown, until

Scenario = Callable[[ShardtuiApp, Pilot[None]], Coroutine[Any, Any, None]]


@pytest.fixture
def ended(home: Path) -> RunDirectory:
    return recorded_run()


def play(directory: RunDirectory, scenario: Scenario, size: tuple[int, int] = (80, 24)) -> None:
    async def playing() -> None:
        async with shown(directory, False, size) as (app, pilot):
            await until(lambda: app.state.phase is Phase.STOPPED and app.screen.query(PresetList), "the history")
            await scenario(app, pilot)

    asyncio.run(playing())


@pytest.mark.parametrize("page", ["page_up", "page_down"])
def test_a_page_of_the_palette_before_what_it_found_is_laid_out(ended: RunDirectory, page: str) -> None:
    """Keys as fast as a terminal sends them, and what the last one is bound to just between the two."""

    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        for key in ("ctrl+p", "n", "5"):
            app.simulate_key(key)
        while not (isinstance(app.screen, Palette) and app.screen.query(CommandList)):
            await asyncio.sleep(0)
        while not app.screen.query_one(CommandList).option_count:
            await asyncio.sleep(0)
        await app.run_action(f"command_list('{page}')", app.screen)
        await pilot.press("pageup", "pagedown", *"page", "pageup", "pagedown", "escape", "escape")
        await until(lambda: not isinstance(app.screen, Palette), "the view")

    play(ended, scenario)


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (40, 4)])
def test_pages_of_lists_without_room(ended: RunDirectory, size: tuple[int, int]) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        for view in "1568":
            await pilot.press(view, "pageup", "pagedown", "pageup")
        await pilot.press("1", "c", "pageup", "pagedown")
        assert app.screen.query(Choices)

    play(ended, scenario, size)


def test_a_click_selects_and_a_double_click_acts(ended: RunDirectory) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        listed = app.screen.query_one(PresetList)
        before = listed.highlighted_preset
        await pilot.click(PresetList, offset=(6, 3))
        assert listed.highlighted_preset != before
        assert not app._notifications, "nothing was asked of the engine"
        await pilot.click(PresetList, offset=(6, 3))
        await pilot.pause(0.6)
        await pilot.click(PresetList, offset=(6, 3), times=2)
        await until(lambda: app._notifications, "the word that there is no engine")

    play(ended, scenario)


def test_a_view_that_is_asked_for_before_the_palette_is_up(ended: RunDirectory) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        app.action_command_palette()
        app.switch_mode("log")
        await until(lambda: isinstance(app.screen, Palette) and app.screen.is_mounted, "the palette")
        await pilot.press("escape", "0")
        await until(lambda: app.current_mode == "log", "the view")

    play(ended, scenario)


def test_a_click_on_what_is_gone_but_still_drawn(ended: RunDirectory) -> None:
    async def scenario(app: ShardtuiApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await until(lambda: app.screen.query(BindingsTable) and app.screen.query_one(BindingsTable).region, "the help")
        table = app.screen.query_one(BindingsTable)
        (x, y), pane = table.region.offset, table.parent
        assert pane
        table._detach()
        app.screen._forward_event(MouseDown(None, x, y, 0, 0, 1, False, False, False, x, y))
        table._attach(pane)

    play(ended, scenario)
