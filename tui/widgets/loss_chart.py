"""The loss by step: its keys, its window and its cursor. `loss_plot` draws it."""

from typing import ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click

from ..bindings import identified
from ..state.goodput import goodput_words
from ..state.losses import Losses
from ..state.run_state import RunState
from .lines import TITLE_MARGIN, StateLines, set_titles
from .loss_plot import MIN_STEPS, Curve, Plot, draw_plot, mean_loss, right_edge
from .plot_axis import LABEL_WIDTH

LOSS = "loss"
NATS = ", nats per token"
HELD_OUT_LETTER, HELD_OUT_STYLE = "e", "$accent"
"""Marks the curve of the held-out losses."""
UNDER_LETTER, UNDER_STYLE = "u", "$success"
"""Marks the curve of another scalar under the loss."""
Mode = Literal["log axis", "smoothed", "under"]
"""How curves are drawn; `under`: the chosen one under the loss."""
GOODPUT_AFTER_SECONDS = 60.0
"""Wall time after which it is shown where it went: before, most of it is starting, and the shares change too often."""


class LossChart(StateLines, can_focus=True):
    """The loss curve with its axes, and a dotted vertical line with the preset's name at each switch."""

    HELP = """\
## Loss

The loss of each step, and a line with the preset's name at each switch; `↺` marks a restored checkpoint. **tab** moves
into the chart: **←** and **→** move a cursor that reads the loss of a step, **+** and **-** zoom in and out around it,
**,** and **.** move to earlier and later steps, **escape** shows all steps again. **l** changes to a logarithmic axis,
**S** smooths the curve: each loss is then the mean over 4 % of the shown steps. **g** draws the next scalar of a step,
such as the norm of the gradient, and **u** lays it under the loss, with a scale of its own. **i** draws the losses of
other runs under it, each with a letter at its end and in the legend above; `e` marks the held-out losses of this run.
The bottom line is the goodput: where the wall time went, of which steps should be nearly all.
"""
    BINDING_GROUP_TITLE = "Loss"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "loss",
        [
            Binding("right", "move(1)", "Cursor", key_display="←→"),
            Binding("left", "move(-1)", "Cursor left", show=False),
            Binding("plus", "zoom(0.5)", "Zoom", key_display="+-"),
            Binding("minus", "zoom(2)", "Zoom out", show=False),
            Binding("full_stop", "pan(1)", "Pan", key_display=",."),
            Binding("comma", "pan(-1)", "Pan back", show=False),
            Binding("escape", "reset", "All steps", show=False),
        ],
    )

    def on_mount(self) -> None:
        self.chosen = LOSS
        """Name of the curve that is drawn."""
        self.others: list[Curve] = []
        self.modes: set[str] = set()
        self.window: tuple[int, int] | None = None
        self.cursor: int | None = None

    @property
    def title(self) -> str:
        """Name and unit of the drawn curve."""
        if self.losses is not self.state.losses:
            return self.chosen
        return LOSS if self.state.watched or self.state.counted == "examples" else f"{LOSS}{NATS}"

    @property
    def losses(self) -> Losses:
        """The drawn curve."""
        return self.state.losses if "under" in self.modes else self.state.curves.get(self.chosen, self.state.losses)

    @property
    def curves(self) -> list[Curve]:
        """The curves under the drawn one: of other units, and other losses."""
        if self.losses is not self.state.losses:
            return []
        evaluations = self.state.evaluations
        held_out = [Curve("eval", evaluations, HELD_OUT_LETTER, HELD_OUT_STYLE)] if evaluations else []
        scalar = self.state.curves.get(self.chosen)
        under = [Curve(self.chosen, scalar, UNDER_LETTER, UNDER_STYLE, is_scaled=True)] if scalar else []
        return [*under, *held_out, *self.others]

    @property
    def plot(self) -> Plot:
        marks = [(0, self.state.first_preset), *self.state.marks]
        is_log, is_smooth = "log axis" in self.modes, "smoothed" in self.modes
        return Plot(self.losses, self.curves, marks, self.window, self.cursor, is_log, is_smooth)

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        if self.chosen not in state.curves:
            self.chosen = LOSS
        how = ", ".join(sorted(self.modes - {"under"}))
        set_titles(self, self.title + (f" ({how})" if how else ""), self.cursor_text() or self.goodput_text())
        return draw_plot(self.plot, width, self.size.height)

    def cursor_text(self) -> str:
        """Returns the step under the cursor and its loss in each curve; empty without a cursor."""
        if self.cursor is None or self.cursor >= len(self.losses):
            return ""
        step, reach = self.cursor, self.plot.reach
        under = [curve for curve in self.curves if isinstance(curve.losses, Losses)]
        curves = [("", self.losses), *((f" · {curve.letter} ", curve.losses) for curve in under)]
        values = ((letter, mean_loss(losses, step, step + 1, reach)) for letter, losses in curves if step < len(losses))
        texts = (f"{letter}{'not finite' if loss is None else f'{loss:.4f}'}" for letter, loss in values)
        held_out = self.state.evaluations.latest(step + 1)
        last = f" · eval {held_out[1]:.4f} at {held_out[0]:,}" if held_out else ""
        return f"step {step + 1:,}: {''.join(texts)}{last}"

    def goodput_text(self) -> str:
        """Returns where the wall time went, in as many words as fit; empty in the first minute."""
        goodput = self.state.goodput
        if goodput.wall_seconds < GOODPUT_AFTER_SECONDS:
            return ""
        return goodput_words(goodput, self.outer_size.width - TITLE_MARGIN)

    def action_move(self, cells: int) -> None:
        if not self.losses:
            return
        first, edge = self.plot.bounds
        each = max(1, (edge - first) // max(1, self.size.width - LABEL_WIDTH))
        start = min(edge, len(self.losses)) - 1 if self.cursor is None else self.cursor + cells * each
        self.put_cursor(start)

    def put_cursor(self, step: int) -> None:
        first, edge = self.plot.bounds
        self.cursor = max(first, min(step, edge - 1, len(self.losses) - 1))
        self.draw()

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        columns = self.size.width - LABEL_WIDTH
        if offset and self.losses and columns > 0 and offset.x >= LABEL_WIDTH:
            first, edge = self.plot.bounds
            self.put_cursor(first + (offset.x - LABEL_WIDTH) * (edge - first) // columns)

    def action_zoom(self, factor: float) -> None:
        """Shows `factor` times as many steps, around the cursor or, without one, up to the last step."""
        first, edge = self.plot.bounds
        length = max(MIN_STEPS, int((edge - first) * factor))
        middle = len(self.losses) - length // 2 if self.cursor is None else self.cursor
        self.show_window(middle - length // 2, length)

    def action_pan(self, direction: int) -> None:
        first, edge = self.plot.bounds
        self.show_window(first + direction * max(1, (edge - first) // 4), edge - first)

    def show_window(self, first: int, length: int) -> None:
        """Shows `length` steps from `first`, or all steps if these are all."""
        last = right_edge(self.plot.steps)
        first = max(0, min(first, last - length))
        self.window = None if length >= last else (first, first + length)
        if self.cursor is not None:
            self.put_cursor(self.cursor)
        self.draw()

    def choose(self, name: str) -> None:
        self.chosen = name
        self.draw()

    def choose_next(self) -> None:
        names = [LOSS, *self.state.curves]
        self.choose(names[(names.index(self.chosen) + 1) % len(names)])

    def toggle(self, mode: Mode) -> None:
        self.modes ^= {mode}
        self.draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "reset" or (self.window, self.cursor) != (None, None)

    def action_reset(self) -> None:
        self.window = self.cursor = None
        self.draw()

    def overlay(self, curves: list[Curve]) -> None:
        self.others = curves
        self.draw()
