"""The step as a bar cut into its parts: the mean of the devices, and below it each device or group of devices."""

from collections.abc import Mapping, Sequence

from textual.content import Content

from ...engine.base import formatting
from ...engine.wire.step_breakdown import StepBreakdown
from ..state.alternative import Alternative
from ..state.bottleneck import suggestion
from .lines import TALL, Lines, StyledText, set_titles, wrapped

PARTS = {
    "products": ("█", "$success"),
    "fusions": ("▓", "$primary"),
    "copies": ("▒", "$secondary"),
    "exposed": ("=", "$warning"),
    "waiting": (":", "$error"),
    "other": ("+", "$text-muted"),
    "input": ("i", "$accent"),
    "host": ("h", "$accent"),
    "idle": ("·", "$foreground 40%"),
}
"""The parts of a bar: each has a sign, which tells the parts apart without colour, and its colour."""
NAMES = {"matrix products": "products", "other fusions": "fusions", "other programs": "other"}
LABEL_WIDTH = 10
"""Cells of a label, such as `1,234,567` or `1008–1023`, and a space."""
SHORT_ROWS, TALL_ROWS = 4, 8
"""Rows of devices in a low terminal, and in a tall one."""
TITLE = "where the time of a step goes"
"""While there is no breakdown."""


class StepBar(Lines):
    """The bars, what their signs mean, and what to try."""

    def __init__(self) -> None:
        super().__init__()
        self.breakdown: StepBreakdown | None = None
        self.texts: Sequence[StyledText] = ()
        set_titles(self, TITLE)

    def show_breakdown(
        self,
        breakdown: StepBreakdown,
        preset: str,
        subtitle: str,
        alternative: Alternative | None = None,
        more: Sequence[StyledText] = (),
    ) -> None:
        set_titles(self, title(preset, breakdown), subtitle)
        self.breakdown, self.texts = breakdown, [(suggestion(breakdown, alternative), "bold"), *more]
        self.draw()

    def show_hint(self, hint: str) -> None:
        set_titles(self, TITLE)
        self.breakdown, self.texts = None, [(hint, "")]
        self.draw()

    def draw(self) -> None:
        rows = TALL_ROWS if self.app.size.height >= TALL else SHORT_ROWS  # pyright: ignore[reportUnknownMemberType]
        bars = bar_lines(self.breakdown, self.size.width, rows) if self.breakdown else []
        lines = [*bars, *wrapped(self.texts, self.size.width)]
        self.styles.height = len(lines) + self.gutter.height
        self.show(lines)


def title(preset: str, breakdown: StepBreakdown) -> str:
    """Returns `dp-tp2: a step of 212 ms, by the clock 213 ms`."""
    if breakdown.predicted_for:
        return (
            f"{preset} on {breakdown.predicted_for}: a step of {formatting.seconds(breakdown.step_seconds)}, predicted"
        )
    clock = f", by the clock {formatting.seconds(breakdown.clock_seconds)}" if breakdown.clock_seconds else ""
    return f"{preset}: a step of {formatting.seconds(breakdown.step_seconds)}{clock}"


def bar_lines(breakdown: StepBreakdown, width: int, rows: int) -> list[Content]:
    """Returns the bars and their key."""
    room = max(8, width - LABEL_WIDTH)
    names = [part.name for part in breakdown.parts]
    mean = sums_of(names, [part.seconds for part in breakdown.parts])
    lines = [bar("mean", mean, breakdown.step_seconds, room)]
    if len(breakdown.devices) > 1:
        lines += [bar(name, times, breakdown.step_seconds, room) for name, times in device_rows(breakdown, rows)]
    return lines + _key(mean, breakdown.step_seconds, width)


def device_rows(breakdown: StepBreakdown, rows: int) -> list[tuple[str, Mapping[str, float]]]:
    """Returns a row for each device; for the mean of as many neighbours in the mesh as needed if they are too many."""
    together = -(-len(breakdown.devices) // rows)
    names = [part.name for part in breakdown.parts]
    found: list[tuple[str, Mapping[str, float]]] = []
    for at in range(0, len(breakdown.devices), together):
        group = breakdown.devices[at : at + together]
        mean = [sum(times) / len(group) for times in zip(*(device.seconds for device in group), strict=True)]
        last = f"–{group[-1].device}" if len(group) > 1 else ""
        found.append((f"{group[0].device}{last}", sums_of(names, mean)))
    return found


def sums_of(names: Sequence[str], seconds: Sequence[float]) -> Mapping[str, float]:
    """Sums the parts of a breakdown to the bar's: all collectives are exposed or waiting."""
    sums = dict.fromkeys(PARTS, 0.0)
    for name, time in zip(names, seconds, strict=True):
        sums[NAMES.get(name, name.rpartition(": ")[2])] += time
    return sums


def bar(label: str, times: Mapping[str, float], step: float, room: int) -> Content:
    """Returns one bar. Each part ends where the sum so far ends, so that all bars are equally long."""
    parts: list[tuple[str, str]] = []
    total, drawn = 0.0, 0
    for name, (sign, style) in PARTS.items():
        total += times[name]
        until = round(room * total / step)
        parts.append((sign * (until - drawn), style))
        drawn = until
    return Content.assemble((f"{label:<{LABEL_WIDTH}}", "$text-muted"), *parts)


def _key(times: Mapping[str, float], step: float, width: int) -> list[Content]:
    """The key of the signs, with the share of each part, in as many lines as it takes."""
    lines: list[Content] = []
    line = Content()
    for name, (sign, style) in PARTS.items():
        if not times[name]:
            continue
        item = Content.assemble((sign, style), f" {name} {formatting.percent(times[name] / step)}   ")
        if line.cell_length + item.cell_length > width + 3:
            lines.append(line)
            line = Content()
        line = Content.assemble(line, item)
    return [*lines, line]
