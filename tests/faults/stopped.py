"""SIGSTOP to the engine of a run, to its supervisor, or to both; then SIGTERM to `train`, or `stop`: the run must be
saved and end in time. So must one whose engine is stopped again whenever it is continued, unsaved."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from shardtui.engine.base.processes import STOPPED_SECONDS

from ..hanging_model import HangingModel
from ..processes import is_alive
from .launched import Launched, shardtui
from .row import Row, tried

CASES = [(False, ("engine",), False)]
CASES += [(True, victims, False) for victims in (("engine",), ("supervisor",), ("engine", "supervisor"))]
CASES += [(is_supervised, ("engine",), True) for is_supervised in (False, True)]
"""Whether a run is supervised, what is stopped, and whether it is again and again."""
SAVED_SECONDS = 20.0
"""Longest time for a run that is saved: it is continued at once."""
KILLED_SECONDS = STOPPED_SECONDS + 15
"""The same for one that is killed."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for each way to stop and to end a run: `times` of each."""
    model, names = HangingModel(Path("stopped").absolute()), (f"stopped-{number}" for number in count())
    for how in ("SIGTERM to `train`", "`stop`"):
        for is_supervised, victims, again in CASES:
            what = f"the {' and '.join(victims)}{' of a supervised run' * is_supervised}{' again and again' * again}"
            fault = partial(_ended, model, names, is_supervised, victims, again, how)
            yield tried(f"SIGSTOP to {what}, {how}", times, fault)


def _ended(
    model: HangingModel, names: Iterator[str], is_supervised: bool, victims: tuple[str, ...], again: bool, how: str
) -> str:
    options = (*model.options, "--checkpoint-every=100", *["--supervise"] * is_supervised)
    with Launched(next(names), *options) as run:
        seconds, codes, left = _end(run, victims, again, how)
    assert seconds <= (KILLED_SECONDS if again else SAVED_SECONDS), f"ended after {seconds:.0f} s"
    wanted = {0, 1} if again and is_supervised else {1} if again else {0}  # a supervisor may start another engine
    assert wanted.issuperset(codes), f"exit codes {codes}"
    assert not left, f"{left} live"
    return f"ended after {seconds:.1f} s"


def _end(run: Launched, victims: tuple[str, ...], again: bool, how: str) -> tuple[float, list[int], list[int]]:
    """Returns the seconds that it took, the exit codes, and the processes that are left."""
    for _ in range(20):
        run.until("StepDone")
    holders = {"engine": run.directory.holder(), "supervisor": run.directory.supervisor}
    pids = [holder.pid for victim in victims if (holder := holders[victim])]
    living = [holder.pid for holder in holders.values() if holder]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with _stopped_again(pids) if again else contextlib.nullcontext():
        began = time.monotonic()
        codes = [shardtui("stop", run.name).returncode] if how == "`stop`" else []
        if not codes:
            run.process.send_signal(signal.SIGTERM)
        codes.append(run.process.wait(KILLED_SECONDS + 60))
    return time.monotonic() - began, codes, [pid for pid in living if is_alive(pid)]


@contextmanager
def _stopped_again(pids: list[int]) -> Iterator[None]:
    is_over = threading.Event()

    def stop() -> None:
        while not is_over.wait(0.001):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
