"""The first progress line comes at once, and later ones at a limited rate."""

import time

from shardtui.tui.cli.throttle import Throttle


def test_a_throttle_is_due_at_first_and_once_its_seconds_have_passed() -> None:
    seldom, often = Throttle(3600.0), Throttle(0.001)
    assert (seldom.is_due(), often.is_due()) == (True, True)
    time.sleep(0.01)
    assert (seldom.is_due(), often.is_due()) == (False, True)
