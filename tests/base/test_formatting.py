"""Numbers of things in words."""

import re
from pathlib import Path

import pytest
from shardtui.engine.base.formatting import counted
from shardtui.engine.wire.events import CheckpointSaved, Evaluated, ProfileWriting, Profiling

ROOT = Path(__file__).parents[2]
OWN_PLURAL = re.compile(r"\{'(?:e?s)' (?:\*|if)")


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (1, "step", "1 step"),
        (0, "step", "0 steps"),
        (2000, "step", "2,000 steps"),
        (None, "op", "? ops"),
        (2, "micro-batch", "2 micro-batches"),
        (1, "more operation", "1 more operation"),
    ],
)
def test_a_number_of_things(count: int | None, noun: str, words: str) -> None:
    assert counted(count, noun) == words


def test_one_of_anything_is_singular_in_the_log() -> None:
    events = [
        Profiling(step=3, steps=1),
        ProfileWriting(step=3, steps=1),
        Evaluated(step=3, loss=1.0, batches=1, seconds=1.0),
        CheckpointSaved(step=3, bytes=10, arrays=1, seconds=1.0),
    ]
    lines = [event.line for event in events]
    assert not [line for line in lines if re.search(r"\b1 \w+s\b", line)], lines
    assert "1 batch in" in lines[2]


def test_plurals_are_made_in_one_place() -> None:
    files = [path for room in ("engine", "tui") for path in (ROOT / room).rglob("*.py")]
    assert [path.name for path in files if OWN_PLURAL.search(path.read_text())] == []
