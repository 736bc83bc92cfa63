"""The pipeline that a preset and a batch size result in."""

from msgspec import Struct


class PipelineInfo(Struct, frozen=True, kw_only=True):
    """Stages of consecutive blocks, which the batch passes through in micro-batches."""

    axes: list[str]
    """The mesh axes that the stages are split over."""
    stages: int
    """Stages, each with the same number of consecutive blocks."""
    microbatches: int
    """Micro-batches in a step."""
    bubble: float
    """The fraction of ticks that a stage is idle: (S - 1) / (M + S - 1) with S stages and M micro-batches."""

    @property
    def ticks(self) -> int:
        """Ticks in a pass: in each, a stage processes one micro-batch and hands it on to the next stage."""
        return self.microbatches + self.stages - 1
