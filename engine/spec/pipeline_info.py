"""The pipeline that a preset and a batch size result in."""

import math

from msgspec import Struct


class PipelineInfo(Struct, frozen=True, kw_only=True):
    """Stages of blocks, which the batch passes through in micro-batches, once or several times."""

    axes: list[str]
    """The mesh axes that the stages are split over."""
    stages: int
    """Stages, each with the same number of blocks."""
    microbatches: int
    """Micro-batches in a step."""
    repeats: int = 1
    """Passes of each micro-batch through all stages: a stage has that many chunks of consecutive blocks, and chunk c
    of all is in stage c % stages."""
    bubble: float
    """The fraction of ticks that a stage is idle: (S - 1) / (R M + S - 1) with S stages, M micro-batches and R repeats.
    """

    @property
    def ticks(self) -> int:
        """Ticks in a pass: in each, a stage processes one micro-batch and hands it on to the next stage."""
        return self.repeats * self.microbatches + self.stages - 1

    @property
    def exchanges(self) -> list[list[int]]:
        """The permutations that take stages from consecutive chunks to interleaved ones, each with the chunks that
        stages send. With R repeats, stage s has the chunks R s … R s + R - 1, and chunk c goes to stage c % S, to be
        number c // S there, in permutation (c + c // lcm(R, S)) % R: in none does a stage send or receive two."""
        block, chunks = math.lcm(self.repeats, self.stages), range(self.repeats * self.stages)
        return [[c for c in chunks if (c + c // block) % self.repeats == number] for number in range(self.repeats)]

    @property
    def moves(self) -> int:
        """How many of the permutations move any chunk to another stage."""
        return sum(any(c % self.stages != c // self.repeats for c in sent) for sent in self.exchanges)
