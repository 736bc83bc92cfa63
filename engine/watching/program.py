"""A watched program: finds its training step among all jitted functions, and reports it as a run."""

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jax.stages import Compiled

from ..base.formatting import listed
from ..base.output import say
from ..base.user_error import suggestion
from ..spec.watch_request import WatchRequest
from ..wire.events import StepFound
from .jitted import EVERY, NEVER, Call, Calls, replace_jit
from .program_run import ProgramRun

FEWEST_CALLS = 3
"""Calls of a function that takes its own results, until it may be the step."""
SMALLEST_STATE = 0.1
"""A function whose state is smaller than this fraction of the step's never takes its place: it may be an evaluation."""
MOST = 20
LARGEST = 3
"""Functions that are named if none is the step."""

_logger = logging.getLogger("shardtui")


@dataclass
class _Seen:
    """The last call of a function that was looked at."""

    number: int
    results: list[weakref.ref[Any]]
    steps: int
    """Calls of the step by then."""


class Program:
    """Chooses the step: the function that takes its own results, of several the one with the most bytes in them."""

    def __init__(self, request: WatchRequest) -> None:
        self._request = request
        self._functions: dict[Any, Calls] = {}
        self._seen: dict[Calls, _Seen] = {}
        self._step: Calls | None = None
        self._state_bytes = 0
        self._run = ProgramRun(request)
        self._process = os.getpid()

    def begin(self) -> None:
        replace_jit(self._calls_of)
        jax.monitoring.register_event_duration_secs_listener(self._run.note_compile)
        atexit.register(self._end)

    def called(self, call: Call) -> None:
        """Looks at a call that has returned. Nothing that fails here reaches the program."""
        try:
            if call.calls is self._step:
                self._run.step(call)
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

    def _look(self, call: Call) -> None:
        """Makes the function the step if it took what it returned by the call before."""
        calls = call.calls
        taken, made = jax.tree.leaves((call.args, call.kwargs)), jax.tree.leaves(call.result)
        if any(isinstance(leaf, Tracer) for leaf in (*taken, *made)):
            calls.count -= 1  # while another function is traced
            return
        arrays = {id(leaf): leaf for leaf in taken if isinstance(leaf, jax.Array)}
        calls.bytes = max(calls.bytes, sum(array.nbytes for array in arrays.values()))
        seen = self._seen.get(calls)
        before = [array() for array in seen.results] if seen and seen.number == calls.count - 1 else []
        state = {at: id(array) for at, array in enumerate(before) if id(array) in arrays}
        state_bytes = sum(arrays[identity].nbytes for identity in {*state.values()})
        if state and calls.count >= FEWEST_CALLS and self._is_step(calls, state_bytes):
            self._state_bytes = state_bytes
            self._begin(call, state)
        else:
            steps = self._step.count if self._step else 0
            self._seen[calls] = _Seen(calls.count, [_reference(leaf) for leaf in made], steps)
            calls.decide_next()

    def _is_step(self, calls: Calls, state_bytes: int) -> bool:
        if self._request.step:
            return self._request.step in (calls.name, calls.name.rpartition(".")[2])
        is_idle = self._step is not None and self._seen[calls].steps == self._step.count
        return state_bytes > self._state_bytes or (is_idle and state_bytes >= SMALLEST_STATE * self._state_bytes)

    def _begin(self, call: Call, state: dict[int, int]) -> None:
        """`state`: of each result that is an argument again, its index and the identity of the array."""
        if self._step:
            self._step.decide_next()
        self._step, call.calls.next_shown = call.calls, EVERY
        self._seen.clear()
        self._run.begin(call, {*state.values()}, {*state})
        self._run.publish(self._found(call.calls))
        self._run.step(call)

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
                self._run.end(getattr(sys, "last_value", None))
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


def _reference(leaf: Any) -> weakref.ref[Any]:
    return weakref.ref(leaf) if isinstance(leaf, jax.Array) else _NOTHING


_NOTHING: weakref.ref[Any] = weakref.ref(type("", (), {})())
