"""Settings of the tests of the UI."""

from collections.abc import Iterator

import pytest
from textual import _wait


@pytest.fixture(scope="session", autouse=True)
def short_waits() -> Iterator[None]:
    """After a key, waits until the app is idle for milliseconds, where Textual waits for a fiftieth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_wait, "SLEEP_GRANULARITY", 0.005)
        patch.setattr(_wait, "SLEEP_IDLE", 0.0005)
        yield
