"""Every view of a recorded run, as a person last looked at it: `pytest --snapshot-update` keeps a new look."""

import asyncio
import re
import time
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import EngineStarted
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.screens.arrays import ArraysScreen
from shardtui.tui.screens.origin import OriginScreen
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.preset_list import PresetList
from syrupy.assertion import SnapshotAssertion

from .test_app import until

RECORDED = Path(__file__).parent / "recorded" / "events.jsonl"
"""nano on eight simulated devices: 120 steps, switched from `dp` to `fsdp` and `dp-tp2`."""
VIEWS = {
    "1": "watch",
    "2": "arrays",
    "3": "mesh",
    "4": "traffic",
    "5": "lint",
    "6": "compare",
    "7": "plan",
    "8": "rules",
    "9": "time",
    "0": "log",
}


def recorded() -> RunDirectory:
    """Returns a run with the recorded events."""
    first = next(event for events in LogReader(RECORDED).read() for event in events)
    assert isinstance(first, EngineStarted) and first.config
    directory = run_directory.create(first.config)
    directory.events.write_bytes(RECORDED.read_bytes())
    return directory


async def drawn(size: tuple[int, int]) -> dict[str, str]:
    """Returns the text of each view in a terminal of this size."""
    app = ShardtuiApp(EngineClient(recorded()), starts=False)
    found: dict[str, str] = {}
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.state.is_over and app.screen.query(PresetList), "the history")
        for key, name in VIEWS.items():
            await pilot.press(key)
            await until(lambda name=name: app.current_mode == name and isinstance(app.screen, RunScreen), name)
            await until(lambda: app.screen.query("FooterKey"), "its keys")
            while found.get(name) != (text := screen_text(app)):
                found[name] = text
                await pilot.pause(0.5)
    return found


@pytest.mark.parametrize(
    "size",
    [(80, 24), (140, 40), pytest.param((200, 60), marks=pytest.mark.slow)],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
def test_views(home: Path, size: tuple[int, int], snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for name, text in asyncio.run(drawn(size)).items():
        assert text == snapshot(name=name)


async def origin(size: tuple[int, int]) -> str:
    """Returns the text of a collective that an array takes part in, with 0 for the digits of line numbers."""
    app = ShardtuiApp(EngineClient(recorded()), starts=False)
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.state.is_over and app.screen.query(PresetList), "the history")
        await pilot.press("2")
        await until(lambda: isinstance(app.screen, ArraysScreen), "Arrays")
        assert isinstance(app.screen, ArraysScreen)
        app.screen.select("blocks.mlp.down.kernel")
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, OriginScreen) and app.screen.pages, "the origin")
        await pilot.press("enter")
        await pilot.pause(0.5)
        return re.sub(r"(?<=\.py:)\d+", lambda line: "0" * len(line[0]), screen_text(app))


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_origin(home: Path, size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    assert asyncio.run(origin(size)) == snapshot
