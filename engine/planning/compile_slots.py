"""How many programs are compiled at the same time on this machine, whoever plans. Does not import jax."""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from ..base.machine import COMPILATION_BYTES, available_memory, most_compilations
from ..base.regular_file import append_regular
from ..wire.run_directory import plan_cache

POLL_SECONDS = 0.1
"""Interval at which a compilation that waits looks for a free slot."""


class Turn(Struct, frozen=True, kw_only=True):
    """Printed before the answer of a compilation that waits for others: when it begins to wait, and when it goes on."""

    is_waiting: bool


@contextlib.contextmanager
def slot(on_wait: Callable[[bool], None]) -> Iterator[None]:
    """Waits until a compilation may begin, and counts as one inside this context.

    A slot is a locked file, which is free again when its process ends, however it ends. If there can be none, for
    example on a read-only disk, nothing is waited for.

    `on_wait`: called with True when it begins to wait, and then with False when it has a slot.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            folder = plan_cache() / "slots"
            folder.mkdir(parents=True, exist_ok=True)
            if not _take_any(folder, held):
                on_wait(True)
                while not _take_any(folder, held):
                    time.sleep(POLL_SECONDS)
                on_wait(False)
        yield


def _take_any(folder: Path, held: contextlib.ExitStack) -> bool:
    return any(_take(folder / str(number), held) for number in _open_slots())


def _open_slots() -> Iterator[int]:
    """Yields the slots that this machine has cores for; after the first, while it has memory for a compilation."""
    yield 0
    if available_memory() >= COMPILATION_BYTES:
        yield from range(1, most_compilations())


def _take(path: Path, held: contextlib.ExitStack) -> bool:
    file = append_regular(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    held.enter_context(file)
    return True
