"""The engine of a supervised run ends in every way that a process can: only what it records may mean that it was
refused, or that the run is over."""

import contextlib
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

from shardtui.engine.base.processes import exit_words
from shardtui.engine.base.stacks import DUMP_SIGNAL

from ..hanging_model import HangingModel
from .messages import mounted
from .row import Row, tried
from .supervised import LIMIT, Trained, differing, events, started, trained_alone

STEPS = 4000
"""Steps of the run without faults, with which losses are compared."""
EXITS = (0, 2, 1, 3, 77, 126, 127, 128, 130, 137, 139, 143, 255)
IN_ORDER = {signal.SIGINT, signal.SIGTERM}
"""They end the run."""
UNHEARD = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGPIPE, signal.SIGXFSZ}
"""They do not end a process by default, or Python ignores them…"""
UNHEARD |= {DUMP_SIGNAL}
"""…or the engine writes its stacks…"""
UNHEARD |= {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
"""…or a process without a terminal does."""
SIGNALS = [number for number in (9, 40, *range(1, 65)) if number not in IN_ORDER]
SIGNALS = list(dict.fromkeys(SIGNALS))
FAULT_STEPS = 20
"""Steps of an engine before the fault."""


@dataclass
class Found:
    wrong: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Seconds from each fault to the next step."""
    ended: int = 0


def run(times: int) -> Iterator[Row]:
    """Yields a row for signals, one for exit statuses, and one for a disk that is full at the end."""
    for number in {signal.SIGHUP, signal.SIGQUIT}:  # `nohup` and `&` let all that is started here ignore them
        signal.signal(number, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="shardtui-endings-") as folder:
        model = HangingModel(Path(folder))
        alone = trained_alone(started(*model.options, "--run=endings-alone", f"--steps={STEPS}"))
        chosen = [("signal", number) for number in SIGNALS[: 6 * times]]
        found = _ended(model, "endings-signals", chosen, alone)
        yield Row(
            f"each of {len(chosen)} signals to the engine", len(chosen), len(chosen) - len(found.wrong), _note(found)
        )
        chosen = [("exit", status) for status in EXITS[: 2 * times]]
        found = _ended(model, "endings-exits", chosen, alone)
        words = ", ".join(str(status) for _, status in chosen)
        yield Row(f"`os._exit` in `batch`: {words}", len(chosen), len(chosen) - len(found.wrong), _note(found))
        names = (f"full-{number}" for number in count())
        yield tried(
            "disk of the run full, then SIGKILL; later room again",
            -(-times // 4),
            lambda: _full(Path(folder), next(names)),
        )


def _note(found: Found) -> str:
    return "; ".join(found.wrong[:3]) or (
        f"{found.ended} ended it, each named; to the next step: median {median(found.gaps):.1f} s, longest "
        f"{max(found.gaps):.1f} s; losses as without faults"
    )


def _ended(model: HangingModel, name: str, faults: list[tuple[str, int]], alone: dict[int, float]) -> Found:
    """Follows a run in which one fault after the other ends the engine."""
    found = Found()
    due, trained = list(faults), Trained(found.wrong)
    pid, began, fault, is_stopping = 0, 0.0, ("", 0), False
    process = started(
        *model.options, f"--run={name}", "--steps=10000000", "--supervise", "--restarts=1000", "--checkpoint-every=25"
    )
    for event in events(process):
        trained.note(event)
        if event["type"] == "EngineStarted":
            pid = event["pid"]
            if began:
                found.ended += 1
                found.wrong += _misnamed(fault, event["attempt"]["lost"])
        elif event["type"] == "StepDone":
            if began and (trained.of_engine == 1 or fault[1] in UNHEARD):
                found.gaps.append(time.monotonic() - began)
                began = 0.0
            elif began and time.monotonic() - began > LIMIT:
                found.wrong.append(f"{fault}: it trains on")
                began = 0.0
            if not began and trained.of_engine >= FAULT_STEPS and due:
                fault, began = due.pop(0), time.monotonic()
                _cause(model, fault, pid)
            elif not began and not due and trained.of_engine >= FAULT_STEPS and not is_stopping:
                is_stopping = True
                process.send_signal(signal.SIGTERM)
    if code := process.wait():
        found.wrong.append(f"it ended with {code} after {fault}")
    found.wrong += [f"no {fault}" for fault in due]
    return _compared(found, trained, alone)


def _compared(found: Found, trained: Trained, alone: dict[int, float]) -> Found:
    shared = {step: alone[step] for step in alone.keys() & trained.losses.keys()}
    found.wrong += differing(trained.losses, shared)
    return found


def _cause(model: HangingModel, fault: tuple[str, int], pid: int) -> None:
    kind, number = fault
    if kind == "exit":
        model.exit_once(0, number)
    else:
        with contextlib.suppress(ProcessLookupError):  # it has ended, earlier than it should
            os.kill(pid, number)


def _misnamed(fault: tuple[str, int], lost: dict[str, str]) -> list[str]:
    kind, number = fault
    wanted = exit_words(number if kind == "exit" else -number)
    if fault == ("signal", signal.SIGSTOP):
        wanted = "stopped by a signal"
    return [] if wanted in lost["why"] else [f"{kind} {number}: told was {lost['why']}"]


def _full(folder: Path, name: str) -> str:
    """Fills the disk of a run's directory, kills its engine, and makes room once the supervisor has reported it."""
    place = folder / name
    place.mkdir()
    with mounted(place, "4m") as home:
        environment = os.environ | {"XDG_STATE_HOME": str(home)}
        model, shared = HangingModel(place / "model"), place / "checkpoints"
        options = (
            f"--run={name}",
            "--steps=10000000",
            "--supervise",
            f"--checkpoint-dir={shared}",
            "--checkpoint-every=50",
        )
        process = started(*model.options, *options, environment=environment)
        pid, has_room = 0, 0.0
        for event in events(process):
            if event["type"] == "EngineStarted":
                pid = event["pid"]
            elif event["type"] == "CheckpointSaved" and not has_room:
                _fill(home / "filler")
                os.kill(pid, signal.SIGKILL)
                time.sleep(8)  # several tries
                (home / "filler").unlink()
                has_room = time.time()
            elif event["type"] == "StepDone" and 0 < has_room < event["time"]:
                process.send_signal(signal.SIGTERM)
                has_room = math.inf
        log = (home / f"shardtui/runs/{name}/engine.log").read_text()
        code = process.wait()
    assert (code, has_room) == (0, math.inf), f"it ended with {code}: {log[-300:]}"
    return "went on by itself"


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
