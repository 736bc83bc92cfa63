"""Starts to watch the program of this process, which has not begun. It imports jax itself, if and when it wants."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..spec.watch_request import take_request


def start() -> None:
    request = take_request()

    def jax_imported(_: ModuleType) -> None:
        from .program import Program

        Program(request).begin()

    def nnx_imported(nnx: ModuleType) -> None:
        from .jitted import name_arguments

        name_arguments(nnx)

    sys.meta_path.insert(0, _AfterImport({"jax": jax_imported, "flax.nnx": nnx_imported}))


class _AfterImport(MetaPathFinder):
    """Calls a function once, right after a module was imported."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if (action := self._actions.pop(name, None)) is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec), None)
        if spec and spec.loader:
            _extend(spec.loader, action)
        return spec


def _extend(loader: Any, action: Callable[[ModuleType], None]) -> None:
    """Makes a module's own loader call the action after it has run the module."""

    def execute(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        action(module)

    loader.exec_module = execute
