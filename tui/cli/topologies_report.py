"""Tokens per chip-hour and per dollar, and the best preset of each topology."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct
from rich.table import Table

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.planning.ranking import Board, Row, ranked
from ...engine.spec.topology import Topology, load_topology
from ..state import board_rows
from ..terminal.plain_table import Column, figure, table_of

Prices = Mapping[str, float]
"""Chip, such as `v5p`, to US dollars an hour."""
HOUR = 3600.0


class Yield(Struct, frozen=True):
    """Tokens that a preset trains, by its predicted or measured step time."""

    per_chip_hour: float | None
    """None if the step time is unknown."""
    per_dollar: float | None
    """None without a price, too."""


def yield_of(row: Row, topology: Topology, prices: Prices) -> Yield:
    known = row.measured or row.timed
    if known is None or known.tokens_per_second is None:
        return Yield(None, None)
    per_chip_hour = known.tokens_per_second * HOUR / topology.chips
    price = prices.get(topology.name.partition(":")[0])
    return Yield(per_chip_hour, per_chip_hour / price if price else None)


def check_prices(prices: Prices, topologies: Sequence[Topology]) -> None:
    """Raises Invalid if a price is of a chip that no topology has."""
    planned = {topology.name.partition(":")[0] for topology in topologies}
    problems = [
        f"--price {chip}={price:g}: no --topology has that chip: the chips are {', '.join(sorted(planned))}"
        for chip, price in prices.items()
        if chip not in planned
    ]
    if problems:
        raise Invalid(*problems)


@dataclass(frozen=True)
class Best:
    """The best preset of a topology."""

    topology: Topology
    row: Row
    tokens: Yield

    @property
    def rank(self) -> tuple[bool, float, float]:
        """What fits first, then most tokens per dollar, or per hour of a chip."""
        return self.row.verdict != "fits", -(self.tokens.per_dollar or 0), -(self.tokens.per_chip_hour or 0)


def topologies_table(boards: Sequence[Board], prices: Prices) -> Table:
    columns: list[Column[Best]] = [
        Column("topology", lambda best: best.topology.title),
        figure("chips", lambda best: f"{best.topology.chips:,}"),
        Column("preset", lambda best: best.row.preset),
        Column("verdict", lambda best: board_rows.verdict(best.row)),
        figure("peak", lambda best: board_rows.peak_of_capacity(best.row)),
        figure("step time", lambda best: board_rows.step_time(best.row)),
        figure("tokens/s", lambda best: board_rows.tokens_rate(best.row)),
        figure("tokens/chip-hour", lambda best: _amount(best.tokens.per_chip_hour)),
        *([figure("tokens/$", lambda best: _amount(best.tokens.per_dollar))] if prices else []),
    ]
    planned = [(load_topology(board.topology), ranked(board.rows)[0]) for board in boards]
    found = [Best(topology, row, yield_of(row, topology, prices)) for topology, row in planned]
    rows = sorted(found, key=lambda each: each.rank)
    return table_of(columns, rows, title="best of each topology, predicted")


def _amount(tokens: float | None) -> str:
    return "" if tokens is None else figures.count(tokens)
