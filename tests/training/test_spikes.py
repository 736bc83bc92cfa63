"""Spikes of the loss and of the gradient's norm."""

import math
import random

from shardtui.engine.training.spikes import Spikes
from shardtui.engine.wire.events import Spiked


def spikes_in(losses: list[float], norms: list[float]) -> list[Spiked]:
    spikes = Spikes()
    found = (
        spikes.add(step, {"loss": loss, "grad_norm": norm})
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1)
    )
    return [spike for spike in found if spike]


def falling(steps: int, seed: int = 0) -> tuple[list[float], list[float]]:
    draw = random.Random(seed)
    losses = [2 + 4 * math.exp(-step / 200) + draw.gauss(0, 0.05) for step in range(steps)]
    return losses, [draw.lognormvariate(0, 0.3) for _ in range(steps)]


def test_a_noisy_course_that_falls_has_no_spike() -> None:
    assert [spike for seed in range(20) for spike in spikes_in(*falling(1000, seed))] == []


def test_a_spike_is_reported_once_with_what_rose_before_it() -> None:
    losses, norms = falling(600)
    norms[396:430] = [60.0] * 34
    losses[399:430] = [9.0] * 31
    first, second = spikes_in(losses, norms)
    assert (first.step, first.name, first.value) == (397, "grad_norm", 60.0)
    assert (second.step, second.name, second.rose_before) == (400, "loss", {"grad_norm": 397})
    assert 2 < second.usual < 4 and (9.0 - second.usual) / second.deviation > 10
    assert 0.5 < first.usual < 2 and 0.1 < first.deviation < 1
    assert second.line.endswith("before it: grad_norm since step 397")


def test_what_is_not_finite_or_constant_is_no_spike() -> None:
    losses = [1.0] * 50 + [math.nan, math.inf] + [1.05] * 50
    assert spikes_in(losses, [0.0] * len(losses)) == []
