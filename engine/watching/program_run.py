"""The run of a watched program: its layouts and the scalars of its steps."""

import logging
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.stages import Compiled

from ..base.output import say
from ..program.pytree_arrays import Path as KeyPath
from ..spec.config import WatchedRun
from ..spec.watch_request import WatchRequest
from ..wire.events import Event
from .argument_names import Names
from .external import describe
from .external_step import CompiledStep, compile_lowered
from .jitted import Call
from .reporter import Reporter
from .run import Watch

PRESET = "as-run"

_logger = logging.getLogger("shardtui")


class ProgramRun:
    def __init__(self, request: WatchRequest) -> None:
        self._request = request
        self._watch: Watch | None = None
        self.reporter: Reporter | None = None
        """None until the step is shown, and in processes that report nothing."""
        self._state: set[KeyPath] = set()
        """Paths of the arrays that the step takes from its own results."""
        self.compiled = self._shown = 0
        """Programs compiled by this process, now and when the step's was looked at."""
        self._executable: Any = None
        """The step's, as it is shown."""

    def publish(self, event: Event) -> None:
        if self.reporter:
            self.reporter.publish(event)

    def begin(self, call: Call, state: Collection[int], steps_done: int) -> None:
        """Shows a function as the step. `state`: identities of the arrays that it takes from its own results."""
        names = Names(call)
        self._state = {leaf.path for leaf in names.leaves if leaf.identity in state}
        self._show(call, names, steps_done)

    def update(self, call: Call) -> None:
        """Shows the program of the step again, if jax may have compiled another one."""
        if self.reporter and self.compiled != self._shown and not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            self._show(call, Names(call), call.calls.count - 1)

    def report(self, loss: Any, metrics: dict[str, Any], seconds: float | None) -> None:
        """Reports a step, as `Curves` collects it."""
        if self.reporter:
            self.reporter.step((loss, *metrics.values()), [None, *metrics], seconds)

    def end(self, error: BaseException | None) -> None:
        if self._watch:
            self._watch.__exit__(type(error) if error else None, error, None)

    def _show(self, call: Call, names: Names, steps_done: int) -> None:
        """Describes the step's program, if it is another one, in the process that reports."""
        if jax.process_index() > 0:
            return
        known = _known(call, names)
        self._shown = self.compiled
        executable = known and known.compiled.runtime_executable()
        if executable and executable is self._executable:
            return
        self._executable = executable
        state = [leaf for leaf in names.leaves if leaf.path in self._state]
        found = describe(PRESET, state, known, None)
        if self.reporter:
            self.reporter.publish(found.layout, found.step)
        else:
            self._open(found, steps_done)

    def _open(self, found: Any, steps_done: int) -> None:
        about = WatchedRun(run=self._request.run, model_name=Path(sys.argv[0]).name, preset=PRESET)
        output = Path(self._request.output) if self._request.output else None
        self._watch = Watch(about, found, steps_done, output=output).__enter__()
        self.reporter = self._watch.reporter
        if name := self._watch.name:
            say(f"watching as {name}: shardtui attach {name}")


def _known(call: Call, names: Names) -> CompiledStep | None:
    """Returns the step that has just run: jax has it already. None if jax does not give it."""
    try:
        if isinstance(call.function, Compiled):
            return CompiledStep(call.function, call.args, call.kwargs, names.paths)
        known = compile_lowered(call.function.lower(*call.args, **call.kwargs), call.args, call.kwargs)
        return replace(known, paths=names.paths)
    except Exception:
        _logger.warning("%s is shown without its program, which jax does not give", call.calls.name, exc_info=True)
        return None
