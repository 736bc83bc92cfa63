"""What tokens cost on a topology: per hour of a chip, and per dollar."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...engine.base.invalid import Invalid
from ...engine.planning.ranking import Row
from ...engine.spec.topology import Topology

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
    """Returns what a preset yields on a topology."""
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
