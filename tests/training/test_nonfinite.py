"""A run whose loss is not finite at a step: it pauses as it was before, and says where the value comes from."""

from itertools import chain
from pathlib import Path

import pytest
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import CheckpointSaved, Explaining, NonfiniteExplained, Paused
from shardtui.engine.wire.run_directory import find

from ..command import answered

GOES_WRONG = Path(__file__).parents[2] / "docs/examples/goes_wrong.py"


@pytest.mark.parametrize(
    ("options", "start"),
    [
        pytest.param((), "from the start", marks=pytest.mark.core),
        pytest.param(("--checkpoint-every=100",), "from step 200", marks=pytest.mark.slow),
    ],
)
def test_the_run_pauses_before_the_step_and_says_why(home: Path, options: tuple[str, ...], start: str) -> None:
    model = f"--model={GOES_WRONG}:Regression"
    result = answered("train", model, "--batch-size=16", "--steps=300", "--run=bad", *options)
    assert result.returncode == 1
    assert "step 150: loss 278" in result.stderr, "the spike"
    assert f"step 250 is not finite: repeating {start} to find where it comes from" in result.stderr
    where = "first in `div` (goes_wrong.py:25): 1 of 16 elements NaN (batch 5) on device 2"
    assert f"paused at step 249: the loss of step 250 is not finite, {where}" in result.stderr
    events = [*chain.from_iterable(LogReader(find("bad").events).read())]
    assert [type(event) for event in events if isinstance(event, Explaining | NonfiniteExplained | Paused)] == [
        Explaining,
        NonfiniteExplained,
        Paused,
    ]
    assert max(event.step for event in events if isinstance(event, CheckpointSaved)) == 249, "the state before is kept"


@pytest.mark.core
def test_a_run_that_stops_at_its_last_step_keeps_the_state_before_it(home: Path) -> None:
    model = f"--model={GOES_WRONG}:Regression"
    result = answered("train", model, "--batch-size=16", "--steps=250", "--run=bad", "--on-nonfinite=stop")
    assert "first in `div` (goes_wrong.py:25)" in result.stderr
    assert "checkpoint of step 249" in result.stderr
