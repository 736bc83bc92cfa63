"""Sets up jax's persistent compilation cache: its directory, what is in its keys, who writes it, and repair of damaged
entries."""

import contextlib
import functools
import hashlib
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from ..analysis.hlo import LIBRARIES
from ..base.directories import ENGINE
from ..wire.run_directory import compilation_cache

LOCATION = re.compile(r'"([^"]+)":\d+:\d+')
"""A source location in a lowered program: file, line and column."""


def use_compilation_cache() -> None:
    """Keeps every compiled program for the next start. The user's environment variables take precedence.

    In a directory of the user's, which many hosts may share, process 0 writes as it does in jax.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
        _write_in_every_process()
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


@functools.cache
def _write_in_every_process() -> None:
    """Lets each process write the programs that it compiles, under keys of its own.

    In jax only process 0 writes, although on CPU the keys differ: they have a fingerprint of the process's devices. So
    the other processes would compile at every start. Like `_patch_cache`, this replaces private functions.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import compilation_cache as entries
        from jax._src import compiler

        entries.get_cache_key = _with_process_in_key(entries.get_cache_key)
        compiler._cache_write = _written_by_any_process(compiler._cache_write)


def _with_process_in_key(function: Callable[..., str]) -> Callable[..., str]:
    """Wraps `function`, which returns a key, to append this process's index and how many processes run the program.

    The programs of a single process have the same keys as in a run of one process.
    """

    @functools.wraps(function)
    def keyed(module: Any, devices: "np.ndarray[Any, Any]", options: Any, backend: Any, *more: Any) -> str:
        key = function(module, devices, options, backend, *more)
        own, count = backend.process_index(), len({device.process_index for device in devices.flat})
        return key if (own, count) == (0, 1) else f"{key}-{own}of{count}"

    return keyed


def _written_by_any_process(function: Callable[..., None]) -> Callable[..., None]:
    """Wraps `function`, which writes an entry in process 0 only, to do so in the others."""
    from jax._src import compilation_cache as entries

    @functools.wraps(function)
    def written(
        key: str, seconds: float, module: str, backend: Any, executable: Any, *callbacks: Sequence[Any]
    ) -> None:
        if backend.process_index() == 0:
            function(key, seconds, module, backend, executable, *callbacks)
        elif not any(callbacks) and seconds >= jax.config.jax_persistent_cache_min_compile_time_secs:  # type: ignore[attr-defined]
            try:
                entries.put_executable_and_time(key, module, executable, backend, int(seconds))
            except Exception as error:
                warnings.warn(f"{module}: not written to the compilation cache: {error}", stacklevel=1)

    return written


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
