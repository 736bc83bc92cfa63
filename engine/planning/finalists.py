"""Which candidate of a search to compile next, and when to end. Does not import jax.

Meshes by estimates, which the compiled ones correct; settings of a fixed mesh by the compiled ones alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from ..hlo.step_cost import StepCost
from ..spec.checks import problems_of
from ..spec.config import RunConfig
from ..spec.model_config import KEPT, ModelConfig
from ..spec.preset import Preset
from .goal import Goal, configured, gain, pick
from .ranking import Row, Settings

SLACK: dict[Goal, float] = {"tokens-per-second": 2.0, "fits-largest-batch": 1.0, "least-traffic": 1.25}
"""A candidate is worth a compilation if it would be the best with an estimate that is so many times too low: step times
of small models are off by that much from mesh to mesh, bytes sent by less, and a batch is no estimate."""

MAX_OVERSIZE = 2.0
"""Presets that need more than this many times the capacity by their traces are compiled only if they are named."""
MOST_BATCHES = 6
MOST_PROGRAMS = 1 + MOST_BATCHES + 1 + len(KEPT)
"""Programs to compile for a preset at most: as asked, other batches, more micro-batches, remat policies."""
Alike = Callable[[Row], object]
LIKENESS: tuple[Alike, ...] = (
    lambda row: (frozenset(row.mesh.items()), row.settings.get("remat")),
    lambda row: frozenset(row.mesh.items()),
    lambda row: (frozenset(row.mesh), row.settings.get("remat")),
    lambda row: frozenset(row.mesh),
    lambda row: None,
)
"""Rows with the same one of these have estimates that are off by similar factors, those with the first one by the most
similar ones."""


def next_to_compile(rows: Sequence[Row], goal: Goal) -> Row | None:
    """Returns the most promising row that is neither compiled nor failed; None if none can be better than the best.
    Each estimate is corrected by those compiled rows that are most like it. What has other axes than all compiled rows
    comes first: how far off its estimate is, is not known. While nothing fits, the row that comes closest is the most
    promising."""
    compiled, left = _parted(rows)
    fitting = [row for row in left if _peak_share(row, compiled) <= 1]
    best = pick(compiled, goal)
    if best is None:
        if fitting:
            return max(fitting, key=lambda row: _expected_gain(row, compiled, goal))
        return min(left, key=lambda row: _peak_share(row, compiled), default=None)
    gains = [(_expected_gain(row, compiled, goal), row) for row in fitting]
    worth = [(expected, row) for expected, row in gains if expected * SLACK[goal] > gain(best, goal)]
    known = {frozenset(row.mesh) for row in compiled}
    promise = max(worth, key=lambda each: (frozenset(each[1].mesh) not in known, each[0]), default=None)
    return promise[1] if promise else None


def is_far_too_large(cost: StepCost | None) -> bool:
    return bool(cost and cost.capacity_bytes and cost.peak_bytes > MAX_OVERSIZE * cost.capacity_bytes)


def expected_figure(rows: Sequence[Row], goal: Goal) -> float | None:
    """Returns the best figure that one of the rows that are not compiled is expected to reach; None without any."""
    compiled, left = _parted(rows)
    gains = [_expected_gain(row, compiled, goal) for row in left if _peak_share(row, compiled) <= 1]
    best = max(gains, default=0.0)
    return None if not best else 1 / best if goal == "least-traffic" else best


def _parted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    left = [row for row in rows if row.estimate and not row.compiled and not row.problems]
    return [row for row in rows if row.compiled], left


def _expected_gain(row: Row, compiled: Sequence[Row], goal: Goal) -> float:
    known = [other for other in compiled if other.verdict == "fits" and _estimated_gain(other, goal)]
    return _estimated_gain(row, goal) * _correction(
        row, known, lambda other: gain(other, goal) / _estimated_gain(other, goal)
    )


def _estimated_gain(row: Row, goal: Goal) -> float:
    return gain(replace(row, compiled=None), goal)


def _peak_share(row: Row, compiled: Sequence[Row]) -> float:
    cost = row.estimate
    if cost is None or not cost.capacity_bytes:
        return 0.0
    share = cost.peak_bytes / cost.capacity_bytes
    known = [other for other in compiled if other.estimate and other.estimate.peak_bytes]
    return share * _correction(row, known, _peak_ratio)


def _peak_ratio(row: Row) -> float:
    assert row.compiled and row.estimate
    return row.compiled.peak_bytes / row.estimate.peak_bytes


def _correction(row: Row, known: Sequence[Row], ratio: Callable[[Row], float]) -> float:
    for likeness in LIKENESS:
        if alike := [ratio(other) for other in known if likeness(other) == likeness(row)]:
            return median(alike)
    return 1.0


def next_row(rows: Sequence[Row], config: RunConfig, preset: Preset, devices: int) -> Row | None:
    """Returns the row of a preset with other settings to compile next; None if there is none, or it fits as asked.
    Batch sizes come first, one at a time, to find the largest that fits. Then come changes that keep the batch: twice
    as many micro-batches, and the remat policies that keep less than the config's. `rows`: of the preset, compiled,
    being compiled or failed; the first one as asked."""
    first = rows[0]
    if first.compiled is None or first.compiled.fits:
        return None
    tried = [row.settings for row in rows]
    settings = next((each for each in _changes(rows, config, preset, devices) if each not in tried), None)
    if settings is None:
        return None
    training = config.training
    tokens = first.tokens * configured(config, settings).training.batch_size // training.batch_size
    return replace(first, settings=settings, tokens=tokens, estimate=None, compiled=None, problems=[])


def batch_limits(rows: Sequence[Row]) -> dict[str, tuple[int | None, int]]:
    """Returns, by preset, the largest batch size that fits with nothing else changed, if any does, and the smallest
    that is too large. Covers presets that do not fit as asked and were compiled with other batch sizes."""
    found: dict[str, tuple[int | None, int]] = {}
    for first in (row for row in rows if not row.settings and row.compiled and not row.compiled.fits):
        own = [row for row in rows if row.preset == first.preset]
        if batch := next((row for row in own if _is_batch(row) and row.compiled), None):
            peaks = _peaks(own, batch.tokens // int(batch.settings["batch_size"]))
            fitting = [size for size, peak in peaks.items() if peak <= _capacity(own)]
            found[first.preset] = max(fitting, default=None), min(peaks.keys() - set(fitting))
    return found


def next_batch(peaks: Mapping[int, int], capacity: int, least: int) -> int | None:
    """Returns the batch size to compile next, to find the largest that fits; None if it is found, or after enough.
    `peaks`: by batch size, with one that is too large. `least`: sizes are multiples of it. The first one is half the
    batch; then memory is taken to grow linearly with the batch, through the two peaks that are closest to the
    capacity."""
    low = max((size for size, peak in peaks.items() if peak <= capacity), default=0) // least
    high = -(-min(size for size, peak in peaks.items() if peak > capacity) // least)
    if high - low <= 1 or len(peaks) > MOST_BATCHES:
        return None
    guess = high // 2
    if len(peaks) > 1:
        (x, y), (other_x, other_y) = sorted(peaks.items(), key=lambda item: abs(item[1] - capacity))[:2]
        guess = int(x + (capacity - y) * (other_x - x) / (other_y - y)) // least if y != other_y else (low + high) // 2
    return least * min(max(guess, low + 1), high - 1)


def _changes(rows: Sequence[Row], config: RunConfig, preset: Preset, devices: int) -> Iterator[Settings]:
    training, model = config.training, config.model
    if not any(_is_batch(row) and not row.compiled and not row.problems for row in rows):
        least = preset.least_batch(devices, training.accumulate_steps)
        if size := next_batch(_peaks(rows, rows[0].tokens // training.batch_size), _capacity(rows), least):
            yield {"batch_size": size}
    steps = 2 * training.accumulate_steps
    more: Settings = {"accumulate_steps": steps}
    is_divided = not preset.stage_axes and training.batch_size % preset.least_batch(devices, steps) == 0
    if is_divided and not problems_of(configured(config, more)):
        yield more
    if not isinstance(model, ModelConfig) or model.remat in (True, "auto"):
        return
    failed = [row.settings.get("remat") for row in rows if row.compiled and not row.compiled.fits]
    too_large = [set(kept) for policy, kept in KEPT.items() if policy in failed]
    for policy, kept in KEPT.items():
        keeps_less = model.remat is False or set(kept) < set(KEPT[model.remat])
        if keeps_less and not any(less <= set(kept) for less in too_large):
            yield {"remat": policy}


def _is_batch(row: Row) -> bool:
    return row.settings.keys() == {"batch_size"}


def _peaks(rows: Sequence[Row], each: int) -> dict[int, int]:
    """Bytes at the peak by batch size, of what is compiled with nothing else changed. `each`: tokens of a sequence."""
    alike = [row for row in rows if row.settings.keys() <= {"batch_size"}]
    return {row.tokens // each: row.compiled.peak_bytes for row in alike if row.compiled}


def _capacity(rows: Sequence[Row]) -> int:
    return next(row.compiled.capacity_bytes or 0 for row in rows if row.compiled)
