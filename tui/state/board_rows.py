"""The columns of a board, for the command's table and for the view, and what else is said of its rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from ...engine.base import formatting
from ...engine.hlo.step_cost import StepCost
from ...engine.planning.ranking import LEAST_TRUSTED, Row
from ...engine.spec.topology import Wiring
from ...engine.wire.descriptions import Counted
from ..terminal.plain_table import Column, figure

WIDE_FROM = 110
"""Least terminal columns at which a view has full titles and verdicts."""
STYLES = {"fits": "green", "too large": "yellow", "not known": "dim", "infeasible": "dim"}


@dataclass(frozen=True)
class Errors:
    peak: float
    sent: float | None
    """Of the bytes sent; None if one of the two is unknown, or nothing is sent."""


def columns(is_wide: bool = True, compiling: Sequence[str] = (), counted: str = "tokens") -> list[Column[Row]]:
    """Returns the columns of a board. `compiling`: titles of the rows that are being compiled. `counted`: tokens or
    examples."""
    said, used = (verdict, peak_of_capacity) if is_wide else (short_verdict, peak)
    return [
        Column("preset", (lambda row: row.title) if is_wide else _short_title, style="bold"),
        Column("verdict", lambda row: Text(said(row), STYLES[row.verdict])),
        Column("peak", used, is_figure=True, value=lambda row: row.cost.peak_bytes if row.cost else None),
        Column("sent/step", lambda row: [*most_sent(row), *overlapped(row)], leaves=1),
        figure("step time", lambda row: row.step_seconds, formatting.seconds),
        figure(f"{counted}/s", tokens_per_second, formatting.count, 3),
        figure("MFU", lambda row: row.timed.flop_utilisation if row.timed else None, formatting.percent, 5),
        Column("bound", lambda row: (row.timed and row.timed.bound) or "", leaves=4),
        Column("from", lambda row: "compiling" if row.title in compiling else source(row), style="dim"),
        Column("est. error", estimate_errors, leaves=2),
    ]


def _short_title(row: Row) -> str:
    """Returns the preset with its setting, or with the names of its settings: `fsdp8 +remat +batch_size`."""
    return row.title if len(row.settings) < 2 else " ".join([row.preset, *(f"+{key}" for key in row.settings)])


def short_verdict(row: Row) -> str:
    """Returns the verdict; of an infeasible preset the first dim that its devices do not divide, if that is why."""
    if row.verdict != "infeasible" or not row.indivisible:
        return row.verdict
    dim = row.indivisible[0]
    return f"{dim.logical_axis} {dim.size:,} {'<' if dim.size < dim.parts else '÷'} {dim.parts:,} devices"


def verdict(row: Row) -> str:
    """Returns the short verdict, with the excess per device if there is one: `too large by 4.1 GB`."""
    cost = row.cost
    if cost is None or cost.fits:
        return short_verdict(row)
    return f"{row.verdict} by {formatting.size(cost.peak_bytes - (cost.capacity_bytes or 0))}"


def scheduled(row: Row) -> str:
    """Returns the step time of a compiled program by the compiler's schedule; empty if unknown."""
    seconds = row.compiled.scheduled_seconds if row.compiled else None
    return f"predicted {formatting.seconds(seconds)} by the compiler's schedule and its estimates" if seconds else ""


def peak(row: Row) -> str:
    return formatting.size(row.cost.peak_bytes) if row.cost else ""


def peak_of_capacity(row: Row) -> str:
    """Returns the peak memory of a device, and its share of the capacity: `9.87 GB, 58 %`."""
    if row.cost is None or not row.cost.capacity_bytes:
        return peak(row)
    return f"{peak(row)}, {formatting.percent(row.cost.peak_bytes / row.cost.capacity_bytes)}"


def sent(row: Row) -> StepCost | None:
    """Returns the cost with the most reliable traffic: compiled, else estimated; None if neither has any."""
    return next((cost for cost in (row.compiled, row.estimate) if cost and cost.collectives is not None), None)


def with_peak(row: Row) -> StepCost | None:
    """Returns the most reliable cost of which the memory at the peak is known; None without one."""
    return next((cost for cost in (row.compiled, row.estimate) if cost and cost.at_peak), None)


def source(row: Row) -> str:
    return cost.basis if (cost := row.cost) else ""


def most_sent(row: Row) -> list[str]:
    """Returns what a device sends per step over each mesh axis, such as `fsdp 99.4 MB`, from a hundredth of all on."""
    cost = sent(row)
    if cost is None:
        return []
    least = (cost.bytes_sent or 0) / 100
    shown = [f"{axes} {formatting.size(size)}" for axes, size in cost.sent_by_axis.items() if size and size >= least]
    return shown or ["nothing"]


def overlapped(row: Row) -> list[str]:
    """Returns the share of what a compiled program sends that it overlaps with computation; empty if unknown."""
    share = row.compiled.overlapped_share if row.compiled else None
    return [] if share is None else [f"{formatting.percent(share)} overlapped"]


def errors(row: Row) -> Errors | None:
    estimate, compiled = row.estimate, row.compiled
    if estimate is None or compiled is None:
        return None
    moved = None
    if estimate.bytes_sent is not None and compiled.bytes_sent:
        moved = estimate.bytes_sent / compiled.bytes_sent - 1
    return Errors(estimate.peak_bytes / max(1, compiled.peak_bytes) - 1, moved)


def estimate_errors(row: Row) -> list[str]:
    """Returns the errors of the estimate as text, such as `peak +4 %` and `sent −3 %`; empty if unknown."""
    found = errors(row)
    if found is None:
        return []
    return [f"peak {percent(found.peak)}", *([] if found.sent is None else [f"sent {percent(found.sent)}"])]


def percent(error: float) -> str:
    """Returns a relative error as text: `+4 %`, `−0.3 %` or `0 %`."""
    if abs(error) < 0.0005:
        return "0 %"
    return f"{error:+.{0 if abs(error) >= 0.0095 else 1}%}".replace("%", " %").replace("-", "−")


def links(wired: Wiring) -> str:
    """Returns the links of some mesh axes as text: `ring x`, `line x and ring y, stride 2`, `DCN, 2 slices`."""
    return "; ".join(_rates(wired)) or "one device"


def rate(wired: Wiring) -> str:
    """Returns the bandwidth of a device over these links, in GB/s: `200 GB/s`, `200 GB/s; DCN 6.25 GB/s`."""
    between = "network " if wired.nvlink else "DCN "
    names = [""] * bool(_inside(wired)) + [between]
    return "; ".join(f"{name}{rate}" for name, rate in zip(names, _rates(wired).values(), strict=False) if rate)


def links_with_rates(wired: Wiring) -> str:
    """Returns both: `ring x, 200 GB/s; DCN, 2 slices, 6.25 GB/s`."""
    return "; ".join(f"{link}, {rate}" if rate else link for link, rate in _rates(wired).items())


def _rates(wired: Wiring) -> dict[str, str]:
    """The bandwidth of a device by the links that have it: those inside a slice or a host, then those between them."""
    found = dict.fromkeys(_inside(wired), f"{wired.rate / 1e9:,.0f} GB/s")
    if wired.slices > 1:
        between = f"network, {wired.slices} hosts" if wired.nvlink else f"DCN, {wired.slices} slices"
        found[between] = f"{wired.dcn_rate / 1e9:.3g} GB/s" if wired.dcn_rate else ""
    return found


def _inside(wired: Wiring) -> list[str]:
    if wired.size == wired.slices:
        return []
    if wired.nvlink:
        return ["NVLink"]
    pairs = zip(wired.dims, wired.rings, wired.strides, strict=True)
    return [" and ".join(_side(dim, ring, stride) for dim, ring, stride in pairs) or "inside a chip"]


def used_wirings(row: Row) -> list[Wiring]:
    return [wired for wired in row.wiring if wired.size > 1]


def problems(rows: Sequence[Row]) -> list[str]:
    return _shared((row.preset, problem) for row in rows for problem in row.problems)


def findings(row: Row) -> list[str]:
    return [f"{each.message}: {each.fix}" for each in row.findings]


def all_caveats(rows: Sequence[Row]) -> list[str]:
    return _shared((row.preset, line) for row in rows for line in caveats(row))


def _shared(lines: Iterable[tuple[str, str]]) -> list[str]:
    found: dict[str, list[str]] = {}
    for preset, line in lines:
        found.setdefault(line.removeprefix(f"{preset}: "), []).append(preset)
    return [f"{', '.join(presets)}: {line}" for line, presets in found.items()]


def caveats(row: Row) -> list[str]:
    """Why a row has no estimate, or one whose peak may be far off."""
    if row.is_small:
        small = formatting.size(LEAST_TRUSTED)
        return [f"a small peak: of less than {small}, the compiler may need a tenth of the estimate, or twice as much"]
    return [f"no estimate: {row.no_estimate}"] if row.no_estimate else []


def tokens_per_second(row: Row) -> float | None:
    return row.timed.tokens_per_second if row.timed else None


def counted_in(rows: Sequence[Row]) -> Counted:
    return rows[0].counted if rows else "tokens"


def _side(dim: str, ring: bool, stride: int) -> str:
    return f"{'ring' if ring else 'line'} {dim}" + (f", stride {stride}" if stride > 1 else "")
