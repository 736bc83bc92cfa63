"""The engine of a supervised run ends in every way that a process can: only what it records may mean that it was
refused, or that the run is over."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from shardtui.engine.base.processes import exit_words
from shardtui.engine.base.stacks import DUMP_SIGNAL

from ..hanging_model import HangingModel
from .launched import mounted
from .row import Row, tried
from .supervised import LIMIT, Found, Trained, differing, events, spread, started, trained_alone

STEPS = 4000
"""Steps of the run without faults, with which losses are compared."""
EXITS = (0, 2, 1, 3, 77, 126, 127, 128, 130, 137, 139, 143, 255)
IN_ORDER = {signal.SIGINT, signal.SIGTERM}
"""They end the run."""
UNHEARD = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGPIPE, signal.SIGXFSZ}
UNHEARD |= {DUMP_SIGNAL, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
"""They do not end a process by default, or one without a terminal; or Python ignores them, or the engine writes its
stacks."""
SIGNALS = list(dict.fromkeys(number for number in (9, 40, *range(1, 65)) if number not in IN_ORDER))
FAULT_STEPS = 20
"""Steps of an engine before the fault."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for signals, one for exit statuses, and one for a disk that is full at the end."""
    for number in {signal.SIGHUP, signal.SIGQUIT}:  # `nohup` and `&` let all that is started here ignore them
        signal.signal(number, signal.SIG_DFL)
    model = HangingModel(Path("endings").absolute())
    alone = trained_alone(*model.options, "--run=endings-alone", f"--steps={STEPS}")
    signals, exits = SIGNALS[: 6 * times], EXITS[: 2 * times]
    yield _ended(model, f"each of {len(signals)} signals to the engine", "signal", signals, alone)
    yield _ended(model, f"`os._exit` in `batch`: {', '.join(map(str, exits))}", "exit", exits, alone)
    numbers = count()
    full = "disk of the run full, then SIGKILL; later room again"
    yield tried(full, -(-times // 4), lambda: _full(f"full-{next(numbers)}"))


def _ended(model: HangingModel, injected: str, kind: str, faults: Sequence[int], alone: dict[int, float]) -> Row:
    """Follows a run in which one fault after the other ends the engine."""
    found, due, fault, is_stopping = Found(), list(faults), -1, False
    trained = Trained(found.wrong)
    options = ("--steps=10000000", "--supervise", "--restarts=1000", "--checkpoint-every=25")
    process = started(*model.options, f"--run=endings-{kind}s", *options)
    for event, (pid, *_) in found.follow(process, trained):
        if event["type"] == "EngineStarted" and found.began:
            found.wrong += _misnamed(kind, fault, event["attempt"]["lost"]["why"])
        elif event["type"] == "StepDone":
            if found.began and kind == "signal" and fault in UNHEARD:
                found.recovered()
            elif found.began and time.monotonic() - found.began > LIMIT:
                found.wrong.append(f"{kind} {fault}: it trains on")
                found.began = 0.0
            if found.began or trained.of_engine < FAULT_STEPS:
                continue
            if due:
                fault = due.pop(0)
                found.begin(f"{kind} {fault}")
                _cause(model, kind, fault, pid)
            elif not is_stopping:
                is_stopping = True
                process.send_signal(signal.SIGTERM)
    found.wrong += [f"no {kind} {fault}" for fault in due]
    shared = {step: alone[step] for step in alone.keys() & trained.losses.keys()}
    found.wrong += differing(trained.losses, shared)
    return found.row(injected, f"{len(found.restarts)} ended it, each named; to the next step: {spread(found.gaps)}")


def _cause(model: HangingModel, kind: str, number: int, pid: int) -> None:
    if kind == "exit":
        model.exit_once(0, number)
    else:
        with contextlib.suppress(ProcessLookupError):  # it has ended, earlier than it should
            os.kill(pid, number)


def _misnamed(kind: str, number: int, told: str) -> list[str]:
    wanted = exit_words(number if kind == "exit" else -number)
    if (kind, number) == ("signal", signal.SIGSTOP):
        wanted = "stopped by a signal"
    return [] if wanted in told else [f"{kind} {number}: told was {told}"]


def _full(name: str) -> str:
    """Fills the disk of a run's directory, kills its engine, and makes room once the supervisor has reported it."""
    place = Path(name).absolute()
    with mounted(place, "4m") as home:
        model, shared = HangingModel(place / "model"), f"--checkpoint-dir={place}/checkpoints"
        options = (f"--run={name}", "--steps=10000000", "--supervise", shared, "--checkpoint-every=50")
        process = started(*model.options, *options, environment=os.environ | {"XDG_STATE_HOME": str(home)})
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
