"""The list of a watched program's scalars. The chart draws the highlighted one."""

from collections.abc import Sequence
from itertools import takewhile

from textual.content import Content

from ..state.losses import Losses
from ..state.run_state import RunState
from .choices import Choices
from .headline import SPARK_CELLS, course, spark
from .lines import set_titles
from .loss_chart import LOSS

VALUE_WIDTH = 10
SPARK_FROM = 36
"""Cells of a row from which it has a sparkline."""


class CurveList(Choices):
    """A row for each scalar that the step returns: its name, its last value and its course."""

    HELP = """\
## Curves

Every floating scalar that the program's step returns, by its path in the results, with its last value: the chart draws
the one under the cursor. A non-finite value is `nan`.
"""
    BINDING_GROUP_TITLE = "Curves"

    def on_mount(self) -> None:
        set_titles(self, "curves")
        self.state = RunState()

    def on_resize(self) -> None:
        self.show_state(self.state)

    def show_state(self, state: RunState) -> None:
        """Redraws the rows that changed."""
        self.state = state
        width = self.scrollable_content_region.width - 1
        curves = {LOSS: state.losses, **state.curves}
        shared = shared_keys([*state.curves])
        rows = {name: _row(name.removeprefix(shared), curve, width) for name, curve in curves.items()}
        self.show_rows(rows)
        if self.highlighted is None:
            self.put_cursor_on(LOSS)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "select"  # the cursor chooses


def shared_keys(names: Sequence[str]) -> str:
    """Returns the keys with which all of several names begin: `metrics/` of `metrics/norm` and `metrics/rate`."""
    if len(names) < 2:
        return ""
    keys = zip(*(name.split("/")[:-1] for name in names), strict=False)
    return "".join(f"{same[0]}/" for same in takewhile(lambda each: len({*each}) == 1, keys))


def _row(name: str, curve: Losses, width: int) -> Content:
    """Returns one row: `grad_norm  0.8935 ▁▂▅▃`. A long name loses its beginning, a narrow row the course."""
    value = f"{curve[-1]:.4g}".rjust(VALUE_WIDTH) if curve else ""
    sparkline = ""
    if width >= SPARK_FROM:
        sparkline = " " + spark(course(curve)).rjust(SPARK_CELLS)
    room = max(4, width - len(value) - len(sparkline))
    shown = name if len(name) <= room else f"…{name[1 - room :]}"
    return Content.assemble(shown.ljust(room), (value, "bold"), (sparkline, "$text-muted"))
