"""What `shardtui plan --fit` compiles to make a preset fit that is too large."""

import sys
import time
from collections.abc import Iterable

from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from ...engine.base import figures
from ...engine.planning.fitting import Fit
from ...engine.planning.ranking import Row
from ..client.fitter import Fitter, Trying
from ..client.planner import Planner
from ..state.fit_words import COLUMNS, change, conclusion, ordered, problems, trial_cells
from ..terminal.clean import printable
from ..terminal.plain_table import plain_table, right
from .memory_report import peak_table


async def follow_fits(planner: Planner, fitters: Iterable[Fitter]) -> None:
    """Adds to the planner's rows that are too large what makes them fit, as it is found; prints progress on stderr.

    `fitters`: one for each of the first rows.
    """
    for at, fitter in enumerate(fitters):
        assert planner.board is not None
        if planner.board.rows[at].verdict != "too large":
            continue
        before: Trying | None = None
        async for fit in fitter.fits():
            if before is not None and fit.trials:
                _print_outcome(fit, time.monotonic() - before.began)
                rows = [*planner.board.rows]
                rows[at] = replace(rows[at], fit=fit)
                planner.board = replace(planner.board, rows=rows)
            before = fitter.trying
            if before is not None and fit.trials:
                words = printable(f"{fit.trials[0].preset}, {change(before.trial, fit.trials[0])}")
                print(f"compiling {words}, change {before.number - 1}", file=sys.stderr)


def _print_outcome(fit: Fit, seconds: float) -> None:
    cells = trial_cells(fit.trials[-1], fit)
    outcome = ", ".join(filter(None, (cells["fits"], cells["peak"], cells["of a device"])))
    print(f"  {outcome}, after {figures.seconds(seconds)}", file=sys.stderr)


def fit_tables(row: Row) -> list[RenderableType]:
    """Returns what was compiled to make a preset fit, and what follows from it; nothing if it was not asked for."""
    if row.fit is None or not row.fit.trials[1:]:
        return []
    title = f"{row.preset} does not fit: what was compiled instead, one change each"
    table = plain_table(COLUMNS[0], COLUMNS[1], *map(right, COLUMNS[2:]), title=title)
    for trial in ordered(row.fit):
        table.add_row(*map(Text, trial_cells(trial, row.fit).values()))
    lines = [Text(line, "dim") for line in problems(row.fit)]
    return [table, *lines, *_memory(row.preset, row.fit), Text(f"→ {conclusion(row.fit)}", "bold")]


def _memory(preset: str, fit: Fit) -> list[RenderableType]:
    """What fills the memory with the largest batch that fits."""
    if fit.at_peak is None or (size := fit.largest_batch) is None:
        return []
    return [peak_table(f"{preset} with batch_size={size}", fit.at_peak, fit.peak_buffers, fit.batches[size])]
