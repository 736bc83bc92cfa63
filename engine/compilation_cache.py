"""jax's persistent compilation cache: where it is, how entries in it that are damaged are replaced, and its hits."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import jax
from etils import epath

from .run_directory import compilation_cache


def use_compilation_cache() -> None:
    """Every program is kept for the next start. What the user's environment says of the cache goes before."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    _replace_damaged_entries()


@functools.cache
def _replace_damaged_entries() -> None:
    """jax never writes over an entry. One that was cut short by a full disk or a kill would stay, and its program be
    compiled at every start. jax has no public hook for this; without its two private functions all is as jax has it."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import compilation_cache as entries

        entries.get_executable_and_time = _deleting_on_failure(entries.get_executable_and_time)
        entries.put_executable_and_time = _deleting_on_failure(entries.put_executable_and_time)


def _deleting_on_failure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where `function`, whose first argument is the key, cannot read or write an entry, that goes. jax warns of the
    error and compiles; what it then writes takes the place."""

    @functools.wraps(function)
    def deleting(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception:
            with contextlib.suppress(OSError):  # a directory that cannot be written
                folder = epath.Path(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
                (folder / f"{arguments[0]}-cache").unlink(missing_ok=True)  # another engine may have been first
            raise

    return deleting


class _Hits(threading.local):
    """As jax tells of them in each thread."""

    count = 0

    def note(self, event: str, **_: object) -> None:
        self.count += event == "/jax/compilation_cache/cache_hits"


_hits = _Hits()
jax.monitoring.register_event_listener(_hits.note)


def cache_hits() -> int:
    """Programs that this thread took from the cache."""
    return _hits.count
