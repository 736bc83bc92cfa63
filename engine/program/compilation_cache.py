"""jax's persistent compilation cache: where it is, of which code its entries are, how those that are damaged are
replaced, and its hits."""

import contextlib
import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from etils import epath

from ..analysis.hlo import LIBRARIES
from ..base.installed import ENGINE
from ..wire.run_directory import compilation_cache

LOCATION = re.compile(r'"([^"]+)":\d+:\d+')
"""Of an operation in a lowered program."""


def use_compilation_cache() -> None:
    """Every program is kept for the next start. What the user's environment says of the cache goes before."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    _take_over_entries()


@functools.cache
def _take_over_entries() -> None:
    """jax never writes over an entry. One that was cut short by a full disk or a kill would stay, and its program be
    compiled at every start. jax has no public hook for this; without its two private functions all is as jax has it."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import compilation_cache as entries

        entries.get_executable_and_time = _of_the_code(_deleting_on_failure(entries.get_executable_and_time))
        entries.put_executable_and_time = _of_the_code(_deleting_on_failure(entries.put_executable_and_time))


class _Code(threading.local):
    """Of what each thread compiles."""

    digest = ""


_code = _Code()


@contextlib.contextmanager
def of_code_in(lowered: str) -> Iterator[None]:
    """What is compiled in here comes from the cache only where the files that it was traced from read as they did, and
    lie where they did. jax leaves source lines out of its keys, and a program would bring those of the day when it was
    first compiled. With them in the keys (`jax_compilation_cache_include_metadata_in_key`) entries are hardly found:
    there are whole stacks of calls among them, and those of library functions are of whoever traced them first.

    `lowered`: the text of what is compiled, with its locations.
    """
    before, _code.digest = _code.digest, _digest(lowered)
    try:
        yield
    finally:
        _code.digest = before


def _digest(lowered: str) -> str:
    """Of the paths and contents of the user's files, and of all of this package: which files of it are on the way
    depends on who asks."""
    named = {file for file in LOCATION.findall(lowered) if not LIBRARIES.search(file)}
    ours = {str(path) for path in ENGINE.rglob("*.py")}
    digest = hashlib.sha256()
    for file in sorted(named | ours):
        digest.update(file.encode() + b"\0" + _contents(file))
    return digest.hexdigest()[:16]


@functools.cache
def _contents(file: str) -> bytes:
    """A digest of them as they were first read: this process has loaded them, and they may change on the disk."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(file).read_bytes()).digest()
    return b""


def _of_the_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose first argument is the key, with the digest of the code in it."""

    @functools.wraps(function)
    def keyed(key: str, *arguments: Any, **options: Any) -> Any:
        return function(f"{key}-{_code.digest}" if _code.digest else key, *arguments, **options)

    return keyed


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
