"""The rows of a table of operations: time, rates against those of the chip, and what they belong to."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from ...engine.base import figures
from ...engine.wire.step_breakdown import CollectiveTime, OperationTime, StepBreakdown
from ..state.operation_words import bandwidth, flops, share
from .lines import set_titles
from .table import Table, right

NARROW = ("operation", "share", "time", "times", "source")
"""Columns in a narrow terminal."""
WIDE = (
    *("operation", "share", "time", "times", "source", "FLOP/s", "MFU", "bytes/s", "bandwidth", "roofline"),
    *("waiting", "exposed", "hidden", "part", "module"),
)
OF_CHIP = {"MFU", "bandwidth", "roofline"}
"""Columns that compare with the chip: left out if its figures are not known."""


def show_operations(table: Table, account: StepBreakdown, is_wide: bool, subtitle: str = "") -> None:
    """Fills a table with the operations, with as many columns as there is room for."""
    columns = operation_columns(account, is_wide)
    table.show_rows(columns, operation_rows(account, columns))
    more = f" and {account.operations_left_out} more" if account.operations_left_out else ""
    set_titles(table.rows, f"{len(account.operations)} operations{more}", subtitle)


def operation_columns(account: StepBreakdown, is_wide: bool) -> Sequence[str]:
    """Returns the names of the columns."""
    if not is_wide:
        return NARROW
    is_known = any(each.roofline_seconds is not None for each in account.operations)
    return [name for name in WIDE if is_known or name not in OF_CHIP]


def operation_rows(account: StepBreakdown, columns: Sequence[str]) -> Mapping[str, list[Text]]:
    """Returns a row for each operation by its name."""
    collectives = {each.name: each for each in account.collectives}
    rows: dict[str, list[Text]] = {}
    for each in account.operations:
        cells = {**_cells(each, account), **_waits(collectives.get(each.name))}
        rows[each.name] = [cells[name] for name in columns]
    return rows


def _cells(each: OperationTime, account: StepBreakdown) -> Mapping[str, Text]:
    return {
        "operation": Text(each.name),
        "share": right(share(each.seconds / account.step_seconds)),
        "time": right(figures.seconds(each.seconds)),
        "times": right(f"{each.count:,.3g}"),
        "FLOP/s": right(flops(each)),
        "MFU": right(share(each.flops_share)),
        "bytes/s": right(bandwidth(each)),
        "bandwidth": right(share(each.bandwidth_share)),
        "roofline": right("" if each.roofline_seconds is None else figures.seconds(each.roofline_seconds)),
        "part": Text(each.part),
        "source": Text(figures.short_source(each.source)),
        "module": Text(each.module, "dim"),
    }


def _waits(collective: CollectiveTime | None) -> Mapping[str, Text]:
    if collective is None:
        return dict.fromkeys(("waiting", "exposed", "hidden"), right(""))
    times = (collective.waiting_seconds, collective.exposed_seconds, collective.hidden_seconds)
    return dict(zip(("waiting", "exposed", "hidden"), map(right, map(figures.seconds, times)), strict=True))
