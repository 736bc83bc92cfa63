"""Sets up jax's persistent compilation cache: its directory, source code in its keys, and repair of damaged entries."""

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
"""A source location in a lowered program: file, line and column."""


def use_compilation_cache() -> None:
    """Keeps every compiled program for the next start. The user's environment variables take precedence."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    _patch_cache()


@functools.cache
def _patch_cache() -> None:
    """Adds the source code to jax's cache keys, and deletes entries that cannot be read.

    jax never overwrites an entry, so one truncated by a full disk or a kill would stay, and its program would be
    compiled at every start. jax has no public hook for this; if its two private functions are missing, nothing is
    patched.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import compilation_cache as entries

        entries.get_executable_and_time = _with_code_in_key(_deleting_on_failure(entries.get_executable_and_time))
        entries.put_executable_and_time = _with_code_in_key(_deleting_on_failure(entries.put_executable_and_time))


class _Code(threading.local):
    """The source code of what this thread compiles."""

    digest = ""
    """Empty outside `of_code_in`: jax's own key is used."""


_code = _Code()


@contextlib.contextmanager
def of_code_in(lowered: str) -> Iterator[None]:
    """Compiles inside this context hit the cache only if the traced source files are unchanged, in path and content.

    jax leaves source lines out of its keys, so a cached program could report outdated lines. With jax's own option for
    it (`jax_compilation_cache_include_metadata_in_key`) entries are rarely found: the key then has full call stacks,
    and those of library functions depend on which caller traced them first.

    `lowered` is the text of the program to be compiled, with its locations.
    """
    before, _code.digest = _code.digest, _digest(lowered)
    try:
        yield
    finally:
        _code.digest = before


def _digest(lowered: str) -> str:
    """Returns a digest of the user's files in `lowered` and of this package, by path and content.

    All of the package counts: which of its files are in a call stack depends on the caller.
    """
    user_files = {file for file in LOCATION.findall(lowered) if not LIBRARIES.search(file)}
    own_files = {str(path) for path in ENGINE.rglob("*.py")}
    digest = hashlib.sha256()
    for file in sorted(user_files | own_files):
        digest.update(file.encode() + b"\0" + _contents(file))
    return digest.hexdigest()[:16]


@functools.cache
def _contents(file: str) -> bytes:
    """Returns a digest of the file as first read: the process has loaded that version, and the file may change."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(file).read_bytes()).digest()
    return b""


def _with_code_in_key(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function` to append the digest of the code to its first argument, the key."""

    @functools.wraps(function)
    def keyed(key: str, *arguments: Any, **options: Any) -> Any:
        return function(f"{key}-{_code.digest}" if _code.digest else key, *arguments, **options)

    return keyed


def _deleting_on_failure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function` to delete the entry of its first argument, the key, if it fails to read or write it.

    jax then warns, compiles and writes a new entry.
    """

    @functools.wraps(function)
    def deleting(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception:
            with contextlib.suppress(OSError):  # the directory may be read-only
                folder = epath.Path(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
                (folder / f"{arguments[0]}-cache").unlink(missing_ok=True)  # another engine may have deleted it
            raise

    return deleting


class _Hits(threading.local):
    """Counts cache hits per thread, from jax's monitoring events."""

    count = 0

    def note(self, event: str, **_: object) -> None:
        self.count += event == "/jax/compilation_cache/cache_hits"


_hits = _Hits()
jax.monitoring.register_event_listener(_hits.note)


def cache_hits() -> int:
    """Returns how many programs this thread has loaded from the cache."""
    return _hits.count
