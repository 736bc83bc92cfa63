"""Where the training thread is, and how long it has been in its step: seen from outside, so no step takes longer."""

import sys
import threading
from pathlib import Path
from traceback import walk_stack
from types import FrameType

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
LONGEST_POLL_SECONDS = 2.0
"""More time between two looks does not count: this process was stopped."""
STEP = ("Loop._dispatch_step", "StepReports.flush", "DeviceCheck._read")
"""The methods that run steps, and wait for them."""
START_OF_TRACE = "Profiler.begin"
COMPILING = ("/jax/_src/compiler.py", "/jax/_src/interpreters/partial_eval.py", "/jax/_src/interpreters/mlir.py")
"""Files of jax that trace, lower and compile: a user's batch function may do so within a step."""
LIBRARIES = ("-packages/", "/lib/python3", "<")
"""Parts of the paths of installed code; `<` as in `<frozen importlib>`."""
JAX = "/jax/"
"""Part of the paths of jax's own code."""
STORE = "/distributed/sealed_store.py"


class TrainingThread:
    """The training thread, which is the main thread of this process."""

    def __init__(self) -> None:
        self._slowest: float | None = None
        """Seconds of the slowest step under the preset; None until the second one."""
        self._is_first = True
        self._last = Activity()
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

    def look(self, begun: int) -> Activity:
        passed, (main, *called) = self._clock.passed(), _awaited_stacks()
        is_same = begun == self._last.step
        in_step = not is_same or _is_in_step(main)
        seconds = self._last.seconds + passed if in_step and is_same else 0.0
        own, *others = (_innermost(stack) for stack in (main, *called))
        user = next((frame for frame in (own, *others) if _is_user_code(frame)), None)
        file = _file(main[0])
        self._last = Activity(
            step=begun,
            in_step=in_step,
            seconds=seconds,
            is_late=in_step and seconds >= self._limit,
            where=_named(user or own),
            waits=not user and (file.endswith(STORE) or (in_step and (JAX in file or "/jaxlib/" in file))),
        )
        return self._last

    @property
    def _limit(self) -> float:
        return FIRST_SECONDS if self._slowest is None else max(LATE_SECONDS, LATE_STEPS * self._slowest)


def _awaited_stacks() -> list[list[FrameType]]:
    """Returns the frames, innermost first, of the main thread and then of threads in which jax calls back."""
    main, frames = threading.main_thread().ident, sys._current_frames()
    own, *others = (
        [at for at, _ in walk_stack(frames[each])] for each in sorted(frames, key=lambda each: each != main)
    )
    return [own, *(stack for stack in others if JAX in _file(stack[-1]))]


def _is_in_step(stack: list[FrameType]) -> bool:
    """Returns False for what may take long within a step: a compilation, and the start of a trace."""
    names = {frame.f_code.co_qualname for frame in stack}
    is_long = START_OF_TRACE in names or any(_file(frame).endswith(COMPILING) for frame in stack)
    return not is_long and not names.isdisjoint(STEP)


def _innermost(stack: list[FrameType]) -> FrameType:
    return next((at for at in stack if _is_engine(at) or _is_user_code(at)), stack[0])


def _is_engine(frame: FrameType) -> bool:
    return _file(frame).startswith(f"{ENGINE}/")


def _is_user_code(frame: FrameType) -> bool:
    return not _is_engine(frame) and not any(mark in _file(frame) for mark in LIBRARIES)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _named(frame: FrameType) -> str:
    file = _file(frame).removeprefix(f"{ENGINE}/") if _is_engine(frame) else Path(_file(frame)).name
    return f"{frame.f_code.co_name} ({file}:{frame.f_lineno})"
