"""Times what describes a wide mesh: 512 simulated devices, 48 layers. `python tests/long/wide.py` (half a minute)."""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
from shardtui.tui.screens.arrays import ArraysScreen
from shardtui.tui.widgets.sharding_pane import ShardingPane, draw_sharding
from tests.test_app import shown, until
from tests.test_views import WIDE, inspections, record

REPEATS = 20


def milliseconds(action: Callable[[], object]) -> str:
    """Median and largest of the repeats."""
    spent = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        spent.append((time.perf_counter() - began) * 1e3)
    return f"{statistics.median(spent):.1f} ms (largest {max(spent):.1f} ms)"


async def main() -> None:
    began = time.perf_counter()
    (inspection,) = inspections(WIDE, 512, "fsdp-tp2")
    print(f"| an engine that starts, compiles, describes and inspects | {time.perf_counter() - began:.0f} s |")
    directory = record([inspection], "wide")
    async with shown(directory, False, (140, 40)) as (app, pilot):
        await until(lambda: app.state.is_over, "the history")
        await pilot.press("2")
        await pilot.pause(1)
        screen = app.screen
        assert isinstance(screen, ArraysScreen)
        print(f"| the table of {len(app.state.arrays)} arrays, filled anew | {milliseconds(screen.fill)} |")
        subject = screen.query_one(ShardingPane).subject
        assert subject
        unfolded = msgspec.structs.replace(subject, folds=False)
        for name, drawn in (("folded", subject), ("unfolded", unfolded)):
            print(f"| the pane, {name} | {milliseconds(lambda drawn=drawn: draw_sharding(drawn, 82, 16, True))} |")
        print(f"| all findings | {milliseconds(lambda: app.state.findings)} |")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_STATE_HOME": folder, "SHARDTUI_RUNTIME_DIR": f"{folder}/run"}
        asyncio.run(main())
