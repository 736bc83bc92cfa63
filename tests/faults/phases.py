"""SIGKILL of the engine before each change that a save makes to the directory of checkpoints, and in each phase of a
switch: once resumed, the run must have the losses of one that was not killed, bit for bit, and all that was saved."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from etils import epath
from shardtui.engine.checkpoint.directory import CheckpointDirectory, verify
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import (
    AnyEvent,
    CheckpointSaved,
    PresetCompiling,
    Restored,
    StepsDone,
    Switched,
    Switching,
)
from shardtui.engine.wire.run_directory import RunDirectory

from ..conftest import SETTINGS, SHARDTUI, WITH_DROPOUT
from .launched import failing_calls, shardtui
from .living import losses, read
from .row import Row, counted

LIMIT = 300.0
STEPS = 200
"""Of the run without kills, which saves at its end."""
EVERY = 2
"""Steps from one save to the next."""
LEASE_CHANGES = 8
"""Changes that taking the lease and a beat make."""
STRIDE, LONG_STRIDE = 20, 2
"""The short and the long form try one change of so many; the short one a moment of a switch of every ten."""
SWITCHES = tuple(f"--switch={step}:{('fsdp', 'tp', 'dp')[step // 6 % 3]}" for step in range(5, STEPS, 6))
MOMENTS: tuple[tuple[type[AnyEvent], float], ...] = (
    *((PresetCompiling, seconds) for seconds in (0.0, 0.3, 1.0)),
    *((Switching, seconds) for seconds in (0.0, 0.002, 0.005, 0.01, 0.02, 0.04)),
    *((Switched, seconds) for seconds in (0.0, 0.001, 0.003, 0.01)),
    (CheckpointSaved, 0.0),
)
"""Kills in a switch: the event before it, and seconds from there."""
LEFT_OVER = ("saving-", "deleting-")


@dataclass
class Chain:
    """A run whose engines are killed one after the other."""

    name: str
    options: tuple[str, ...]
    every: int = EVERY
    """Steps from one save to the next."""
    alone: dict[int, float | None] = field(default_factory=dict)
    """The losses without kills, by step."""
    newest: int = 0
    """Step of the newest checkpoint, from which the next engine has to resume."""
    killed: Counter[str] = field(default_factory=Counter)
    """Kills by phase."""
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What was wrong after them."""

    @classmethod
    def compared(cls, name: str, options: tuple[str, ...], every: int = EVERY) -> "Chain":
        """Returns a run whose losses without kills are known."""
        events, code = cls(f"{name}-alone", options, STEPS).run(STEPS)
        assert code == 0, events[-1:]
        return cls(name, options, every, dict(losses(events)))

    def __post_init__(self) -> None:
        self.directory = RunDirectory(run_directory.state_home() / self.name)
        self.checkpoints = CheckpointDirectory(epath.Path(self.directory.path / "checkpoints"))

    def run(
        self, steps: int, due: Callable[[AnyEvent], float | None] = lambda _: None, **fault: str
    ) -> tuple[list[AnyEvent], int]:
        """Runs an engine, and kills it once `due` says in how many seconds. Returns its events and the exit code."""
        history = self.directory.events
        new = (f"--run={self.name}", *SETTINGS, WITH_DROPOUT, "--keep=1", f"--checkpoint-every={self.every}")
        options = (f"--resume={self.name}",) if self.directory.exists else (*new, *self.options)
        reader = LogReader(history, history.stat().st_size if history.exists() else 0)
        command, nothing = [*SHARDTUI, "train", *options, f"--steps={steps}"], subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=nothing, stderr=nothing, env=os.environ | fault)
        found, until = list[AnyEvent](), time.monotonic() + LIMIT
        while process.poll() is None:
            for event in read(reader):
                found.append(event)
                if (seconds := due(event)) is not None:
                    time.sleep(seconds)
                    with contextlib.suppress(ProcessLookupError):  # the event comes again
                        os.kill(next(pid for each in found if (pid := getattr(each, "pid", 0))), signal.SIGKILL)
            if time.monotonic() > until:
                process.kill()
                raise TimeoutError(f"not killed within {LIMIT:.0f} s")
            time.sleep(0.02 if fault else 0.001)  # a moment of a switch is short
        return found + read(reader), process.returncode

    def kill(
        self, phase_of: Callable[[list[AnyEvent]], str], due: Callable[[AnyEvent], float | None], **fault: str
    ) -> str:
        """Kills one engine and returns the phase in which it was."""
        events, code = self.run(10 * STEPS, due, **fault)
        phase = phase_of(events)
        self.killed[phase] += 1
        self.wrong[phase] += [*self._problems(events), *[f"exit {code}"] * (code != 1)]
        return phase

    def _problems(self, events: list[AnyEvent]) -> list[str]:
        """Returns what is wrong with the events of an engine, and with what it has left."""
        restored = [event.step for event in events if isinstance(event, Restored)]
        far = [step for step, loss in losses(events) if loss != self.alone[step]]
        steps = self.checkpoints.steps() if self.checkpoints.root.exists() else []
        lost = max((event.step for event in events if isinstance(event, CheckpointSaved)), default=self.newest)
        wrong = [f"the loss of step {step} differs" for step in far[:1]]
        if restored not in ([self.newest], []) or (self.newest and not restored and losses(events)):
            wrong.append(f"resumed from {restored}, {self.newest} was there")
        if max(steps, default=0) < lost:
            wrong.append(f"step {lost} was saved, {steps} are there")
        self.newest = max(steps, default=0)
        if steps:
            checked = verify(self.checkpoints, self.directory.config)
            wrong += [f"{each.step}: {each.problems}" for each in checked.checkpoints if each.problems]
            wrong += [f"set aside: {checked.set_aside}"] * bool(checked.set_aside)
        return wrong

    def rows(self, injected: str) -> Iterator[Row]:
        """Ends the run, and yields a row for each phase."""
        events, code = self.run(STEPS if self.options else self.newest + 2 * self.every)
        last = [*self._problems(events), *[f"the last one: exit {code}"] * bool(code)]
        names = self.checkpoints.names()
        last += [f"left: {names}"] * any(name.startswith(LEFT_OVER) for name in names)
        report = shardtui("verify", self.name)
        last += [report.stdout] * bool(report.returncode)
        for phase, times in self.killed.items():
            seen = "losses equal, all checkpoints good"
            yield counted(f"SIGKILL {injected}{phase}", times, self.wrong[phase] + last, seen)


def run(times: int) -> Iterator[Row]:
    """Yields a row for each phase; the long form tries each second change of a save."""
    stride = LONG_STRIDE if times > 1 else STRIDE
    for more in ((), ("--low-memory",)):
        chain = Chain.compared(f"phases-switch{len(more)}", (*SWITCHES, *more), every=4)
        for kind, seconds in MOMENTS[:: stride // LONG_STRIDE]:
            chain.kill(_phase_of_switch, _due(kind, seconds))
        yield from chain.rows(f"in a switch{' with --low-memory' * bool(more)}, ")
    fault = failing_calls()
    chain = Chain.compared("phases-save", ())
    _kill_in_saves(chain, fault, stride)
    yield from chain.rows("before a change of ")


def _kill_in_saves(chain: Chain, fault: dict[str, str], stride: int) -> None:
    """Kills before each change of the lease, of what is saved, and of what is deleted, one after the other."""
    note = Path("note").absolute()
    fault = fault | {"FAULT_WRITES": "1", "FAULT_KILL": str(note)}
    for under in ("lease.json", *LEFT_OVER):
        for at in range(0, STEPS, stride):
            before = chain.newest
            place = {"FAULT_UNDER": f"/checkpoints/{under}", "FAULT_AFTER": str(at)}
            chain.kill(lambda _: _changed(note.read_text()), lambda _: None, **fault, **place)
            step = re.search(r"(?:saving|deleting)-\w+-(\d+)", note.read_text())
            if (at >= LEASE_CHANGES) if step is None else int(step[1]) > before + EVERY * (under == "saving-"):
                break  # the next save


def _changed(note: str) -> str:
    """Returns what the engine was about to change."""
    call, path = note.split()
    if call in ("rmdir", "unlink", "unlinkat") and re.search(r"/saving-\w+-[1-9]", path):
        return "what a killed engine has left"
    is_commit = call.startswith("rename")
    parts = (
        (r"lease\.json", "the lease"),
        (r"/saving-\w+-0\b", "the mark of the directory"),
        (r"/deleting-", "a checkpoint that is pruned"),
        (r"/saving-\w+-\d+$", "the checkpoint's name (the commit)" if is_commit else "the temporary directory"),
        (r"/checkpoint\.json", "the manifest"),
        ("", "the arrays"),
    )
    return next(words for pattern, words in parts if re.search(pattern, path))


def _due(kind: type[AnyEvent], seconds: float) -> Callable[[AnyEvent], float | None]:
    """In a switch: a compilation once steps are trained, a save once it has switched."""
    before = {PresetCompiling: StepsDone, CheckpointSaved: Switched}.get(kind)
    seen = set[type[AnyEvent]]()

    def due(event: AnyEvent) -> float | None:
        seen.add(type(event))
        return seconds if isinstance(event, kind) and (before is None or before in seen) else None

    return due


def _phase_of_switch(events: list[AnyEvent]) -> str:
    kinds = [type(event) for event in events]
    if Switching not in kinds:
        return "while it compiles"
    if Switched not in kinds:
        return "while the state moves"
    after = kinds[kinds.index(Switched) :]
    return "after its first step" if StepsDone in after else "in its first step"
