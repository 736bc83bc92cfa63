"""Searches with a fixed mesh: which settings of a preset that is too large to compile next. Does not import jax."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ..spec.checks import problems_of
from ..spec.config import RunConfig
from ..spec.model_config import KEPT, ModelConfig
from ..spec.preset import Preset
from .goal import configured
from .ranking import Choice, Row

MOST_BATCHES = 6
"""Batch sizes to compile besides the one asked for."""
MOST_PROGRAMS = 1 + MOST_BATCHES + 1 + len(KEPT)
"""Programs to compile for a preset at most: as asked, other batches, more micro-batches, remat policies."""

Settings = dict[str, Choice]


def next_row(rows: Sequence[Row], config: RunConfig, preset: Preset, devices: int) -> Row | None:
    """Returns the row of a preset with other settings to compile next; None if there is none, or it fits as asked.

    Batch sizes come first, one at a time, to find the largest that fits. Then come changes that keep the batch: twice
    as many micro-batches, and the remat policies that keep less than the config's.

    `rows`: of the preset, compiled, being compiled or failed; the first one as asked.
    """
    first = rows[0]
    if first.compiled is None or first.compiled.fits:
        return None
    tried = [row.settings for row in rows]
    settings = next((each for each in _changes(rows, config, preset, devices) if each not in tried), None)
    if settings is None:
        return None
    tokens = configured(config, settings).training.tokens_per_step
    return replace(first, settings=settings, tokens=tokens, estimate=None, compiled=None)


def batch_limits(rows: Sequence[Row]) -> dict[str, tuple[int | None, int]]:
    """Returns, by preset, the largest batch size that fits with nothing else changed, if any does, and the smallest
    that is too large. Covers presets that do not fit as asked and were compiled with other batch sizes.
    """
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
    batch; then memory is taken to grow linearly with the batch, through the two peaks that are closest to the capacity.
    """
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
        if size := next_batch(_peaks(rows, training.seq_len), _capacity(rows), least):
            yield {"batch_size": size}
    steps = 2 * training.accumulate_steps
    more: Settings = {"accumulate_steps": steps}
    is_divided = not preset.stage_axes and training.batch_size % preset.least_batch(devices, steps) == 0
    if is_divided and not problems_of(configured(config, more)):
        yield more
    if not isinstance(model, ModelConfig) or model.remat is True:
        return
    failed = [row.settings.get("remat") for row in rows if row.compiled and not row.compiled.fits]
    too_large = [set(kept) for policy, kept in KEPT.items() if policy in failed]
    for policy, kept in KEPT.items():
        keeps_less = model.remat is False or set(kept) < set(KEPT[model.remat])
        if keeps_less and not any(less <= set(kept) for less in too_large):
            yield {"remat": policy}


def _is_batch(row: Row) -> bool:
    return row.settings.keys() == {"batch_size"}


def _peaks(rows: Sequence[Row], seq_len: int) -> dict[int, int]:
    """Bytes at the peak by batch size, of what is compiled with nothing else changed."""
    alike = [row for row in rows if row.settings.keys() <= {"batch_size"}]
    return {row.tokens // seq_len: row.compiled.peak_bytes for row in alike if row.compiled}


def _capacity(rows: Sequence[Row]) -> int:
    """Bytes available to a program on one device."""
    return next(row.compiled.capacity_bytes or 0 for row in rows if row.compiled)
