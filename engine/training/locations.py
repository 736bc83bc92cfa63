"""Where the training thread and the threads that it waits for are, from their frames."""

import threading
from collections.abc import Iterator
from types import FrameType

from ..base.directories import ENGINE
from ..wire.hosts import Doing

LIBRARIES = ("-packages/", "/lib/python3", "<")
"""Parts of the paths of installed code; `<` as in `<frozen importlib>`."""
JAX = "/jax/"
"""Part of the paths of jax's own code."""
WAITING = (JAX, "/jaxlib/", "/distributed/sealed_store.py")
"""Parts of the paths of code that waits for devices or for other processes."""
COMPILING = ("/jax/_src/compiler.py", "/jax/_src/interpreters/partial_eval.py", "/jax/_src/interpreters/mlir.py")
"""Files of jax that trace, lower and compile."""
DOING: dict[str, Doing] = {
    "Loop.begin": "starting",
    "Loop.advance": "step",
    "Loop.end": "saving",
    "StepReports.flush": "step",
    "Stopping.is_requested_before": "compiling",
    "Restorer.first": "loading",
    "Restorer.restore": "loading",
    "Switcher.switch": "switching",
    "Switcher.undo": "switching",
    "Switcher.add": "switching",
    "Saver.save": "saving",
    "Saver.finish": "saving",
    "Evaluator.evaluate": "evaluating",
    "TextSampler.sample": "sampling",
    "Profiler.begin": "profiling",
    "Profiler.end": "profiling",
    "Inbox.take": "idle",
}
"""What the training thread does while it is in these methods of the engine; the innermost one counts."""


def doing(frames: dict[int, FrameType]) -> Doing:
    """Returns what the main thread does. Nothing has to be recorded for that, so steps do not take longer."""
    stack = _stacks(frames)[0]
    if any(_file(frame).endswith(COMPILING) for frame in stack):
        return "compiling"
    names = (frame.f_code.co_qualname for frame in stack if _file(frame).startswith(str(ENGINE)))
    for name in names:
        if name in DOING:
            return DOING[name]
    return "starting"


def waits(frames: dict[int, FrameType]) -> bool:
    """Returns whether the main thread waits for devices or other processes, and no code that jax has called runs."""
    main, *others = _stacks(frames)
    called = (stack for stack in others if JAX in _file(stack[-1]))
    return all(any(mark in _file(stack[0]) for mark in WAITING) for stack in (main, *called))


def user_location(frames: dict[int, FrameType], directory: str) -> str | None:
    """Returns `function (file:line)` of the innermost frame in the user's directory, or None if there is none.

    Only the main thread counts and threads in which jax calls the user's code: training waits for no other thread.
    """
    main, *others = _stacks(frames)
    awaited = (main, *(stack for stack in others if any(JAX in _file(at) for at in stack)))
    theirs = (at for stack in awaited for at in stack if _is_below(directory, at))
    return next((_named(at, f"{directory}/") for at in theirs), None)


def location(frames: dict[int, FrameType]) -> str:
    """Returns `function (file:line)` of the innermost frame of the main thread that is not in a library."""
    stack = _stacks(frames)[0]
    return _named(next((at for at in stack if not _is_library(at)), stack[0]), f"{ENGINE}/")


def _stacks(frames: dict[int, FrameType]) -> list[list[FrameType]]:
    """Returns the frames of each thread, innermost first; the main thread comes first."""
    main = threading.main_thread().ident
    return [list(_stack(frames[ident])) for ident in sorted(frames, key=lambda ident: ident != main)]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the frames of one thread, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_library(frame: FrameType) -> bool:
    return not _file(frame).startswith(f"{ENGINE}/") and any(mark in _file(frame) for mark in LIBRARIES)


def _is_below(directory: str, frame: FrameType) -> bool:
    """Returns whether the frame is in a file of the directory that is neither shardtui's nor an installed library's."""
    file = _file(frame)
    within = file.startswith(f"{directory}/") and not file.startswith(str(ENGINE))
    return within and not any(mark in file.removeprefix(directory) for mark in LIBRARIES)


def _named(frame: FrameType, root: str) -> str:
    return f"{frame.f_code.co_name} ({_file(frame).removeprefix(root)}:{frame.f_lineno})"
