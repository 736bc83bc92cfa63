"""A pipeline's schedule as text."""

from ...engine.base import figures
from ...engine.spec.pipeline_info import PipelineInfo


def pipeline_words(info: PipelineInfo) -> str:
    """Returns a schedule such as `2 stages, 4 micro-batches, bubble 20 %`, with `2 repeats` if there are several."""
    repeats = f"{info.repeats} repeats, " if info.repeats > 1 else ""
    parts = f"{info.microbatches} micro-batch{'es' * (info.microbatches > 1)}"
    return f"{info.stages} stages, {repeats}{parts}, bubble {figures.percent(info.bubble)}"
