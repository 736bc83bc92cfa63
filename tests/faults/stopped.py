"""SIGSTOP to the engine of a run, to its supervisor, or to both; then SIGTERM to `train`, or `stop`: the run must be
saved and end in time. So must one whose engine is stopped again whenever it is continued, unsaved."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardtui.engine.base.processes import STOPPED_SECONDS
from shardtui.engine.wire import run_directory

from ..conftest import SHARDTUI
from ..hanging_model import HangingModel
from ..processes import is_alive
from .row import Row
from .supervised import events, started

VICTIMS = (("engine",), ("supervisor",), ("engine", "supervisor"))
SAVED_SECONDS = 20.0
"""Longest time for a run that is saved: it is continued at once."""
KILLED_SECONDS = STOPPED_SECONDS + 15
"""The same for one that is killed."""


@dataclass
class Found:
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0


def run(times: int) -> Iterator[Row]:
    """Yields a row for each way to stop and to end a run: `times` of each."""
    with tempfile.TemporaryDirectory(prefix="shardtui-stopped-") as folder:
        model = HangingModel(Path(folder))
        cases = [(False, ("engine",)), *((True, victims) for victims in VICTIMS)]
        for how in ("SIGTERM to `train`", "`stop`"):
            for is_supervised, victims in cases:
                found = Found()
                for number in range(times):
                    name = f"stopped-{'-'.join(victims)}-{is_supervised}-{how[0] == '`'}-{number}".lower()
                    _end(model, name, is_supervised, victims, how, False, found)
                words = " and ".join(victims)
                yield _row(f"SIGSTOP to the {words}{' of a supervised run' * is_supervised}, {how}", times, found)
            for is_supervised in (False, True):
                found = Found()
                for number in range(times):
                    name = f"stopped-again-{is_supervised}-{how[0] == '`'}-{number}".lower()
                    _end(model, name, is_supervised, ("engine",), how, True, found)
                words = "of a supervised run " * is_supervised
                yield _row(f"SIGSTOP to the engine {words}again and again, {how}", times, found)


def _row(injected: str, times: int, found: Found) -> Row:
    note = "; ".join(found.wrong[:3]) or f"ended after at most {found.longest:.1f} s"
    return Row(injected, times, times - len(found.wrong), note)


def _end(
    model: HangingModel, name: str, is_supervised: bool, victims: tuple[str, ...], how: str, again: bool, found: Found
) -> None:
    options = (f"--run={name}", "--steps=10000000", "--checkpoint-every=100", *["--supervise"] * is_supervised)
    process = started(*model.options, *options)
    steps = 0
    for event in events(process):
        steps += event["type"] == "StepDone"
        if steps == 20:
            break
    threading.Thread(target=lambda: [*events(process)], daemon=True).start()  # its pipe must not be full
    directory = run_directory.find(name)
    holders = {"engine": directory.holder(), "supervisor": directory.supervisor}
    pids = [holder.pid for victim in victims if (holder := holders[victim])]
    living = [holder.pid for holder in holders.values() if holder]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with _stopped_again(pids) if again else contextlib.nullcontext():
        began = time.monotonic()
        codes = [_stop(name)] if how == "`stop`" else []
        if not codes:
            process.send_signal(signal.SIGTERM)
        limit = KILLED_SECONDS if again else SAVED_SECONDS
        try:
            codes.append(process.wait(limit + 60))
        except subprocess.TimeoutExpired:
            found.wrong.append(f"{name}: `train` did not end")
            process.kill()
    seconds = time.monotonic() - began
    found.longest = max(found.longest, seconds)
    if seconds > limit:
        found.wrong.append(f"{name}: ended after {seconds:.0f} s")
    wanted = {0, 1} if again and is_supervised else {1} if again else {0}  # a supervisor may start another engine
    if not wanted.issuperset(codes):
        found.wrong.append(f"{name}: exit codes {codes}")
    elif left := [pid for pid in living if is_alive(pid)]:
        found.wrong.append(f"{name}: {left} live")


def _stop(name: str) -> int:
    return subprocess.run([*SHARDTUI, "stop", name], capture_output=True, check=False).returncode


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
