"""A run's training in words: what differs from the default."""

from collections.abc import Iterator

from ..base import formatting
from .config import RunConfig, WatchedRun
from .model_config import ModelConfig


def training_words(about: RunConfig | WatchedRun, chosen: bool | str | None = None) -> str:
    """Returns words like `lion, cosine to 10 % over 2,000 steps`; empty if all is as by default. `chosen`: the remat of
    the program, which says what `auto` is; None while there is none."""
    return ", ".join(_settings(about, chosen)) if isinstance(about, RunConfig) else ""


def _settings(config: RunConfig, chosen: bool | str | None) -> Iterator[str]:
    training = config.training
    if training.optimizer != "adamw":
        yield training.optimizer
    if training.schedule != "constant":
        share = formatting.percent(training.final_share)
        yield f"{training.schedule} to {share} over {formatting.counted(training.decay_steps, 'step')}"
    if training.moment_dtype != "auto":
        yield f"{training.moment_dtype} moments"
    if training.decay_mask == "matrices":
        yield "only matrices decay"
    if training.z_loss:
        yield f"z-loss {training.z_loss:g}"
    if isinstance(config.model, ModelConfig) and config.model.remat:
        is_chosen = config.has_automatic_remat and chosen is not None
        yield remat_words(config.model.remat) + (f": {chosen}" if is_chosen else "")
    if training.accumulate_steps > 1:
        yield f"{training.accumulate_steps} micro-batches"


def remat_words(remat: bool | str) -> str:
    return "remat" if remat is True else f"remat {remat}"
