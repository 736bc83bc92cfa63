"""Reads the location of an operation: the name that jax gave it, and its line of the user's code."""

import re
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from ..analysis.hlo import LIBRARIES

NAME = re.compile(r'loc\((?:fused[^\[]*\[)?"((?:[^"\\]|\\.)*)"(?!:)')
FRAME = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
CALLER = str(Path(__file__).with_name("user_program.py"))
"""Calls the user's function: no frame further out is the user's."""


class Place(NamedTuple):
    """Where an operation comes from."""

    op_name: str
    """Name that jax gave it, such as `jit(step)/jvp(blocks)/mlp/dot_general`."""
    source: str
    """`file:line` of the innermost frame outside libraries; empty if there is none."""


class Places:
    """The places of a module's operations, each text read once: many operations share a location."""

    def __init__(self) -> None:
        self._known: dict[Any, Place] = {}

    def of(self, location: Any) -> Place:
        """Returns the place of a location of jaxlib's MLIR bindings."""
        key = location.attr
        if key not in self._known:
            self._known[key] = _read(str(location))
        return self._known[key]


def _read(text: str) -> Place:
    name = NAME.match(text)
    frames = takewhile(lambda frame: frame[0] != CALLER, FRAME.findall(text))
    source = next((f"{file}:{line}" for file, line in frames if not LIBRARIES.search(file)), "")
    return Place(name[1] if name else "", source)
