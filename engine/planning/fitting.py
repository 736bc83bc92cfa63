"""What would make a program fit that is too large: what to compile next, and what was found. Does not import jax."""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..spec.checks import problems_of
from ..spec.config import RunConfig
from ..spec.model_config import KEPT, ModelConfig, RematPolicy
from ..spec.preset import Preset
from ..wire.descriptions import PeakBuffer, PeakMemory

MOST_BATCHES = 6
"""Batch sizes to compile besides the one that was asked for."""


class Trial(Struct, frozen=True, kw_only=True):
    """A step that was compiled to see whether it fits. What differs from the first one is its change."""

    preset: str
    """Name of the preset."""
    batch_size: int
    """Sequences in the global batch."""
    accumulate_steps: int
    """Micro-batches of the step."""
    remat: bool | RematPolicy
    """What of a block is recomputed; false for a model of one's own."""
    peak_bytes: int | None = None
    """Most bytes that a step holds on one device, by the compiler; null if it was not compiled."""
    fits: bool | None = None
    """Whether that is within the capacity of a device; null if it was not compiled."""
    step_seconds: float | None = None
    """Time of a step by the roofline; null if unknown, as for a program that a TPU compiler rejects."""
    tokens_per_second: float | None = None
    """Tokens per second of all devices by that time."""
    problem: str = ""
    """Why it was not compiled."""

    def differs_only_in_batch(self, other: "Trial") -> bool:
        """Whether both are alike but for the batch size."""
        settings = other.preset, other.accumulate_steps, other.remat
        return (self.preset, self.accumulate_steps, self.remat) == settings


class Fit(Struct, frozen=True, kw_only=True):
    """What was compiled to find how a step could fit."""

    capacity_bytes: int
    """Bytes available to a program on one device."""
    trials: list[Trial]
    """In the order in which they were compiled: first what was asked for, then batch sizes, then one change each."""
    at_peak: PeakMemory | None = None
    """The peak of the memory with the largest batch that fits: a program that is too large has no text to read it from.
    Null if no batch size that was compiled fits."""
    peak_buffers: list[PeakBuffer] = []
    """What fills the memory at that peak: the 20 largest buffers, the largest first."""

    @property
    def batches(self) -> dict[int, int]:
        """Bytes at the peak by batch size, of what was compiled with nothing else changed."""
        alike = (trial for trial in self.trials if trial.differs_only_in_batch(self.trials[0]))
        return {trial.batch_size: trial.peak_bytes for trial in alike if trial.peak_bytes is not None}

    @property
    def largest_batch(self) -> int | None:
        """The largest batch size that was compiled and fits, with nothing else changed; None if none does."""
        return max((size for size, peak in self.batches.items() if peak <= self.capacity_bytes), default=None)

    @property
    def least_too_large(self) -> int | None:
        """The smallest batch size that was compiled and does not fit; None if all do."""
        return min((size for size, peak in self.batches.items() if peak > self.capacity_bytes), default=None)

    def rules_out(self, trial: Trial) -> bool:
        """Returns whether a trial keeps all that a remat policy keeps with which the step is too large."""
        too_large = [KEPT[each.remat] for each in self.trials if each.fits is False and isinstance(each.remat, str)]
        kept = set(KEPT[trial.remat]) if isinstance(trial.remat, str) else set[str]()
        return any(set(less) <= kept for less in too_large)

    @property
    def changes(self) -> list[Trial]:
        """What was compiled with the batch that was asked for, and another change."""
        first = self.trials[0]
        return [trial for trial in self.trials if not trial.differs_only_in_batch(first)]


def tried(config: RunConfig, preset: str) -> Trial:
    """Returns the settings of a step that is to be compiled."""
    remat = config.model.remat if isinstance(config.model, ModelConfig) else False
    training = config.training
    return Trial(preset=preset, batch_size=training.batch_size, accumulate_steps=training.accumulate_steps, remat=remat)


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


def with_other_batch(config: RunConfig, batch_size: int) -> RunConfig:
    """Returns the config with another batch size."""
    return replace(config, training=replace(config.training, batch_size=batch_size))


def accumulated(config: RunConfig, preset: Preset, devices: int) -> Iterator[RunConfig]:
    """Yields the config with twice as many micro-batches, if the batch divides into them."""
    training = config.training
    steps = 2 * training.accumulate_steps
    if not preset.stage_axes and training.batch_size % preset.least_batch(devices, steps) == 0:
        changed = replace(config, training=replace(training, accumulate_steps=steps))
        if not problems_of(changed):
            yield changed


def rematerialized(config: RunConfig) -> Iterator[RunConfig]:
    """Yields the config with each remat policy that keeps less than its own, the one that keeps least first."""
    model = config.model
    if not isinstance(model, ModelConfig) or model.remat is True:
        return
    for policy, kept in KEPT.items():
        if model.remat is False or set(kept) < set(KEPT[model.remat]):
            yield replace(config, model=replace(model, remat=policy))
