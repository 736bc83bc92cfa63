"""The request to watch a program: from the command line to the interpreter that runs the program."""

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

VARIABLE = "SHARDTUI_WATCH"
PYTHON_PATH = "PYTHONPATH"
STARTUP = Path(__file__).parents[1] / "watching" / "startup"
"""Contains the `sitecustomize.py` that Python runs before the program."""


class WatchRequest(Struct, frozen=True, kw_only=True):
    run: str
    """Name of the run; with a number if it is taken by then."""
    step: str | None = None
    """Name of the jitted function that is the step; None to find it."""
    output: str | None = None
    """The file that the program prints to; None if it prints elsewhere."""


def environment(request: WatchRequest) -> dict[str, str]:
    """Returns the environment in which Python runs a program watched. The program finds its own instead."""
    path = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get(PYTHON_PATH))))
    return {**os.environ, PYTHON_PATH: path, VARIABLE: msgspec.json.encode(request).decode()}


def take_request() -> WatchRequest:
    """Returns the request of this process, and gives it the environment and `sys.path` of an unwatched one."""
    request = msgspec.json.decode(os.environ.pop(VARIABLE), type=WatchRequest)
    sys.path.remove(str(STARTUP))
    own = [path for path in os.environ.pop(PYTHON_PATH).split(os.pathsep) if path != str(STARTUP)]
    if own:
        os.environ[PYTHON_PATH] = os.pathsep.join(own)
    return request
