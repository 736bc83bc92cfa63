"""Programs that another process compiles: they are the same, and an end of that process is an error with its text."""

import os
import signal
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.stages import Compiled
from shardtui.engine.base.processes import children
from shardtui.engine.program import compiler_process
from shardtui.engine.program.compilation_cache import cache_hits
from shardtui.engine.program.compiler_process import Asked, CompilerEnded, CompilerProcess, compiled_apart

UNKNOWN = time.time_ns()
"""Part of each program, so that no cache has it."""


@pytest.fixture
def x() -> jax.Array:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    return jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, PartitionSpec("a", "b")))


def program(x: jax.Array, name: str, function: Callable[[jax.Array], jax.Array] = jnp.cumsum) -> Compiled:
    def named(x: jax.Array) -> jax.Array:
        return function(x @ x.T) + UNKNOWN % 1000

    named.__name__ = f"{name}_{UNKNOWN}"
    return jax.jit(named, out_shardings=NamedSharding(x.sharding.mesh, PartitionSpec())).lower(x).compile()  # type: ignore[attr-defined]


def compilers() -> set[int]:
    return set(children(os.getpid()))


def test_a_program_is_the_same_and_is_kept(x: jax.Array) -> None:
    """With a call of LAPACK, which the other process has to know."""
    before = compilers()
    with compiled_apart():
        apart = program(x, "kept", lambda x: jnp.linalg.eigh(x)[1])
        assert len(compilers() - before) == 1
    assert compilers() == before
    hits = cache_hits()
    with compiled_apart():
        again = program(x, "kept", lambda x: jnp.linalg.eigh(x)[1])
        assert compilers() == before, "it was in the cache"
    assert cache_hits() == hits + 1
    here = program(x, "here", lambda x: jnp.linalg.eigh(x)[1])
    np.testing.assert_array_equal(apart(x), here(x))
    np.testing.assert_array_equal(again(x), here(x))
    assert apart.memory_analysis().temp_size_in_bytes == here.memory_analysis().temp_size_in_bytes  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_an_end_of_the_compiler_is_an_error_and_the_next_one_compiles(
    x: jax.Array, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python tests/faults/run.py compilers` tries other ends."""
    real = CompilerProcess.compiled

    def compiled(compiler: CompilerProcess, asked: Asked) -> bytes | None:
        os.kill(compiler.process.pid, number)
        return real(compiler, asked)

    before, name = compilers(), f"end_{number.name}"
    monkeypatch.setattr(CompilerProcess, "compiled", compiled)
    with compiled_apart(), pytest.raises(CompilerEnded, match=f"was ended by {number.name}"):
        program(x, name)
    assert compilers() == before
    monkeypatch.undo()
    with compiled_apart():
        program(x, name)(x)


@pytest.mark.parametrize(
    ("limit", "words"),
    [("LONGEST_SECONDS", "killed after 30 min"), ("IDLE_SECONDS", "as it had computed nothing for 60 s")],
)
def test_a_compiler_that_hangs_is_ended(x: jax.Array, limit: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_process, limit, 0.0)
    monkeypatch.setattr(compiler_process, "POLL_SECONDS", 0.0)
    before = compilers()
    with compiled_apart(), pytest.raises(CompilerEnded, match=words):
        program(x, "hang")
    assert compilers() == before


def test_the_compiler_ends_with_the_engine(x: jax.Array) -> None:
    """However that ends: here its end of the pipe is closed."""
    with compiler_process.compiler_process(1) as compiler:
        assert compiler.process.stdin
        compiler.process.stdin.close()
        assert compiler.process.wait(60) == 1


def test_what_needs_this_process_is_compiled_here(x: jax.Array) -> None:
    def double(x: np.ndarray) -> np.ndarray:
        return np.asarray(x) * 2

    def calls_back(x: jax.Array) -> jax.Array:
        return jax.pure_callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    before = compilers()
    with compiled_apart():
        found = program(x, "callback", calls_back)
        assert compilers() == before
    np.testing.assert_allclose(found(x), 2 * (x @ x.T) + UNKNOWN % 1000)


def test_what_the_compiler_refuses_is_raised_as_jax_raises_it(x: jax.Array) -> None:
    def unknown(x: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call("no_such_call", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    before = compilers()
    with compiled_apart():
        with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_call"):
            program(x, "refused", unknown)
        assert len(compilers() - before) == 1
