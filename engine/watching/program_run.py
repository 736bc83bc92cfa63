"""The run of a watched program: its layouts and the scalars of its steps."""

import inspect
import logging
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.core import Tracer
from jax.stages import Compiled

from ..base.output import say
from ..program.pytree_arrays import Leaf, leaves, path_of
from ..program.pytree_arrays import Path as KeyPath
from ..spec.config import WatchedRun
from ..wire.events import Event
from ..wire.run_directory import free_name
from .external import describe
from .external_step import CompiledStep, compile_lowered
from .jitted import Call, outer_call
from .run import Watch
from .scalars import Scalars

PRESET = "as-run"
LONGEST_STEM = 48

_logger = logging.getLogger("shardtui")


class ProgramRun:
    def __init__(self, name: str | None) -> None:
        self._name = name
        self._watch: Watch | None = None
        self._scalars: Scalars
        self._state: set[KeyPath] = set()
        """Paths of the arrays that the step takes from its own results."""
        self._compiled = self._shown = 0
        """Programs compiled by this process, now and when the step's was looked at."""
        self._executable: Any = None
        """The step's, as it is shown."""

    def note_compile(self, event: str, *_: object, **__: object) -> None:
        self._compiled += event.endswith("backend_compile_duration")

    def publish(self, event: Event) -> None:
        if self._watch:
            self._watch.publish(event)

    def begin(self, call: Call, state: Collection[int], places: Collection[int]) -> None:
        """Shows a function as the step. `state`: identities of the arguments that were its results, `places`: the
        indices of these results."""
        self._scalars = Scalars(call.result, places)
        self._state = {leaf.path for leaf in _named(call) if leaf.identity in state}
        self._show(call)

    def step(self, call: Call) -> None:
        if self._compiled != self._shown:
            self._show(call)
        values = self._scalars.read(call.result)
        if self._watch and not any(isinstance(value, Tracer) for value in values.values()):
            self._watch.step(values.pop(self._scalars.loss, None), **values)

    def end(self, error: BaseException | None) -> None:
        if self._watch:
            self._watch.__exit__(type(error) if error else None, error, None)

    def _show(self, call: Call) -> None:
        """Describes the step's program, if it is another one."""
        known = _known(call)
        self._shown = self._compiled
        executable = known and known.compiled.runtime_executable()
        if jax.process_index() > 0 or (executable and executable is self._executable):
            return
        self._executable = executable
        state = [leaf for leaf in _named(call) if leaf.path in self._state]
        found = describe(PRESET, state, known, None)
        if self._watch:
            self._watch.publish(found.layout, found.step)
        else:
            self._open(found, call.calls.count - 1)

    def _open(self, found: Any, steps_done: int) -> None:
        program = Path(sys.argv[0])
        stem = re.sub(r"[^a-z0-9._-]+|^[._-]+", "-", program.stem.lower()).strip("-")[:LONGEST_STEM] or "program"
        about = WatchedRun(run=self._name or free_name(stem), model_name=program.name, preset=PRESET)
        self._watch = Watch(about, found, steps_done).__enter__()
        if name := self._watch.name:
            say(f"watching as {name}: shardtui attach {name}")


def _named(call: Call) -> list[Leaf]:
    """Returns the arrays among the arguments, by the names that they have in the program."""
    function, *arguments = outer_call() or (call.function, call.args, call.kwargs)
    names = _parameters(function)
    return [replace(leaf, path=_with_parameter(leaf.path, names)) for leaf in leaves(tuple(arguments))]


def _paths(call: Call) -> dict[int, KeyPath]:
    """Returns the paths of all arguments by identity, of NumPy's arrays and of numbers, too."""
    function, *arguments = outer_call() or (call.function, call.args, call.kwargs)
    names = _parameters(function)
    flat = jax.tree_util.tree_flatten_with_path(tuple(arguments))[0]
    return {id(leaf): _with_parameter(path_of(keys), names) for keys, leaf in flat}


def _parameters(function: Any) -> list[str]:
    with suppress(ValueError, TypeError):  # not every callable has a signature
        return list(inspect.signature(function).parameters)
    return []


def _with_parameter(path: KeyPath, names: Sequence[str]) -> KeyPath:
    """Names a single array after its parameter."""
    match path:
        case (0, int(at)) if at < len(names):
            return (0, names[at])
        case _:
            return path


def _known(call: Call) -> CompiledStep | None:
    """Returns the step that has just run: jax has it already. None if jax does not give it."""
    try:
        if isinstance(call.function, Compiled):
            return CompiledStep(call.function, call.args, call.kwargs, _paths(call))
        known = compile_lowered(call.function.lower(*call.args, **call.kwargs), call.args, call.kwargs)
        return replace(known, paths=_paths(call))
    except Exception:
        _logger.warning("%s is shown without its program, which jax does not give", call.calls.name, exc_info=True)
        return None
