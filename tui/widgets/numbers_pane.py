"""The pane of an array's numbers: its family by layer as a heat map, and the shards that stand out."""

from collections.abc import Mapping, Sequence

from textual.content import Content

from ...engine.base import formatting
from ...engine.wire.number_events import UPDATE, ArrayNumbers, NumbersMeasured
from ..state.number_tables import NONFINITE, shard_words
from ..state.numbers import median, update_ratios
from .heat_map import FAINT, HeatRow, draw_heat_map
from .lines import Lines, set_titles, wrapped

NO_NUMBERS = "No numbers were measured: {key} measures now, --numbers-every N every N steps."
QUANTITIES = {"grad": "gradient", "update": "update"}
"""Names of the rows by the prefix of the array's name; others, such as `mu` of Adam, stand for themselves."""


class NumbersPane(Lines):
    """Layers × quantities: parameter, gradient, update and moments; below them the shards in words."""

    def on_mount(self) -> None:
        self.event: NumbersMeasured | None = None
        self.chosen = self.key = ""

    def show_numbers(self, event: NumbersMeasured | None, name: str, key: str) -> None:
        """`name`: the selected array. `key`: the key that measures."""
        self.event, self.chosen, self.key = event, name, key
        self.draw()

    def draw(self) -> None:
        if self.event is None:
            set_titles(self, "numbers")
            self.show(wrapped([(NO_NUMBERS.format(key=self.key), FAINT)], self.size.width))
            return
        by_name = {array.name: array for array in self.event.arrays}
        array = by_name.get(self.chosen)
        set_titles(self, self.chosen, f"step {self.event.step:,} · {self.event.preset}")
        self.show(self.lines_of(array, by_name) if array else [])

    def lines_of(self, array: ArrayNumbers, by_name: Mapping[str, ArrayNumbers]) -> list[Content]:
        width, height = self.size.width, self.size.height
        words = [(shard_words(shard), "$error" if shard.nonfinite else "$warning") for shard in array.shards]
        texts = wrapped(words, width, "  ")[: max(2, height // 3)]
        heat = (
            draw_heat_map("layer", heat_rows(array, by_name), width, reference="median")
            if array.is_stacked
            else figure_lines(array, by_name)
        )
        blank = [Content()] if len(heat) + len(texts) < height else []
        return [*heat[: height - len(texts)], *blank, *texts]


def family(array: ArrayNumbers, by_name: Mapping[str, ArrayNumbers]) -> dict[str, ArrayNumbers]:
    """Returns the arrays of one parameter by what they are to it: itself, its gradient, update and moments."""
    name = array.name.partition(".")[2] if array.kind in ("gradient", "moment", "update") else array.name
    base = by_name.get(name, array)
    if base.kind != "parameter":
        return {array.kind: array}
    found = {"parameter": base}
    for other in by_name.values():
        prefix, _, rest = other.name.partition(".")
        if rest == base.name and other.kind != "parameter" and len(other.rms) == len(base.rms):
            found[QUANTITIES.get(prefix, prefix)] = other
    return found


def heat_rows(array: ArrayNumbers, by_name: Mapping[str, ArrayNumbers]) -> list[HeatRow]:
    """Returns the root mean squares of the family by layer, the update ratio, and the largest of the array itself."""
    rows: list[HeatRow] = []
    for name, member in family(array, by_name).items():
        rows.append(_heat_row(name, member.rms, member, member is array))
        if name == "update":
            base = by_name[member.name.removeprefix(UPDATE)]
            rows.append(_heat_row("update ratio", [ratio or 0.0 for ratio in update_ratios(base, member)], member))
    return [*rows, _heat_row("max", array.max, array, is_chosen=True)]


def _heat_row(name: str, values: Sequence[float], array: ArrayNumbers, is_chosen: bool = False) -> HeatRow:
    wrong = frozenset(at for at, count in enumerate(array.nonfinite) if count)
    return HeatRow(name, values, median(values), wrong, is_chosen)


def figure_lines(array: ArrayNumbers, by_name: Mapping[str, ArrayNumbers]) -> list[Content]:
    """Returns the figures of the family of an array without layers."""
    lines = [Content.styled(f"{'':<14}{'rms':>9}{'max':>9}{'mean':>10}{'zeros':>8}{NONFINITE:>10}", FAINT)]
    for name, each in family(array, by_name).items():
        figures = zip((each.rms[0], each.max[0], each.mean[0]), (9, 9, 10), strict=True)
        texts = "".join(f"{formatting.number(value):>{width}}" for value, width in figures)
        lines.append(
            Content.assemble(
                (f"{name:<14}", "bold" if each is array else FAINT),
                f"{texts}{formatting.percent(each.zeros[0]):>8}",
                (f"{each.nonfinite[0]:>10,}", "bold $error" if each.nonfinite[0] else ""),
            )
        )
    return lines
