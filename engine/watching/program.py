"""A watched program: finds its training step among all jitted functions, and reports it as a run."""

import atexit
import functools
import logging
import os
import sys
from collections.abc import Sequence
from opcode import opname
from typing import Any, NoReturn

import jax
from jax.core import Tracer
from jax.stages import Compiled

from ..base.formatting import listed
from ..base.output import say
from ..base.user_error import suggestion
from ..spec.watch_request import WatchRequest
from ..wire.events import StepFound
from .curves import Beside, Curves
from .jitted import EVERY, NEVER, UNSEEN, Call, Calls, replace_jit
from .looks import Looks
from .program_run import ProgramRun

FEWEST_CALLS = 3
"""Calls of a function that takes its own results, until it may be the step."""
SMALLEST_STATE = 0.1
"""A function whose state is smaller than this fraction of the step's never takes its place: it may be an evaluation."""
MOST = 20
LARGEST = 3
"""Functions that are named if none is the step."""

STEPS_LOOKED_AT = 2
"""Calls of the step that are looked at after another function was, which may be called beside it."""

_logger = logging.getLogger("shardtui")


class ExitStatus:
    """How a program ends: Python tells the functions that it calls at its exit nothing of it. So this notes the status
    that the program gives to `sys.exit`. It has to be made within the program."""

    def __init__(self) -> None:
        self._status: Any = None
        self._frame = sys._getframe()
        while self._frame.f_back:
            self._frame = self._frame.f_back
        real = sys.exit

        @functools.wraps(real)
        def exit(*status: Any) -> NoReturn:
            self._status = next(iter(status), None)
            with UNSEEN:
                real(*status)

        sys.exit = exit

    @property
    def error(self) -> BaseException | None:
        """What ended the program, once it has ended: an exception, or an exit with a status other than 0; else None."""
        code, at = self._frame.f_code.co_code, self._frame.f_lasti
        has_returned = opname[code[at]].startswith("RETURN")  # and any exit that it asked for was caught
        asked = None if has_returned or self._status in (None, 0) else SystemExit(self._status)
        return getattr(sys, "last_value", asked)


class Program:
    """Chooses the step: the function that takes its own results, of several the one with the most bytes in them."""

    def __init__(self, request: WatchRequest) -> None:
        self._request = request
        self._functions: dict[Any, Calls] = {}
        self._looks: dict[Calls, Looks] = {}
        self._step: Calls | None = None
        self._state_bytes = 0
        self._before = (0.0, 0.0)
        """When the last two calls of the step returned."""
        self._steps_to_look_at = 0
        self._run = ProgramRun(request)
        self._curves: Curves | None = None
        """Of the step, and of functions beside it."""
        self._process = os.getpid()
        self._exit: ExitStatus | None = None

    def begin(self) -> None:
        self._exit = ExitStatus()
        replace_jit(self._calls_of)
        jax.monitoring.register_event_duration_secs_listener(self._note_compile)
        atexit.register(self._end)

    def called(self, *fields: Any) -> None:
        """Looks at a call that has returned. Nothing that fails here reaches the program. `fields`: of the `Call`."""
        call = Call(*fields)
        try:
            if self._curves and call.calls is self._step:
                self._note_step(call, self._curves)
            elif self._curves and call.calls in self._curves:
                self._add(call)
            else:
                self._look(call)
        except Exception:
            call.calls.next_shown = NEVER
            _logger.warning("%s is no longer watched", call.calls.name, exc_info=True)

    def _calls_of(self, function: Any) -> Calls:
        """Returns the calls of a jitted function: of all that were jitted from the same code."""
        code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
        name = _module_name(function) if isinstance(function, Compiled) else getattr(function, "__qualname__", "?")
        return self._functions.setdefault((name, code), Calls(name, self.called))

    def _note_compile(self, event: str, *_: object, **__: object) -> None:
        if event.endswith("backend_compile_duration"):
            self._run.compiled += 1
            self._look_at_steps(1)

    def _look_at_steps(self, count: int) -> None:
        """Looks at the next calls of the step: jax may have compiled it, or a function may be called beside it."""
        if self._step:
            self._steps_to_look_at = max(self._steps_to_look_at, count)
            self._step.show = self.called

    def _note_step(self, call: Call, curves: Curves) -> None:
        looks = self._looks[call.calls]
        if self._steps_to_look_at:
            self._steps_to_look_at -= 1
            taken, made = _leaves(call)
            curves.join(self._beside(looks, taken, looks.made))
            looks.add(call, taken, made)
        self._run.update(call)
        self._add(call)
        self._note_end(call.calls)
        if not self._steps_to_look_at:
            reporter = self._run.reporter
            call.calls.show = (reporter and curves.recorder(reporter.step, self.called)) or self.called

    def _add(self, call: Call) -> None:
        """Adds the scalars of a call of the step, or of a function beside it."""
        if self._curves and self._run.reporter:
            self._curves.add(call)

    def _note_end(self, step: Calls) -> None:
        if step.ended != self._before[1]:
            self._before = self._before[1], step.ended

    def _look(self, call: Call) -> None:
        """Makes the function the step if it took what it returned by the call before."""
        calls = call.calls
        taken, made = _leaves(call)
        if any(isinstance(leaf, Tracer) for leaf in (*taken, *made)):
            calls.count -= 1  # while another function is traced
            return
        looks = self._looks.setdefault(calls, Looks())
        if self._step:
            self._note_end(self._step)
        is_idle = bool(looks.last) and looks.last[-1].ended > self._before[1]
        returned = looks.made
        looks.add(call, taken, made)
        self._look_at_steps(STEPS_LOOKED_AT)
        if looks.state and calls.count >= FEWEST_CALLS and self._is_step(calls, looks.state_bytes, is_idle):
            self._begin(call, looks, taken, returned)
        else:
            calls.decide_next()

    def _is_step(self, calls: Calls, state_bytes: int, is_idle: bool) -> bool:
        """`is_idle`: whether the step was not called since the call before."""
        if self._request.step:
            return self._request.step in (calls.name, calls.short_name)
        is_idle &= self._step is not None
        return state_bytes > self._state_bytes or (is_idle and state_bytes >= SMALLEST_STATE * self._state_bytes)

    def _begin(self, call: Call, looks: Looks, taken: Sequence[Any], returned: set[int]) -> None:
        if self._step:
            self._step.show = self.called
            self._step.decide_next()
        self._step, self._state_bytes = call.calls, looks.state_bytes
        since, ended = self._before[1], [0.0, *(look.ended for look in looks.last)]
        self._before = ended[-3], ended[-2]
        beside = self._beside(looks, taken, returned)
        if self._curves:
            self._curves.flush()
        self._curves = Curves(call.calls, looks, self._run.report)
        self._curves.join(beside)
        self._run.begin(call, {*looks.state.values()}, call.calls.count - len(looks.latest(since)))
        self._curves.catch_up(since)
        self._before = ended[-2], ended[-1]
        self._run.publish(self._found(call.calls))
        call.calls.next_shown = EVERY

    def _beside(self, step: Looks, taken: Sequence[Any], returned: set[int]) -> list[Beside]:
        """Finds the functions that were called once before this call of the step and once before the last one, and take
        its state or make what it takes. `taken`: leaves of its arguments; `returned`: arrays of its call before."""
        found: list[Beside] = []
        for calls, looks in self._looks.items():
            is_shown = self._curves is not None and calls in self._curves
            if looks is step or is_shown or looks.last[-1].number != calls.count:
                continue
            is_linked = not (looks.made.isdisjoint(map(id, taken)) and looks.taken.isdisjoint(returned))
            if is_linked and looks.is_once_a_step(*self._before):
                calls.next_shown = EVERY
                found.append(Beside(calls, looks, is_after=looks.began > step.began))
        return found

    def _found(self, step: Calls) -> StepFound:
        return StepFound(
            step=step.summary, others=[calls.summary for calls in self._called() if calls is not step][:MOST]
        )

    def _called(self) -> list[Calls]:
        """Returns the functions that were called, the one with the largest arguments first."""
        called = (calls for calls in self._functions.values() if calls.count)
        return sorted(called, key=lambda calls: calls.bytes, reverse=True)

    def _end(self) -> None:
        if os.getpid() == self._process:  # else a child that was forked
            if self._step:
                self._run.publish(self._found(self._step))
                if self._curves:
                    self._curves.flush()
                self._run.end(self._exit and self._exit.error)
            else:
                say(self._why_nothing())

    def _why_nothing(self) -> str:
        called = self._called()
        if step := self._request.step:
            maybe = suggestion(step, [calls.name for calls in called])
            return f"--step {step}: no jitted function of this name takes its own results: {maybe}{_named(called)}"
        return f"ended after {len(called)} jitted functions, none called three times in a chain: {_named(called)}"


def _named(called: Sequence[Calls]) -> str:
    names = [calls.summary.words for calls in called]
    return f"the largest were {listed(names, LARGEST)}" if names else "none was called"


def _module_name(compiled: Compiled) -> str:
    """Returns `train_step` for a program compiled ahead; `?` if its backend does not know."""
    executable = compiled.runtime_executable()
    modules = executable.hlo_modules() if executable is not None else []
    return modules[0].name.removeprefix("jit_") if modules else "?"


def _leaves(call: Call) -> tuple[list[Any], list[Any]]:
    """Returns the leaves of its arguments and of its results."""
    return jax.tree.leaves((call.args, call.kwargs)), jax.tree.leaves(call.result)
