"""Sets up jax's caches of compiled programs: the persistent one's directory, who writes it, and the repair of damaged
entries; and that a program that is no longer used leaves those in memory."""

import contextlib
import functools
import hashlib
import os
import re
import socket
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from etils import epath
from jaxlib.mlir import ir

from ..base.directories import ENGINE
from ..hlo.module import LIBRARIES
from ..wire.run_directory import compilation_cache
from .compiler_process import compiled_here_or_apart, serializable

LOCATION = re.compile(r'"([^"]+)":\d+:\d+')
"""A source location in a lowered program: file, line and column."""
FRONTEND = "mhlo.frontend_attributes"
"""The attributes of a module that compilers pass on, and that are part of the key."""


def use_compilation_cache() -> None:
    """Keeps every compiled program for the next start. The user's environment variables take precedence.

    In a directory of the user's, which many hosts may share, process 0 writes as it does in jax.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    _patch_cache()
    free_dropped_programs()


@functools.cache
def _patch_cache() -> None:
    """Deletes entries that cannot be read, writes entries whole, lets each process write what it compiles, and lets
    another process compile.

    jax never overwrites an entry, so one truncated by a full disk or a kill would stay, and its program would be
    compiled at every start. jax writes in process 0 only, although on CPU the keys differ by process, and hosts may
    have no directory in common. jax 0.10 and 0.12 have no public option for either; if the private functions are
    missing, nothing is changed.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import compilation_cache as entries
        from jax._src import compiler

        compiler.backend_compile_and_load = compiled_here_or_apart(compiler.backend_compile_and_load)
        entries.get_executable_and_time = _deleting_on_failure(entries.get_executable_and_time)
        entries.put_executable_and_time = _written_whole(entries.put_executable_and_time)
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            compiler._cache_write = _written_by_any_process(compiler._cache_write, entries.put_executable_and_time)


@functools.cache
def free_dropped_programs() -> None:
    """Lets programs that nothing refers to leave memory, lowered or compiled.

    In jax 0.12 the cache of pruned jaxprs refers to its keys weakly, but has each jaxpr that nothing was pruned from as
    its own value, which is never freed, nor what was made of it. No public function clears that cache alone.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.interpreters import pxla

        pxla._dce_jaxpr = _forgetting(pxla._dce_jaxpr)


def _forgetting(cached: Any) -> Callable[..., Any]:
    """Wraps a cached function of jax to keep no result."""

    @functools.wraps(cached)
    def forgetting(*arguments: Any, **options: Any) -> Any:
        try:
            return cached(*arguments, **options)
        finally:
            cached.cache_clear()

    return forgetting


def _deleting_on_failure(access: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps jax's function that accesses the entry of its first argument, the key, to delete the entry on failure.

    jax then warns; after a read it compiles and writes a new entry.
    """

    @functools.wraps(access)
    def deleting(key: str, *arguments: Any, **options: Any) -> Any:
        try:
            return access(key, *arguments, **options)
        except Exception:
            with contextlib.suppress(OSError):  # the directory may be read-only
                _entry(key).unlink(missing_ok=True)  # another engine may have deleted it
            raise

    return deleting


def _written_whole(put: Callable[..., None]) -> Callable[..., None]:
    """Wraps jax's function that writes an entry: under a name of this process, then renamed. On GPUs all processes of a
    run have the same key, and may share the directory."""

    @functools.wraps(put)
    def whole(key: str, module: str, executable: Any, *arguments: Any) -> None:
        arguments = (module, serializable(executable), *arguments)
        if jax.config.jax_compilation_cache_max_size != -1:  # type: ignore[attr-defined] # jax locks the directory
            put(key, *arguments)
        elif not _entry(key).exists():
            own = f"{key}.{socket.gethostname()}.{os.getpid()}"
            _deleting_on_failure(put)(own, *arguments)
            with contextlib.suppress(FileNotFoundError):  # too small to keep
                _entry(own).rename(_entry(key))

    return whole


def _entry(key: str) -> epath.Path:
    return epath.Path(jax.config.jax_compilation_cache_dir) / f"{key}-cache"  # type: ignore[attr-defined]


def _written_by_any_process(in_process_0: Callable[..., None], put: Callable[..., None]) -> Callable[..., None]:
    """Wraps jax's function that writes an entry in process 0 to do so in the others, with `put`."""

    @functools.wraps(in_process_0)
    def written(
        key: str, seconds: float, module: str, backend: Any, executable: Any, *callbacks: Sequence[Any]
    ) -> None:
        if backend.process_index() == 0:
            in_process_0(key, seconds, module, backend, executable, *callbacks)
        elif not any(callbacks) and seconds >= jax.config.jax_persistent_cache_min_compile_time_secs:  # type: ignore[attr-defined]
            try:
                put(key, module, executable, backend, int(seconds))
            except Exception as error:
                warnings.warn(f"{module}: not written to the compilation cache: {error}", stacklevel=1)

    return written


def mark_code(lowered: jax.stages.Lowered) -> None:
    """Writes a digest of the traced source files into a program, so that it is found in the cache only while they are
    unchanged, in path and content; of several processes in name and content, since hosts may have them elsewhere, and
    have to compile the same program.

    jax leaves source lines out of its keys, so a cached program could report outdated lines. With jax's own option
    (`jax_compilation_cache_include_metadata_in_key`) the key has full call stacks. Library functions have the stack of
    the caller that traced them first, so `train`, which creates the state before, would not find what `inspect`
    compiled.
    """
    module = lowered.compiler_ir("stablehlo")
    assert module is not None, "a jitted function always has one"
    with module.context:
        attributes = module.operation.attributes
        code = digest_of_code(lowered.as_text(debug_info=True), with_paths=jax.process_count() == 1)
        digest = {"shardtui_code": ir.StringAttr.get(code)}
        known = ir.DictAttr(attributes[FRONTEND]) if FRONTEND in attributes else ()
        attributes[FRONTEND] = ir.DictAttr.get({each.name: each.attr for each in known} | digest)


def digest_of_code(lowered: str, with_paths: bool) -> str:
    """Returns a digest of the user's files in `lowered` and of this package, by path or name, and content.

    All of the package counts: which of its files are in a call stack depends on the caller.
    """
    user_files = {file for file in LOCATION.findall(lowered) if not LIBRARIES.search(file)}
    own_files = {str(path) for path in ENGINE.rglob("*.py")}
    files = user_files | own_files
    parts = sorted(os.fsencode(file if with_paths else Path(file).name) + b"\0" + _contents(file) for file in files)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@functools.cache
def _contents(file: str) -> bytes:
    """Returns a digest of the file as first read: the process has loaded that version, and the file may change."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(file).read_bytes()).digest()
    return b""


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
