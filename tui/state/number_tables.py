"""The columns of the numbers inside arrays, of one array's layers, and of shards that stand out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from ...engine.base import formatting
from ...engine.wire.number_events import ArrayNumbers, ShardNumbers
from ..terminal.plain_table import Column, figure
from .numbers import NumbersRow, outlier, whole
from .tables import share

BARS_OF_COURSE = 7
LEAST_SPAN = math.log(2)
"""The height of a course is at least a factor of 2, so that small changes look small."""
RMS, NONFINITE = "rms", "NaN/∞"
UNKNOWN = "–"


def _count(nonfinite: float) -> Text:
    return Text(f"{nonfinite:,}", "bold red" if nonfinite else "", justify="right")


def numbers_columns() -> list[Column[NumbersRow]]:
    """Returns the columns of arrays: of stacked ones figures of all layers together, and the range over them."""
    return [
        Column("array", lambda row: row.array.name, cut="left"),
        figure(RMS, lambda row: whole(row.array.rms), formatting.number),
        figure(NONFINITE, lambda row: sum(row.array.nonfinite), _count),
        Column("course", lambda row: course_bars(row.course), style="dim", leaves=5),
        figure("update ratio", lambda row: row.update_ratio, formatting.number, unknown=UNKNOWN),
        figure("max", lambda row: max(row.array.max), formatting.number, 4),
        Column("rms by layer", lambda row: layers_words(row.array), leaves=6),
        figure("mean", lambda row: sum(row.array.mean) / len(row.array.mean), partial(formatting.number, digits=2), 3),
        figure("zeros", lambda row: sum(row.array.zeros) / len(row.array.zeros) or None, share, 2),
        Column("kind", lambda row: row.array.kind, style="dim", leaves=1),
    ]


@dataclass(frozen=True)
class LayerRow:
    """One layer of an array, or all of one that is not stacked."""

    name: str
    at: int
    """Where its values stand in the lists."""
    row: NumbersRow


def layer_rows(row: NumbersRow) -> list[LayerRow]:
    array = row.array
    return [LayerRow(str(at) if array.is_stacked else "all", at, row) for at in range(len(array.rms))]


def ratio_of(each: LayerRow) -> float | None:
    return each.row.update_ratios[each.at] if each.row.update_ratios else None


LAYERS: Sequence[Column[LayerRow]] = (
    Column("layer", lambda each: each.name, is_figure=True),
    figure(RMS, lambda each: each.row.array.rms[each.at], formatting.number),
    figure("max", lambda each: each.row.array.max[each.at], formatting.number),
    figure("mean", lambda each: each.row.array.mean[each.at], formatting.number),
    figure("zeros", lambda each: each.row.array.zeros[each.at] or None, share),
    figure(NONFINITE, lambda each: each.row.array.nonfinite[each.at], _count),
    figure("update ratio", ratio_of, formatting.number, unknown=UNKNOWN),
)
"""Of the layers of one array."""

SHARDS: Sequence[Column[ShardNumbers]] = (
    figure("device", lambda shard: shard.device),
    Column("holds", lambda shard: ranges_words(shard)),
    figure(RMS, lambda shard: shard.rms, formatting.number),
    figure("max", lambda shard: shard.max, formatting.number),
    figure(NONFINITE, lambda shard: shard.nonfinite, _count),
)
"""Of shards that stand out."""


def course_bars(course: Sequence[float]) -> str:
    """Returns a bar for each of the last measurements, by the logarithm of the value; empty for fewer than two."""
    shown = [math.log(value) for value in course[-BARS_OF_COURSE:] if 0 < value < math.inf]
    if len(shown) < 2:
        return ""
    margin = max(0.0, LEAST_SPAN - (max(shown) - min(shown))) / 2
    return formatting.bars(shown, min(shown) - margin, max(shown) + margin)


def layers_words(array: ArrayNumbers) -> str:
    """Returns the range over the layers, and the one with most elements that are not finite or else the one that stands
    out: `0.021…3.4 (layer 7)`."""
    if not array.is_stacked:
        return ""
    worst = max(array.nonfinite)
    at = array.nonfinite.index(worst) if worst else outlier(array.rms)
    words = f"{formatting.number(min(array.rms), 2)}…{formatting.number(max(array.rms), 2)}"
    return words if at is None else f"{words} (layer {at})"


def ranges_words(shard: ShardNumbers) -> str:
    return f"[{', '.join(f'{begin}:{end}' for begin, end in shard.ranges)}]"


def shard_words(shard: ShardNumbers) -> str:
    """Returns a shard that stands out in words: `device 3 [0:64, 128:256]: rms 3.2e4, 40 × the others`."""
    texts = [f"{shard.nonfinite:,} NaN or inf"] if shard.nonfinite else []
    ratio = f", {formatting.number(shard.rms / shard.usual)} × the others" if shard.usual else ""
    texts.append(f"rms {formatting.number(shard.rms)}{ratio}")
    return f"device {shard.device} {ranges_words(shard)}: {', '.join(texts)}"
