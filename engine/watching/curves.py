"""The curves of a watched program: the scalars of its step, and of functions that are called beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.core import Tracer

from .jitted import Call, Calls, Show
from .looks import Looks
from .scalars import Scalars, loss_rank


@dataclass
class Beside:
    """A function that is called once between two calls of the step."""

    calls: Calls
    looks: Looks
    is_after: bool
    """Whether its calls belong to the step before: its first call came after the step's."""


class Curves:
    """Collects the scalars of each step, and reports them once they are complete."""

    def __init__(self, step: Calls, looks: Looks, report: Callable[[Any, dict[str, Any], float | None], None]) -> None:
        """`report`: is called with the loss of each step, its other scalars, and its seconds if they are known."""
        self._step, self._looks, self._report = step, looks, report
        self._beside: dict[Calls, Beside] = {}
        self._scalars: dict[Calls, Scalars] = {}
        self._before: dict[str, Any] = {}
        """Scalars of functions that were called since the last step, and belong to the next one."""
        self._held: tuple[dict[str, Any], float | None] | None = None
        """The last step, which waits for the functions after it."""
        self._awaited: set[str] = set()
        """Scalars of these functions."""
        self._ranks: dict[str, tuple[float, ...]] = {}
        self._loss: str | None = None
        """The scalar called so, else one with a name like it, else the first; only if there is no other, of a function
        after the step."""
        self._add_names(step, looks, is_after=False)

    def __contains__(self, calls: Calls) -> bool:
        """Whether it is a function beside the step."""
        return calls in self._beside

    def join(self, functions: Sequence[Beside]) -> None:
        for beside in functions:
            self._add_names(beside.calls, beside.looks, beside.is_after)
            self._beside[beside.calls] = beside
            if beside.is_after:
                self._awaited |= {*beside.looks.scalars.names}

    def _add_names(self, calls: Calls, looks: Looks, is_after: bool) -> None:
        """Makes the names unique, also where the loss has another one, and ranks them as the loss."""
        self._scalars[calls] = looks.scalars
        names = looks.scalars.names
        for at, name in enumerate(names):
            name = name or calls.short_name
            while name in self._ranks or (is_after and name == "loss"):
                name = f"{calls.short_name}/{name}"
            names[at] = name
            self._ranks[name] = (is_after, *loss_rank(name), looks.began)

    def add(self, call: Call) -> None:
        """Adds a call of the step or of a function beside it."""
        scalars = self._scalars[call.calls]
        values = scalars.values(call.result)
        if not (values and isinstance(values[0], Tracer)):
            self._add(call.calls, dict(zip(scalars.names, values, strict=True)))

    def recorder(self, report: Callable[[list[Any], list[str]], None], otherwise: Show) -> Show | None:
        """Returns a fast way to report a call of the step, if no other function has scalars. `otherwise`: is called
        where that fails, or the step is called while another function is traced."""
        if self._loss is None or self._beside:
            return None
        scalars = self._scalars[self._step]
        scalars.put_first(self._loss)
        read, names = scalars.values, scalars.names

        def record(calls: Calls, function: Any, args: Any, kwargs: Any, result: Any) -> None:
            try:
                values = read(result)
                if not isinstance(values[0], Tracer):
                    return report(values, names)
            except (LookupError, AttributeError, TypeError):
                pass
            return otherwise(calls, function, args, kwargs, result)

        return record

    def catch_up(self, since: float) -> None:
        """Adds the calls that returned after `since`, as far as they were looked at."""
        steps = self._looks.latest(since)
        functions = [(self._step, self._looks), *((beside.calls, beside.looks) for beside in self._beside.values())]
        calls = [(look, calls) for calls, looks in functions for look in looks.latest(since)]
        before = steps[0].ended - steps[0].seconds / steps[0].number
        for look, function in sorted(calls, key=lambda each: each[0].ended):
            self._add(function, self._scalars[function].pick(look.scalars), look.ended - before)
            before = look.ended if function is self._step else before

    def _add(self, function: Calls, values: dict[str, Any], seconds: float | None = None) -> None:
        if function is self._step:
            self.flush()
            self._held = values | self._before, seconds
            self._before = {}
        elif not self._beside[function].is_after:
            self._before |= values
        elif self._held:
            self._held[0].update(values)
        if self._held and self._awaited <= self._held[0].keys():
            self.flush()

    def flush(self) -> None:
        """Reports the last step, whatever it waits for."""
        if self._held:
            (values, seconds), self._held = self._held, None
            self._awaited &= values.keys()
            if self._loss is None:
                self._loss = min(self._ranks, key=self._ranks.__getitem__, default=None)
            loss = values.pop(self._loss, None) if self._loss else None
            self._report(loss, values, seconds)
