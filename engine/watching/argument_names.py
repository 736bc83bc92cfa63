"""The names of a call's arguments, as its program has them."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import jax

from ..program.pytree_arrays import Path, leaves, path_of
from .jitted import Call

MOST_FRAMES = 16
"""Frames above a call in which a library's own `jit` is looked for: NNX and Equinox take few."""


class Names:
    """A library's own `jit`, as of NNX and Equinox, may pass the arrays on without their names. So they are taken from
    the outermost call that has the same arrays as its `args` and `kwargs`."""

    def __init__(self, call: Call) -> None:
        function, arguments = _outermost(call)
        self._parameters = _parameters(function)
        named = jax.tree_util.tree_flatten_with_path(arguments)[0]
        self.paths = {id(leaf): self._with_parameter(path_of(keys)) for keys, leaf in named}
        """Paths of all arguments by identity, of NumPy's arrays and numbers, too."""
        self.leaves = [replace(leaf, path=self._with_parameter(leaf.path)) for leaf in leaves(arguments)]

    def _with_parameter(self, path: Path) -> Path:
        """Names an argument that is a single array after its parameter."""
        match path:
            case (0, int(at)) if at < len(self._parameters):
                return (0, self._parameters[at])
            case _:
                return path


def _outermost(call: Call) -> tuple[Any, tuple[Any, dict[str, Any]]]:
    """Returns the function and the arguments of the outermost call with all arrays of this one."""
    found, arguments = call.function, (call.args, call.kwargs)
    arrays = _arrays(arguments)
    for values in (frame.f_locals for frame in _frames()):
        match values:
            case {"args": tuple(args), "kwargs": dict(kwargs)} if arrays <= _arrays((args, kwargs)):
                found, arguments = values.get("self", found), (args, kwargs)
            case _:
                pass
    return found, arguments


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _arrays(arguments: Any) -> set[int]:
    return {id(leaf) for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)}


def _parameters(function: Any) -> Sequence[str]:
    with suppress(ValueError, TypeError):  # not every callable has a signature
        return list(inspect.signature(function).parameters)
    return ()
