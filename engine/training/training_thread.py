"""Where the training thread is, how long it has been in its step, and when it makes no progress: seen from outside, so
no step takes longer."""

import faulthandler
import os
import re
import threading
import time
from pathlib import Path
from typing import NamedTuple

from ..base.directories import ENGINE
from ..base.processes import Clock
from ..wire.events import Event, Restored, StepsDone, Switched, SwitchFailed, TrainingStarted
from ..wire.hosts import Activity

LATE_SECONDS = 20.0
"""A step that takes longer is late…"""
LATE_STEPS = 5
"""…unless it takes less than this many of the slowest step under the preset, without its first."""
FIRST_SECONDS = 300.0
"""The same until a second step under a preset is reported: the first connect the devices and allocate memory."""
STALL_SECONDS = 30.0
"""Time without progress that is a stall…"""
STALL_STEPS = 3
"""…unless it takes less than this many steps, by the slowest of the last report."""
LONGEST_POLL_SECONDS = 2.0
"""More time between two looks does not count: this process was stopped."""
UNREAD_SECONDS = 10.0
"""The stacks are read only once a step has begun no other for so long…"""
UNREAD_STEPS = 2
"""…and for this many of the slowest step: never while steps take their time, as what reads them may crash Python 3.11,
see `_awaited_stacks`."""
COMPILING = ("/jax/_src/compiler.py", "/jax/_src/interpreters/partial_eval.py", "/jax/_src/interpreters/mlir.py")
"""Files of jax that trace, lower and compile: a user's batch function may do so within a step."""
LIBRARIES = ("-packages/", "/lib/python3", "<")
"""Parts of the paths of installed code; `<` as in `<frozen importlib>`."""
JAX = "/jax/"
"""Part of the paths of jax's own code."""
STORE = "/distributed/sealed_store.py"
THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+).*\n((?:  .*\n?)*)", re.MULTILINE)
PLACE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


class Place(NamedTuple):
    """A line that a thread is in."""

    file: str
    line: int
    function: str


UNKNOWN = Place("<unknown>", 0, "unknown")


class Location(NamedTuple):
    """Where the training thread is: the user's code that it is in, or waits for, or its own."""

    where: str = ""
    """`function (file:line)`; empty if not read."""
    waits: bool = False
    """Whether it waits there for another process or, in a step, for a device."""
    compiles: bool = False


class TrainingThread:
    """The training thread, which is the main thread of this process."""

    def __init__(self) -> None:
        self._slowest: float | None = None
        """Seconds of the slowest step under the preset; None until the second one."""
        self._is_first = True
        self._last = Activity()
        self._before = 0, False
        self._same = 0.0
        """Seconds for which it has been in the same step, or has not."""
        self._clock = Clock(LONGEST_POLL_SECONDS)

    def note(self, event: Event) -> None:
        match event:
            case StepsDone():
                seconds = [self._slowest or 0.0, *event.step_seconds[self._is_first :]]
                self._slowest = max(seconds) or None
                self._is_first = False
            case TrainingStarted() | Switched() | SwitchFailed() | Restored():
                self._slowest, self._is_first = None, True
            case _:
                pass

    def look(self, begun: int, in_step: bool) -> Activity:
        """`begun`: steps begun. `in_step`: whether it is in one, where it may compile."""
        passed, is_same = self._clock.passed(), self._before == (begun, in_step)
        self._before = begun, in_step
        self._same = self._same + passed if is_same else 0.0
        is_read = self._same >= max(UNREAD_SECONDS, UNREAD_STEPS * (self._slowest or 0.0))
        at = locate(in_step) if is_read else Location()
        in_step = in_step and not at.compiles
        seconds = self._last.seconds + passed if in_step and is_same else 0.0
        is_late = in_step and seconds >= self._limit
        self._last = Activity(
            step=begun, in_step=in_step, seconds=seconds, is_late=is_late, where=at.where, waits=at.waits
        )
        return self._last

    @property
    def _limit(self) -> float:
        return FIRST_SECONDS if self._slowest is None else max(LATE_SECONDS, LATE_STEPS * self._slowest)


class StallTimer:
    def __init__(self) -> None:
        self.seconds = self._reported = 0.0
        """Seconds without progress, when it was last asked."""
        self._last = time.monotonic()

    def progress(self) -> None:
        self._last = time.monotonic()

    def is_due(self, step_seconds: float, is_idle: bool = False) -> bool:
        """Returns whether it is to be said: once it is a stall, and at each doubling. `step_seconds`: of the slowest
        step of the last report. `is_idle`: whether there is nothing to do, which is no stall."""
        if is_idle:
            self.progress()
        self.seconds = time.monotonic() - self._last
        if self.seconds < self._reported:
            self._reported = 0.0
        if self.seconds < max(STALL_SECONDS, STALL_STEPS * step_seconds, 2 * self._reported):
            return False
        self._reported = self.seconds
        return True


def locate(in_step: bool) -> Location:
    """Returns where the training thread is now."""
    main, *called = _awaited_stacks()
    own, *others = (_innermost(stack) for stack in (main, *called))
    user = next((place for place in (own, *others) if _is_user_code(place)), None)
    file = main[0].file
    waits = not user and (file.endswith(STORE) or (in_step and (JAX in file or "/jaxlib/" in file)))
    return Location(_named(user or own), waits, any(place.file.endswith(COMPILING) for place in main))


def _awaited_stacks() -> list[list[Place]]:
    """Returns the places, innermost first, of the main thread and then of threads in which jax calls back.

    faulthandler reads the stacks while no other thread runs Python. It has crashed Python 3.11.7 all the same, while
    native code began a thread; so have, more often, frame objects of running threads, from `sys._current_frames`.
    """
    with os.fdopen(os.memfd_create("stacks"), "w+b") as file:
        faulthandler.dump_traceback(file)  # pyright: ignore[reportArgumentType] # it takes any file with a descriptor
        file.seek(0)
        text = file.read().decode("ascii", "replace")
    stacks = {int(thread, 16): _places(lines) for thread, lines in THREAD.findall(text)}
    own = stacks.pop(threading.main_thread().ident or 0, [])
    return [own or [UNKNOWN], *(stack for stack in stacks.values() if stack and JAX in stack[-1].file)]


def _places(lines: str) -> list[Place]:
    return [Place(_unescaped(file), int(line), name) for file, line, name in PLACE.findall(lines)]


def _unescaped(file: str) -> str:
    return ESCAPED.sub(lambda found: chr(int(found[found.lastindex or 0], 16)), file)


def _innermost(stack: list[Place]) -> Place:
    return next((at for at in stack if _is_engine(at) or _is_user_code(at)), stack[0])


def _is_engine(place: Place) -> bool:
    return place.file.startswith(f"{ENGINE}/")


def _is_user_code(place: Place) -> bool:
    return not _is_engine(place) and not any(mark in place.file for mark in LIBRARIES)


def _named(place: Place) -> str:
    file = place.file.removeprefix(f"{ENGINE}/") if _is_engine(place) else Path(place.file).name
    return f"{place.function} ({file}:{place.line})"
