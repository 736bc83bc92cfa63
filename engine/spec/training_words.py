"""How a run trains, in one line: the settings that differ from the defaults."""

from collections.abc import Iterator

from ..base import figures
from .config import ModelConfig, RunConfig, TrainingConfig, WatchedRun


def training_words(about: RunConfig | WatchedRun) -> str:
    """Returns words such as `lion, cosine to 10 % over 2,000 steps`; empty if all is as by default."""
    return ", ".join(_settings(about)) if isinstance(about, RunConfig) else ""


def _settings(config: RunConfig) -> Iterator[str]:
    training = config.training
    if training.optimizer != "adamw":
        yield training.optimizer
    yield from _schedule(training)
    if training.moment_dtype != "auto":
        yield f"{training.moment_dtype} moments"
    if training.decay_mask == "matrices":
        yield "only matrices decay"
    if training.z_loss:
        yield f"z-loss {training.z_loss:g}"
    if isinstance(config.model, ModelConfig) and config.model.remat:
        yield "remat" if config.model.remat is True else f"remat {config.model.remat}"
    if training.accumulate_steps > 1:
        yield f"{training.accumulate_steps} micro-batches"


def _schedule(training: TrainingConfig) -> Iterator[str]:
    if training.schedule != "constant":
        share = figures.percent(training.final_share)
        yield f"{training.schedule} to {share} over {training.decay_steps:,} steps"
