"""Starts to watch the program of this process, which has not begun. It imports jax itself, if and when it wants."""

import atexit
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ..base.output import say
from ..spec.watch_request import take_request

NO_JAX = (
    "the program never imported jax: nothing to watch; if it starts processes that do, put `shardtui watch` in front "
    "of their commands"
)


def start() -> None:
    request = take_request()

    def jax_imported(_: ModuleType) -> None:
        try:
            from .program import Program

            Program(request).begin()
        except Exception:
            logging.getLogger("shardtui").warning("the program is not watched", exc_info=True)

    waiting, process = _AfterImport("jax", jax_imported), os.getpid()
    sys.meta_path.insert(0, waiting)

    def end() -> None:
        if waiting in sys.meta_path and os.getpid() == process:
            say(NO_JAX)

    atexit.register(end)


class _AfterImport(MetaPathFinder):
    """Calls a function right after a module was imported for the first time."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name, self._action = name, action

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        if (spec := find_spec(name)) and spec.loader:
            _extend(spec.loader, self._action)
        return spec


def _extend(loader: Any, action: Callable[[ModuleType], None]) -> None:
    """Makes a module's own loader call the action after it has run the module."""

    def execute(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        action(module)

    loader.exec_module = execute
