"""A run whose loss is not finite at a step: it pauses as it was before, and says where the value comes from."""

from itertools import chain
from pathlib import Path

import pytest
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import CheckpointSaved, Explaining, NonfiniteExplained, Paused
from shardtui.engine.wire.run_directory import find

from .. import nonfinite_model
from ..command import answered

SOURCE = Path(nonfinite_model.__file__).read_text()


@pytest.mark.parametrize(
    ("options", "start"),
    [((), "from the start"), pytest.param(("--checkpoint-every=2",), "from step 2", marks=pytest.mark.core)],
)
def test_the_run_pauses_before_the_step_and_says_why(
    home: Path, tmp_path: Path, options: tuple[str, ...], start: str
) -> None:
    bad = tmp_path / "bad.py"
    zero = "np.where((np.arange(batch_size) == 5) & (step == 3), np.float32(0), ones)"
    bad.write_text(SOURCE.replace('"probability": ones', f'"probability": {zero}'))
    result = answered("train", f"--model={bad}:build", "--batch-size=16", "--steps=6", "--run=bad", *options)
    assert result.returncode == 1
    assert f"step 4 is not finite: repeating {start} to find where it comes from" in result.stderr
    assert "paused at step 3: the loss of step 4 is not finite, first in `log` (bad.py:" in result.stderr
    events = [*chain.from_iterable(LogReader(find("bad").events).read())]
    assert [type(event) for event in events if isinstance(event, Explaining | NonfiniteExplained | Paused)] == [
        Explaining,
        NonfiniteExplained,
        Paused,
    ]
    assert max(event.step for event in events if isinstance(event, CheckpointSaved)) == 3, "the state before is kept"
