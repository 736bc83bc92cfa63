"""The first progress line comes at once, and later ones at a limited rate."""

import time

import pytest
from shardtui.tui.cli import headless
from shardtui.tui.cli.headless import Throttle


def test_a_throttle_is_due_at_first_and_once_its_seconds_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limited = Throttle()
    assert [limited.is_due(), limited.is_due()] == [True, False]
    now += headless.PROGRESS_SECONDS + 0.1
    assert [limited.is_due(), limited.is_due()] == [True, False]
