"""Views of a recorded run, as a person last looked at them, and the recording itself, which engines answer now.

`pytest --snapshot-update` keeps a new look.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.hlo.lint import lint
from shardtui.engine.wire.events import Inspection
from shardtui.tui.screens.run_screen import RunScreen
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.widgets.tab_bar import TABS
from syrupy.assertion import SnapshotAssertion

from .recordings import INSPECTIONS, PRESETS, anew, decoded, described, recorded
from .test_app import finished, until

LINES = {
    "mesh": [
        "│ data               index 0 of 4; group: devices 0, 2, 4, 6 ",
        "│ peak, predicted     ━─────────────────────────────────────────────── 45.1 MB ",
        "│ in use              ━─────────────────────────────────────────────── 5.18 MB ",
        "─ data 4 × model 2 ─╯",
    ],
    "lint": ["│ no findings so far, from parameters, moments and collectives "],
    "compare": [
        "╭─ presets on 8 × cpu ─",
        "│ preset               mesh   step time  state + batch     peak     sent ",
        "│ ● dp-tp2             4×2       834 ms        5.18 MB  45.1 MB  7.31 MB ",
        "│ memory         46.9 MB of 3.16 GB, of which state + batch 10.1 MB, compiled  │",
    ],
    "plan": [" slice v5e:4x4          batch 16        press t to choose a slice, e.g. v5e:4x4"],
    "rules": ["│  heads            model ", "││ Not connected to an engine, and only"],
    "time": [
        "╭─ dp-tp2: a step of 509 ms, by the clock 517 ms ─",
        "│ : waiting 30 %   i input 0 %   h host 4 %   · idle 11 % ",
        "│ all-reduce over d…  blocks              16.4 %   83 ms  blocks.py:88 ",
        "operation: all-reduce.99",
        "─ steps 116 to 120 ─╯",
    ],
    "log": [
        " 08:07:22 · checkpoint of step 50: 52 arrays, 9.46 MB on disk after 1.2 s",
        " 08:07:48 · fsdp → dp-tp2 at step 80: moved 36.1 MB, stalled 128 ms, compiled",
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
    found: dict[str, str] = {}
    async with finished(recorded(), size) as (app, pilot):
        for name in views:
            await pilot.press(keys[name])
            await until(lambda name=name: app.current_mode == name and isinstance(app.screen, RunScreen), name)
            await until(lambda: app.screen.query("FooterKey"), "its keys")
            while found.get(name) != (text := screen_text(app)):
                found[name] = text
                await pilot.pause(0.05)
    return found


@pytest.mark.parametrize("size", [(80, 24), (140, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_views(home: Path, size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    for name, text in (await drawn(["watch", "arrays", "traffic"], size)).items():
        assert text == snapshot(name=name)


async def test_other_views_show_what_was_recorded(home: Path) -> None:
    for name, text in (await drawn(LINES, (80, 24))).items():
        assert not [line for line in LINES[name] if line not in text], text


@pytest.mark.core
def test_engines_answer_what_was_recorded() -> None:
    lines = anew()
    assert list(map(fields, lines.splitlines())) == list(map(fields, INSPECTIONS.read_bytes().splitlines()))
    assert list(map(lasting, decoded(lines))) == list(map(lasting, described(*PRESETS)))


def fields(line: bytes) -> list[list[str]]:
    found = json.loads(line)
    return [list(part) for part in (found, found["compiled"], found["inspected"])]


def lasting(inspection: Inspection) -> list[Any]:
    """What every version of jax answers."""
    compiled, inspected = inspection.compiled, inspection.inspected
    sent = [(each.kind, each.axes, each.count, each.bytes_each, each.dtype) for each in compiled.collectives or ()]
    return [
        inspection.devices,
        inspection.flops_per_step,
        compiled.preset,
        compiled.mesh,
        compiled.arrays,
        inspected.arrays,
        sorted(sent),
        [(each.code, each.arrays) for each in lint(compiled, inspected, inspection.flops_per_step)],
    ]
