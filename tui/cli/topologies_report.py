"""The table of `shardtui plan` over several topologies: the best preset of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Column, Table
from rich.text import Text

from ...engine.base import figures
from ...engine.planning.ranking import Board, Row, ranked
from ...engine.spec.topology import Topology, load_topology
from ..state import board_rows
from ..state.chip_hours import Prices, Yield, yield_of
from ..terminal.plain_table import plain_table, right


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

    def cells(self, prices: Prices) -> list[Text]:
        """Returns the cells of its row."""
        amounts = [self.tokens.per_chip_hour, *([self.tokens.per_dollar] if prices else [])]
        texts = [
            *(self.topology.title, f"{self.topology.chips:,}", self.row.preset, board_rows.verdict(self.row)),
            *(board_rows.peak_of_capacity(self.row), board_rows.step_time(self.row), board_rows.tokens_rate(self.row)),
            *("" if amount is None else figures.count(amount) for amount in amounts),
        ]
        return [Text(text) for text in texts]


def topologies_table(boards: Sequence[Board], prices: Prices) -> Table:
    """Returns the best preset of each board."""
    table = plain_table(
        Column("topology", overflow="fold"),
        *(right("chips"), Column("preset", overflow="fold"), "verdict", right("peak"), right("step time")),
        *(right("tokens/s"), right("tokens/chip-hour")),
        *([right("tokens/$")] if prices else []),
        title="best of each topology, predicted",
    )
    planned = [(load_topology(board.topology), ranked(board.rows)[0]) for board in boards]
    found = [Best(topology, row, yield_of(row, topology, prices)) for topology, row in planned]
    for best in sorted(found, key=lambda each: each.rank):
        table.add_row(*best.cells(prices))
    return table
