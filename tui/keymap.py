"""The user's keys: `keys.toml` in the configuration directory, checked before the UI opens."""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import iter_modules

from textual.binding import Binding, BindingsMap
from textual.keys import KEY_NAME_REPLACEMENTS, Keys

from ..engine.base.user_error import UserError, suggestion
from ..engine.spec.preset_files import read_toml
from . import screens, widgets
from .app_keys import KEYS

NAMED_KEYS = {key.value for key in Keys} | set(KEY_NAME_REPLACEMENTS.values()) | {"plus", "minus", "space"}
MODIFIERS = re.compile(r"(?:(?:ctrl|shift|alt)\+)*")


def load_keymap(path: Path) -> dict[str, str]:
    """Returns the keys in a file by the id of their binding. Raises UserError with every problem."""
    known = {binding.id: binding for binding in every_binding() if binding.id}
    found = read_toml(path)
    problems = [problem for id, key in found.items() for problem in _problems(id, key, known)]
    keymap = {id: key for id, key in found.items() if id in known and isinstance(key, str)}
    old = set(clashes({}))
    problems += [
        f"{key}: both {one} and {other}" for key, one, other in clashes(keymap) if (key, one, other) not in old
    ]
    if problems:
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    return keymap


def _problems(id: str, key: object, known: Mapping[str, Binding]) -> Iterator[str]:
    if id not in known:
        yield f"{id}: unknown key binding: {suggestion(id, known)}the bindings are {', '.join(known)}"
    if not isinstance(key, str) or not all(map(is_key, key.split(","))):
        yield f'{id} = {key!r}: not a key, such as "C", "f5" or "ctrl+g"'


def is_key(name: str) -> bool:
    base = name[MODIFIERS.match(name).end() :]  # type: ignore[union-attr] # it matches an empty text, too
    return len(base) == 1 or base in NAMED_KEYS


def every_binding() -> Iterator[Binding]:
    yield from (binding for _, binding in BindingsMap(KEYS))
    for package in (screens, widgets):
        for info in iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{info.name}")
            for kind in vars(module).values():
                if isinstance(kind, type) and kind.__module__ == module.__name__ and "BINDINGS" in vars(kind):
                    yield from (binding for _, binding in BindingsMap(vars(kind)["BINDINGS"]))


def clashes(keymap: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields keys, each with the ids of two bindings that have it in one view, or in a view and everywhere."""
    held: dict[tuple[str, str], set[str]] = {}
    for binding in every_binding():
        if binding.id:
            scope = binding.id.rpartition(".")[0]  # empty for the app's, else the view or widget
            for key in keymap.get(binding.id, binding.key).split(","):
                held.setdefault((key, scope), set()).add(binding.id)
    for (key, scope), ids in held.items():
        everywhere = held.get((key, ""), set()) if scope else set[str]()
        for one, other in combinations(sorted(ids | everywhere), 2):
            yield key, one, other
