"""The rows of a board in words, for the table of a command and for the view. Nothing of it is drawn here."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...engine.base import figures
from ...engine.planning.ranking import Cost, Row
from ...engine.spec.topology import Wiring

OF_BATCH = re.compile(r": batch (\d+) does not divide by (\d+): ")
"""In problems of layouts."""


@dataclass(frozen=True)
class Errors:
    """Of the estimate, as parts of what the compiler says; None where that says nothing."""

    peak: float
    sent: float | None


def short_verdict(row: Row) -> str:
    """`fits`, `too large`, `infeasible`, or `batch 16 < 64 devices` where nothing else is wrong."""
    found = [OF_BATCH.search(problem) for problem in row.problems] if row.verdict == "infeasible" else []
    if not found or found[0] is None or not all(found):
        return row.verdict
    size, devices = map(int, found[0].groups())
    return f"batch {size:,} {'<' if size < devices else '÷'} {devices:,} devices"


def verdict(row: Row) -> str:
    """As above, and `too large by 4.1 GB`."""
    cost = row.cost
    if cost is None or cost.fits:
        return short_verdict(row)
    return f"{row.verdict} by {figures.size(cost.peak_bytes - (cost.capacity_bytes or 0))}"


def peak(row: Row) -> str:
    return figures.size(row.cost.peak_bytes) if row.cost else ""


def held(row: Row) -> str:
    """`9.87 GB, 58 %`: of its memory, by one device."""
    if row.cost is None or not row.cost.capacity_bytes:
        return peak(row)
    return f"{peak(row)}, {figures.part(row.cost.peak_bytes / row.cost.capacity_bytes)}"


def sent(row: Row) -> Cost | None:
    """The better known cost that says what moves."""
    return next((cost for cost in (row.compiled, row.estimate) if cost and cost.collectives is not None), None)


def source(row: Row) -> str:
    return "compiler" if row.compiled else "formula" if row.estimate else ""


def most_sent(row: Row) -> list[str]:
    """`fsdp 99.4 MB`, …: what is not less than a hundredth of all."""
    cost = sent(row)
    if cost is None:
        return []
    least = (cost.bytes_sent or 0) / 100
    told = [f"{axes} {figures.size(size)}" for axes, size in cost.sent_by_axis.items() if size and size >= least]
    return told or ["nothing"]


def errors(row: Row) -> Errors | None:
    """None where there is no estimate, or no compiled program to hold it against."""
    estimate, compiled = row.estimate, row.compiled
    if estimate is None or compiled is None:
        return None
    moved = None
    if estimate.bytes_sent is not None and compiled.bytes_sent:
        moved = estimate.bytes_sent / compiled.bytes_sent - 1
    return Errors(estimate.peak_bytes / max(1, compiled.peak_bytes) - 1, moved)


def off_by(row: Row) -> str:
    """`peak +4 %, sent −3 %`: the estimate."""
    found = errors(row)
    if found is None:
        return ""
    of_peak = f"peak {percent(found.peak)}"
    return of_peak if found.sent is None else f"{of_peak}, sent {percent(found.sent)}"


def percent(error: float) -> str:
    """`+4 %`, `−0.3 %`, `0 %`: of an error."""
    if abs(error) < 0.0005:
        return "0 %"
    return f"{error:+.{0 if abs(error) >= 0.0095 else 1}%}".replace("%", " %").replace("-", "−")


def run_on(wired: Wiring) -> str:
    """`ring x`, `line x and ring y of every 2nd chip`."""
    pairs = zip(wired.dims, wired.rings, wired.strides, strict=True)
    return " and ".join(_side(dim, ring, stride) for dim, ring, stride in pairs) or "one device"


def rate(wired: Wiring) -> str:
    return f"{wired.rate / 1e9:,.0f} GB/s"


def wires(row: Row) -> list[Wiring]:
    """Of the axes that have more than one device."""
    return [wired for wired in row.wiring if wired.size > 1]


def problems(rows: Sequence[Row]) -> list[str]:
    """A line each, those that several presets share once."""
    return _shared((row.preset, problem) for row in rows for problem in row.problems)


def no_estimates(rows: Sequence[Row]) -> list[str]:
    """Likewise."""
    return _shared((row.preset, line) for row in rows for line in no_estimate(row))


def _shared(lines: Iterable[tuple[str, str]]) -> list[str]:
    found: dict[str, list[str]] = {}
    for preset, line in lines:
        found.setdefault(line.removeprefix(f"{preset}: "), []).append(preset)
    return [f"{', '.join(presets)}: {line}" for line, presets in found.items()]


def no_estimate(row: Row) -> list[str]:
    """`no estimate: embed is split over model, which splits no tokens`, or nothing."""
    return [f"no estimate: {row.no_estimate}"] if row.no_estimate else []


def step_time(row: Row) -> str:
    cost = row.timed
    return figures.seconds(cost.step_seconds) if cost and cost.step_seconds else ""


def tokens_rate(row: Row) -> str:
    """`2.1 M`: tokens a second, of the whole slice."""
    cost = row.timed
    return figures.count(cost.tokens_per_second) if cost and cost.tokens_per_second else ""


def utilisation(row: Row) -> str:
    cost = row.timed
    return figures.part(cost.flop_utilisation) if cost and cost.flop_utilisation is not None else ""


def bound(row: Row) -> str:
    cost = row.timed
    return (cost and cost.bound) or ""


def _side(dim: str, ring: bool, stride: int) -> str:
    every = f" of every {_ordinal(stride)} chip" if stride > 1 else ""
    return f"{'ring' if ring else 'line'} {dim}{every}"


def _ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"
