"""The request to watch a program: from the command line to the interpreter that runs the program."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

VARIABLE = "SHARDTUI_WATCH"
PYTHON_PATH = "PYTHONPATH"
STARTUP = Path(__file__).parents[1] / "watching" / "startup"
"""Contains the `sitecustomize.py` that Python runs before the program."""


class WatchRequest(Struct, frozen=True, kw_only=True):
    run: str | None
    """Name of the run; None for a name after the program."""
    step: str | None
    """Name of the jitted function that is the step; None to find it."""
    python_path: str | None
    """The program's own PYTHONPATH; None if it is not set."""


def run_watched(run: str | None, step: str | None, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by `python ARGUMENT …`, watched. Nothing but the environment at start-up differs from an
    unwatched one, and the program finds its own."""
    own = os.environ.get(PYTHON_PATH)
    request = WatchRequest(run=run, step=step, python_path=own)
    os.environ[VARIABLE] = msgspec.json.encode(request).decode()
    os.environ[PYTHON_PATH] = f"{STARTUP}{os.pathsep}{own}" if own else str(STARTUP)
    os.execv(sys.executable, [sys.executable, *arguments])


def take_request() -> WatchRequest:
    """Returns the request of this process, and gives it the environment and `sys.path` of an unwatched one."""
    request = msgspec.json.decode(os.environ.pop(VARIABLE), type=WatchRequest)
    sys.path.remove(str(STARTUP))
    if request.python_path is None:
        del os.environ[PYTHON_PATH]
    else:
        os.environ[PYTHON_PATH] = request.python_path
    return request
