"""Evaluates the held-out data every so many steps."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..data.batches import Batches
from ..wire.events import Evaluated
from .inputs import DeviceBatches
from .progress import Progress
from .tools import Tools


@dataclass(frozen=True)
class Evaluator:
    """Computes the mean loss of the same held-out batches each time, in all processes before the same step."""

    tools: Tools
    held_out: Batches | None

    def is_due(self, step: int) -> bool:
        config = self.tools.config.evaluation
        return config is not None and step % config.every_steps == 0

    def evaluate(self, at: Progress) -> None:
        """Waits for the step in flight, then evaluates; the time this takes counts for no step. Changes no state.
        Raises Invalid if a held-out batch cannot be read."""
        config = self.tools.config.evaluation
        assert config and self.held_out
        at.reports.flush()
        began, count = time.perf_counter(), min(config.batches, self.held_out.full_batches)
        loss = float(f"{math.fsum(self._losses(at, self.held_out, count)) / count:.9g}")  # all digits of a float32
        at.eval_loss = loss if math.isfinite(loss) else None
        self.tools.publish(
            Evaluated(
                step=at.done,
                loss=at.eval_loss,
                batches=count,
                seconds=time.perf_counter() - began,
                nonfinite=["loss"] if at.eval_loss is None else [],
            )
        )
        at.reports.restart_clock()

    def _losses(self, at: Progress, held_out: Batches, count: int) -> Iterator[float]:
        """Yields the loss of each batch; the next one is read while the devices compute."""
        assert at.program.held_out_loss
        feed, running = DeviceBatches(held_out, self.tools.cluster.count), None
        for number in range(count):
            batch = feed.batch(number, at.program)
            if running is not None:
                yield float(running)
            running = at.program.held_out_loss(at.state, batch)
        assert running is not None
        yield float(running)
