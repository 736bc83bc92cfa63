"""The run of a watched program: its layouts and the scalars of its steps."""

import logging
import sys
from collections.abc import Sequence
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
from .curves import Beside, Curves
from .external import describe
from .external_step import CompiledStep, compile_lowered
from .jitted import Call, Calls, Show
from .looks import Looks
from .reporter import Reporter
from .run import Watch

PRESET = "as-run"

_logger = logging.getLogger("shardtui")


class ProgramRun:
    def __init__(self, request: WatchRequest) -> None:
        self._request = request
        self._watch: Watch | None = None
        self._reporter: Reporter | None = None
        self._curves: Curves | None = None
        self._state: set[KeyPath] = set()
        """Paths of the arrays that the step takes from its own results."""
        self.compiled = self._shown = 0
        """Programs compiled by this process, now and when the step's was looked at."""
        self._executable: Any = None
        """The step's, as it is shown."""

    def publish(self, event: Event) -> None:
        if self._reporter:
            self._reporter.publish(event)

    def shows(self, calls: Calls) -> bool:
        """Whether it is a function beside the step."""
        return self._curves is not None and calls in self._curves

    def begin(self, call: Call, looks: Looks, beside: Sequence[Beside], since: float) -> None:
        """Shows a function as the step. `since`: when the step before returned for the last time."""
        if self._curves:
            self._curves.flush()
        self._curves = Curves(call.calls, looks, self._report)
        self._curves.join(beside)
        names, state = Names(call), {*looks.state.values()}
        self._state = {leaf.path for leaf in names.leaves if leaf.identity in state}
        self._show(call, names, call.calls.count - len(looks.latest(since)))
        self._curves.catch_up(since)

    def recorder(self, otherwise: Show) -> Show | None:
        """Returns a fast way to report a call of the step, if there is one."""
        return self._curves.recorder(self._reporter.step, otherwise) if self._curves and self._reporter else None

    def join(self, beside: Sequence[Beside]) -> None:
        """Shows functions that are called beside the step."""
        if self._curves:
            self._curves.join(beside)

    def step(self, call: Call) -> None:
        if not self._reporter:
            return
        if self.compiled != self._shown and not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            self._show(call, Names(call), call.calls.count - 1)
        self.add(call)

    def add(self, call: Call) -> None:
        """Adds the scalars of a call of the step, or of a function beside it."""
        if self._reporter and self._curves:
            self._curves.add(call)

    def _report(self, loss: Any, metrics: dict[str, Any], seconds: float | None) -> None:
        if self._reporter:
            self._reporter.step((loss, *metrics.values()), [None, *metrics], seconds)

    def end(self, error: BaseException | None) -> None:
        if self._curves:
            self._curves.flush()
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
        if self._reporter:
            self._reporter.publish(found.layout, found.step)
        else:
            self._open(found, steps_done)

    def _open(self, found: Any, steps_done: int) -> None:
        about = WatchedRun(run=self._request.run, model_name=Path(sys.argv[0]).name, preset=PRESET)
        output = Path(self._request.output) if self._request.output else None
        self._watch = Watch(about, found, steps_done, output=output).__enter__()
        self._reporter = self._watch.reporter
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
