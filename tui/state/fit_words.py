"""What would make a step fit, in words."""

from collections.abc import Sequence

from ...engine.base import figures
from ...engine.planning.fitting import Fit, Trial
from ...engine.planning.ranking import settings_of

COLUMNS = ("change", "fits", "peak", "of a device", "step time", "tokens/s")
"""Columns of a table of trials."""


def change(trial: Trial, first: Trial) -> str:
    """Returns what differs from the first trial, as `--preset` and `--set` take it; `as asked` for the first itself."""
    pairs = {
        "preset": (trial.preset, first.preset),
        "batch_size": (trial.batch_size, first.batch_size),
        "accumulate_steps": (trial.accumulate_steps, first.accumulate_steps),
        "remat": (trial.remat, first.remat),
    }
    changed = {name: value for name, (value, before) in pairs.items() if value != before}
    return " ".join(settings_of(changed)) or "as asked"


def trial_cells(trial: Trial, fit: Fit) -> dict[str, str]:
    """Returns the cells of a trial, by `COLUMNS`."""
    peak = trial.peak_bytes
    fits = {True: "fits", False: "too large", None: "not compiled"}[trial.fits]
    share = "" if peak is None else figures.percent(peak / fit.capacity_bytes)
    time = "" if trial.step_seconds is None else figures.seconds(trial.step_seconds)
    rate = "" if trial.tokens_per_second is None else figures.count(trial.tokens_per_second)
    cells = (change(trial, fit.trials[0]), fits, "" if peak is None else figures.size(peak), share, time, rate)
    return dict(zip(COLUMNS, cells, strict=True))


def ordered(fit: Fit) -> list[Trial]:
    """Returns the trials: what was asked for, other batch sizes from the largest, then changes, the fastest first."""
    first, *rest = fit.trials
    batches = [trial for trial in rest if trial.differs_only_in_batch(first)]
    batches.sort(key=lambda trial: -trial.batch_size)
    return [first, *batches, *sorted(fit.changes, key=_rank)]


def conclusion(fit: Fit) -> str:
    """Returns the largest batch size that fits, and the best change that keeps the batch size, in one sentence."""
    if not fit.trials or fit.trials[0].fits is not False:
        return ""
    return "; ".join([_batch(fit), *([_best(fit)] if fit.changes else [])])


def problems(fit: Fit) -> list[str]:
    """Returns why trials were not compiled, a line each."""
    return [f"{change(trial, fit.trials[0])}: {trial.problem}" for trial in fit.trials if trial.problem]


def _batch(fit: Fit) -> str:
    first, largest, least = fit.trials[0], fit.largest_batch, fit.least_too_large
    if largest is None:
        return f"{first.preset}: no batch size that was compiled fits, the smallest of them {least:,}"
    return f"{first.preset} fits with batch_size={largest}, not with {least:,}"


def _best(fit: Fit) -> str:
    size = fit.trials[0].batch_size
    fitting = sorted((trial for trial in fit.changes if trial.fits), key=_rank)
    if not fitting:
        return f"with {size:,}, no other change that was compiled makes it fit" + _closest(fit.changes, fit)
    rate = fitting[0].tokens_per_second
    bound = f", {figures.count(rate)} tokens/s at most" if rate else ""
    return f"with {size:,}, {change(fitting[0], fit.trials[0])} fits{bound}"


def _closest(changes: Sequence[Trial], fit: Fit) -> str:
    known = {trial.peak_bytes: trial for trial in changes if trial.peak_bytes is not None}
    if not known:
        return ""
    return f": {change(known[min(known)], fit.trials[0])} comes closest, {figures.size(min(known))}"


def _rank(trial: Trial) -> tuple[bool, bool, float, int]:
    return trial.fits is not True, trial.fits is None, -(trial.tokens_per_second or 0.0), trial.peak_bytes or 0
