"""Times what describes a wide mesh: 512 simulated devices, 48 layers. `python tests/long/wide.py [--record]` (half a
minute)."""

import argparse
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
from shardtui.tui.widgets.sharding_pane import ShardingPane
from shardtui.tui.widgets.sharding_picture import draw_sharding

from tests.suite import versions
from tests.table import Table, arguments
from tests.tui.test_app import shown, until
from tests.tui.test_views import WIDE, inspections, record

REPEATS = 20
COLUMNS = {"": "", "arrays": "{}", "median": "{:.1f} ms", "largest": "{:.1f} ms"}


def milliseconds(action: Callable[[], object]) -> tuple[float, float]:
    """Median and largest of the repeats."""
    spent = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        spent.append(1e3 * (time.perf_counter() - began))
    return statistics.median(spent), max(spent)


async def main(table: Table) -> None:
    began = time.perf_counter()
    (inspection,) = inspections(WIDE, 512, "fsdp-tp2")
    table.add(
        "an engine that starts, compiles, describes and inspects", None, f"{time.perf_counter() - began:.0f} s", None
    )
    directory = record([inspection], "wide")
    async with shown(directory, False, (140, 40)) as (app, pilot):
        await until(lambda: app.state.is_over, "the history")
        await pilot.press("2")
        await pilot.pause(1)
        screen = app.screen
        assert isinstance(screen, ArraysScreen)
        table.add("the table of arrays, filled anew", len(app.state.arrays), *milliseconds(screen.fill))
        subject = screen.query_one(ShardingPane).subject
        assert subject
        unfolded = msgspec.structs.replace(subject, folds=False)
        for name, drawn in (("folded", subject), ("unfolded", unfolded)):
            table.add(f"the pane, {name}", None, *milliseconds(lambda drawn=drawn: draw_sharding(drawn, 82, 16, True)))
        table.add("all findings", None, *milliseconds(lambda: app.state.findings))


if __name__ == "__main__":
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}\n")
    with tempfile.TemporaryDirectory() as folder, Table("long/wide", COLUMNS, options.record) as table:
        os.environ |= {"XDG_STATE_HOME": folder, "SHARDTUI_RUNTIME_DIR": f"{folder}/run"}
        asyncio.run(main(table))
