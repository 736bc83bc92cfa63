"""The stages of a pipeline, as a preset and a batch make them."""

from msgspec import Struct

from ..base import figures


class PipelineInfo(Struct, frozen=True, kw_only=True):
    """Stacked blocks in stages, one behind the other, through which the batch passes in parts."""

    axes: list[str]
    """Of the mesh, along which the stages lie."""
    stages: int
    microbatches: int
    bubble: float
    """Part of the ticks in which a stage has nothing to do, (S - 1) / (M + S - 1) of S stages and M micro-batches."""

    @property
    def ticks(self) -> int:
        """In which a stage passes one micro-batch on, until the last one has left the last stage."""
        return self.microbatches + self.stages - 1

    @property
    def words(self) -> str:
        parts = f"{self.microbatches} micro-batch{'es' * (self.microbatches > 1)}"
        return f"{self.stages} stages, {parts}, bubble {figures.part(self.bubble)}"
