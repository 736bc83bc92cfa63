"""The parts of the step over the course of the run: a bar for each breakdown, the latest at the bottom."""

from collections.abc import Mapping, Sequence

from textual.content import Content

from ...engine.base import formatting
from ...engine.wire.events import PartsMeasured
from .lines import Lines, set_titles, wrapped
from .step_bar import LABEL_WIDTH, PARTS, bar, sums_of

TIME_WIDTH = 9
"""Cells for the step time to the right of a bar."""


class PartsHistory(Lines, can_focus=True):
    """A bar cut into the parts of the step for each breakdown; means of neighbours if there are more than lines."""

    HELP = """\
## History

The parts of the step in the course of the run, with the signs of the bars above: one bar for each time that
`--profile-every` has measured them, and for each profile. On the left is the step, on the right how long it took. If
there are more than lines, a bar is the mean of neighbours under the same preset.
"""

    def on_mount(self) -> None:
        self.measured: Sequence[PartsMeasured] = ()
        self.hint = ""

    def show_history(self, measured: Sequence[PartsMeasured], hint: str) -> None:
        """Shows the breakdowns, in order. `hint`: how to get some."""
        self.measured, self.hint = measured, hint
        self.draw()

    def draw(self) -> None:
        count = len(self.measured)
        set_titles(
            self, "the parts of the step over the run", f"{count} breakdown{'s' * (count != 1)}" if count else ""
        )
        if self.measured:
            self.show(history_lines(self.measured, self.size.width, self.size.height))
        else:
            self.show(wrapped([(self.hint, "")], self.size.width))


def history_lines(measured: Sequence[PartsMeasured], width: int, rows: int) -> list[Content]:
    """Returns a bar for each breakdown, or for each group of neighbours: at most `rows`, the latest of them."""
    room = max(8, width - LABEL_WIDTH - TIME_WIDTH)
    return [_line(group, room) for group in folded(measured, rows)]


def folded(measured: Sequence[PartsMeasured], rows: int) -> list[Sequence[PartsMeasured]]:
    """Returns groups of neighbours under the same preset, as small as fit into so many rows; the latest if none fit."""
    size = 1
    while len(groups := _groups(measured, size)) > rows and size < len(measured):
        size += 1
    return groups[-rows:] if rows > 0 else []


def _groups(measured: Sequence[PartsMeasured], size: int) -> list[Sequence[PartsMeasured]]:
    groups: list[list[PartsMeasured]] = []
    for each in measured:
        if groups and len(groups[-1]) < size and groups[-1][-1].preset == each.preset:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [*groups]


def _line(group: Sequence[PartsMeasured], room: int) -> Content:
    seconds = sum(each.step_seconds or 0.0 for each in group) / len(group)
    sums: Mapping[str, float] = {name: sum(_times(each)[name] for each in group) / len(group) for name in PARTS}
    time = formatting.seconds(seconds)
    return Content.assemble(bar(f"{group[-1].step:,}", sums, seconds, room), f"{time:>{TIME_WIDTH}}")


def _times(each: PartsMeasured) -> Mapping[str, float]:
    return sums_of([part.name for part in each.parts], [part.seconds for part in each.parts])
