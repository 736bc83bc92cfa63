"""Views of a recorded run, as a person last looked at them: `pytest --snapshot-update` keeps a new look."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.preset_list import PresetList
from shardtui.tui.widgets.tab_bar import TABS
from syrupy.assertion import SnapshotAssertion

from .recordings import recorded
from .test_app import until

LINES = {
    "mesh": [
        "│ data            index 0 of 4; group: devices 0, 2, 4, 6 ",
        "│ parameter bytes 1.72 MB in 16 shards ",
        "│ moment bytes    3.45 MB in 32 shards ",
        "─ data 4 × model 2 ─╯",
    ],
    "lint": ["│ no findings so far, from parameters, moments and collectives "],
    "compare": [
        "╭─ presets on 8 × cpu ─",
        "│ preset               mesh   step time  in use     peak     sent ",
        "│ ○ dp                 8×1            –          46.9 MB   5.9 MB ",
        "│ ● dp-tp2             4×2            –          45.1 MB  7.31 MB ",
        "│ dp: data 8 × model 1; state + batch 10.1 MB, peak 46.9 MB ",
    ],
    "plan": [" slice v5e:4x4          batch 16        press t to choose a slice, e.g. v5e:4x4"],
    "rules": [
        "│  heads            model ",
        "│  kv_heads         like heads ",
        "││ Not connected to an engine, and only",
    ],
    "time": [
        "╭─ dp-tp2: a step of 509 ms, by the clock 517 ms ─",
        "│ █ products 4 %   ▓ fusions 19 %   ▒ copies 9 %   = exposed 22 % ",
        "│ : waiting 30 %   i input 0 %   h host 4 %   · idle 11 % ",
        "│ all-reduce.99                           16.4 %   83 ms      4  blocks.py:88 ",
        "─ steps 116 to 120 ─╯",
    ],
    "log": [
        " 08:07:07 · compiled dp-tp2 in 23.7 s: data 4 × model 2 (waiting for the",
        " 08:07:22 · checkpoint of step 50: 52 arrays, 9.46 MB on disk after 1.2 s",
        " 08:07:48 · fsdp → dp-tp2 at step 80: moved 36.1 MB, stalled 128 ms, compiled",
        " 08:08:23 · engine stopped (finished) at step 120",
    ],
}
"""Some of what other views show."""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


async def drawn(views: Iterable[str], size: tuple[int, int]) -> dict[str, str]:
    """Returns the text of views of the recorded run, in a terminal of this size."""
    keys = {tab.title.lower(): tab.key for tab in TABS}
    app = ShardtuiApp(EngineClient(recorded()), starts=False)
    found: dict[str, str] = {}
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.state.is_over and app.screen.query(PresetList), "the history")
        for name in views:
            await pilot.press(keys[name])
            await until(lambda name=name: app.current_mode == name and isinstance(app.screen, RunScreen), name)
            await until(lambda: app.screen.query("FooterKey"), "its keys")
            while found.get(name) != (text := screen_text(app)):
                found[name] = text
                await pilot.pause(0.05)
    return found


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_views(home: Path, size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    for name, text in asyncio.run(drawn(["watch", "arrays", "traffic"], size)).items():
        assert text == snapshot(name=name)


def test_other_views_show_what_was_recorded(home: Path) -> None:
    for name, text in asyncio.run(drawn(LINES, (80, 24))).items():
        assert not [line for line in LINES[name] if line not in text], text
