"""What `jax.jit` returns in a watched program: it counts its calls, and shows some of them to the program's watcher.

Every function of jax's own keeps the real `jit`, and only names of the public API are replaced.
"""

import functools
import logging
import sys
from collections.abc import Callable
from time import perf_counter
from types import MethodType, TracebackType
from typing import Any, NamedTuple

import jax
from jax.extend.source_info_util import register_exclusion
from jax.stages import Compiled

from ..wire.events import FunctionCalls

register_exclusion(__file__)  # a function called while jax traces stands at its caller's line
ALWAYS_SHOWN = 3
"""Calls; of later ones, numbers 2ⁿ and 2ⁿ + 1 are shown."""
EVERY, NEVER = 0, sys.maxsize

_logger = logging.getLogger("shardtui")


class Calls:
    """The calls of one jitted function, which may be jitted again and again."""

    def __init__(self, name: str, show: "Show") -> None:
        self.name, self.show = name, show
        self.is_mapped = False
        """Whether it is a function of `jax.pmap`, each result of which has an axis of devices."""
        self.count = 0
        self.seconds = 0.0
        """Seconds until the calls returned: devices may go on."""
        self.ended = 0.0
        """When the last call returned."""
        self.bytes = 0
        """Of the arguments' arrays, at most, in calls that were shown."""
        self.next_shown = 1
        """Number of the next call that is shown, or `EVERY` or `NEVER`."""

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def summary(self) -> FunctionCalls:
        return FunctionCalls(self.name, self.count, self.seconds, self.bytes)

    def decide_next(self) -> None:
        """Chooses the next call to show: adjacent ones in pairs, ever rarer."""
        number = self.count
        if number >= ALWAYS_SHOWN and number & (number - 1):
            self.next_shown = 1 << number.bit_length()
        else:
            self.next_shown = number + 1


class Call(NamedTuple):
    """A call that has returned."""

    calls: Calls
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


Show = Callable[[Calls, Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Shows a call, given as the fields of `Call`: to make one takes a microsecond."""


class _Unseen:
    """Takes the frame that it stands in out of an error's traceback."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error:
            _hide_frame(error)


def _hide_frame(error: BaseException) -> None:
    """Takes the outermost frame out of an error's traceback."""
    if error.__traceback__:
        error.__traceback__ = error.__traceback__.tb_next


UNSEEN = _Unseen()


class Jitted:
    """A stand-in for a jitted function: it has its type and attributes, is pickled as it, and is called as it."""

    def __init__(self, function: Any, calls: Calls, call: Callable[..., Any] | None = None) -> None:
        """`call`: calls the function; by default, the function itself."""
        functools.update_wrapper(self, function)
        if hasattr(function, "__wrapped__"):
            self.__wrapped__ = function.__wrapped__
        self._watched, self._calls, self._call = function, calls, call or function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls, began = self._calls, perf_counter()
        try:  # `with UNSEEN` would take 0.3 µs
            result = self._call(*args, **kwargs)
        except BaseException as error:
            _hide_frame(error)
            raise
        calls.ended = ended = perf_counter()
        calls.seconds += ended - began
        calls.count += 1
        if calls.count >= calls.next_shown:
            calls.show(calls, self._watched, args, kwargs, result)
        return result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._watched)

    def __repr__(self) -> str:
        return repr(self._watched)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._watched.__reduce_ex__(protocol)


def replace_jit(calls_of: Callable[[Any], Calls]) -> None:
    """Replaces `jax.jit`, `jax.pmap` and the call of programs compiled ahead. `calls_of`: of a jitted function."""

    def stand_in(function: Any, call: Callable[..., Any] | None = None, is_mapped: bool = False) -> Any:
        try:
            calls = calls_of(function)
            calls.is_mapped = is_mapped
            return Jitted(function, calls, call)
        except Exception:
            _logger.warning("%r is not watched", function, exc_info=True)
            return call or function

    jax.jit = _also_as_decorator(jax.jit, stand_in)
    jax.pmap = _also_as_decorator(jax.pmap, functools.partial(stand_in, is_mapped=True))
    call, stand_in_key = Compiled.__call__, "_watched"

    def call_compiled(self: Compiled, *args: Any, **kwargs: Any) -> Any:
        if (found := vars(self).get(stand_in_key)) is None:
            found = vars(self)[stand_in_key] = stand_in(self, functools.partial(call, self))
        with UNSEEN:
            return found(*args, **kwargs)

    Compiled.__call__ = call_compiled


def _also_as_decorator(real: Any, stand_in: Callable[[Any], Any]) -> Any:
    @functools.wraps(real)
    def jit(*args: Any, **kwargs: Any) -> Any:
        with UNSEEN:
            made = real(*args, **kwargs)
        return stand_in(made) if hasattr(made, "lower") else _also_as_decorator(made, stand_in)

    jit.__module__ = "jax"  # where pickle finds it again
    return jit
