"""How programs are compiled: in which order, in another process, and which are kept, in memory and on disk."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.stages import Compiled
from shardtui.engine.base.processes import children
from shardtui.engine.hlo.lint import lint
from shardtui.engine.models.task import Task
from shardtui.engine.program import compiler_process
from shardtui.engine.program.compilation_cache import cache_hits, digest_of_code
from shardtui.engine.program.compile_queue import CompileQueue, Urgency
from shardtui.engine.program.compiler import MAX_PROGRAMS, MIN_PROGRAMS, KeptPrograms
from shardtui.engine.program.compiler_process import Asked, CompilerEnded, CompilerProcess, compiled_apart
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_program
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.events import Inspection

from ..conftest import least_config, tiny_config
from ..models.test_user_model import config_of, written


@pytest.fixture
def queue() -> Iterator[CompileQueue]:
    queue = CompileQueue()
    yield queue
    queue.close()


def busy(queue: CompileQueue, *urgencies: Urgency) -> threading.Event:
    """Runs jobs until the returned event is set, by default one in each thread."""
    end = threading.Event()
    for urgency in urgencies or (Urgency.REQUESTED, Urgency.REQUESTED):
        started = threading.Event()
        queue.submit(urgency, lambda started=started: (started.set(), end.wait(60)))
        assert started.wait(60)
    return end


def test_jobs_run_by_urgency_and_then_in_order(queue: CompileQueue) -> None:
    end, done = busy(queue, Urgency.INSPECT, Urgency.REQUESTED), []
    kinds = (Urgency.LIKELY, Urgency.INSPECT, Urgency.SCHEDULED, Urgency.REQUESTED)
    jobs = [(kind, number) for number in range(2) for kind in kinds]
    futures = [queue.submit(job[0], lambda job=job: done.append(job)) for job in jobs]
    end.set()
    for future in futures:
        future.result(60)
    assert sorted(done[:2]) == [(Urgency.REQUESTED, 0), (Urgency.REQUESTED, 1)], "in two threads at once"
    later = (Urgency.SCHEDULED, Urgency.INSPECT, Urgency.LIKELY)
    assert done[2:] == [(kind, number) for kind in later for number in range(2)]


def test_a_cancelled_job_never_starts_and_a_failed_one_does_not_end_the_queue(queue: CompileQueue) -> None:
    end, done = busy(queue), []
    futures = [queue.submit(Urgency.REQUESTED, lambda number=number: done.append(number)) for number in range(300)]
    assert all(future.cancel() for future in futures[:-1])
    end.set()
    futures[-1].result(60)
    assert done == [len(futures) - 1]
    failed = queue.submit(Urgency.REQUESTED, lambda: 1 / 0)
    assert isinstance(failed.exception(60), ZeroDivisionError)
    assert queue.submit(Urgency.REQUESTED, lambda: 7).result(60) == 7


@pytest.mark.parametrize("running", [Urgency.INSPECT, Urgency.LIKELY, Urgency.SCHEDULED])
def test_a_request_does_not_wait_for_a_running_background_job(queue: CompileQueue, running: Urgency) -> None:
    end = busy(queue, running)
    other = queue.submit(Urgency.INSPECT, lambda: 1)
    started = queue.started
    assert queue.submit(Urgency.REQUESTED, lambda: 7).result(60) == 7
    assert queue.started == started + 1
    assert not other.done(), "only a request runs at the same time"
    end.set()
    assert other.result(60) == 1


@dataclass(frozen=True)
class Sized:
    name: str
    host_bytes: int


def keep(limit: int, *sizes: int) -> Any:
    kept = KeptPrograms(limit)
    for number, size in enumerate(sizes):
        kept.add(Sized(str(number), size))  # type: ignore[arg-type]
    return kept


def test_the_least_recently_used_programs_are_evicted_by_size_and_number_but_the_latest() -> None:
    kept = keep(300, 100, 100, 100)
    assert kept.get("0").name == "0"
    assert kept.add(Sized("3", 100))
    assert (kept.presets, kept.bytes, "1" in kept) == (["2", "0", "3"], 300, False)
    assert kept.get("1") is None
    assert keep(1000, *[10] * 100).presets == [str(number) for number in range(100 - MAX_PROGRAMS, 100)]
    assert keep(1000, 300, 300, 300, 900).presets == ["2", "3"]
    assert keep(0, 10, 10, 10).presets == ["1", "2"]
    assert MIN_PROGRAMS == 2


@pytest.mark.parametrize("presets", [("dp",), ("fsdp", "dp-tp2")])
def test_programs_that_are_dropped_leave_memory(presets: tuple[str, ...]) -> None:
    task = Task(least_config(), "cpu")

    def alive() -> int:
        gc.collect()
        return len(jax.devices()[0].client.live_executables())

    before = alive()
    kept = [compile_program(place(task, load_preset(name), jax.devices())) for name in presets]
    assert alive() >= before + len(presets)
    kept.clear()
    assert alive() == before


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


@pytest.mark.parametrize(
    "number", [signal.SIGABRT, signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)]
)
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


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "dp": lambda data: data[: len(data) // 2],
    "tp": lambda data: b"\0garbage" + data[8:],
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "shardtui/jax"


def asked(config: RunConfig, *presets: str) -> list[Inspection]:
    """Compiles the step of each preset in a new engine."""
    command = [sys.executable, "-m", "shardtui.engine", "inspect", msgspec.json.encode(config).decode(), *presets]
    engine = subprocess.run(command, capture_output=True, text=True, check=True)
    return [msgspec.json.decode(line, type=Inspection) for line in engine.stdout.splitlines()]


MODEL = """
import jax, optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        named = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("mlp", "embed"))
        self.up = nnx.Linear(16, 16, use_bias=False, kernel_init=named, rngs=rngs)
        self.down = nnx.Linear(16, 16, use_bias=False, rngs=rngs)  # replicated

    def __call__(self, x):
        x = self.up(x)
        return self.down(x)

def loss(model, batch):
    return (model(batch) ** 2).mean()

def batch(step, batch_size):
    return jax.random.normal(jax.random.key(step), (batch_size, 16))
"""
RULES = '[mesh]\nmodel = -1\n[rules]\nmlp = "model"\n'


def test_several_processes_compile_the_same_program_whatever_the_paths(tmp_path: Path) -> None:
    texts: list[str] = []
    for host, code in (("one", MODEL), ("two", MODEL), ("three", MODEL + "pass\n")):
        (tmp_path / host).mkdir()
        texts.append(f'#loc1 = loc("{written(tmp_path / host, code)}":15:8)')
    one, two, other = (digest_of_code(text, with_paths=False) for text in texts)
    assert one == two != other
    assert digest_of_code(texts[0], with_paths=True) != digest_of_code(texts[1], with_paths=True)


@pytest.mark.core
def test_source_lines_are_current_after_an_edit(tmp_path: Path, cache: Path) -> None:
    """The third start comes after five lines were added at the top of the user's file."""
    path = written(tmp_path, MODEL)
    (tmp_path / "rows.toml").write_text(RULES)
    starts = list[Inspection]()
    for text in (MODEL, MODEL, "\n" * 5 + MODEL):
        path.write_text(text)
        config = config_of(f"{path}:Net", "batch_size=8", preset=str(tmp_path / "rows.toml"), data=None)
        starts += asked(config)
    assert [start.compiled.from_cache for start in starts] == [False, True, False]
    sources = ([info.source for info in start.compiled.collectives or ()] for start in starts)
    first, again, moved = ([line for line in lines if line.startswith(str(path))] for lines in sources)
    assert first == again
    shown = [int(line.rpartition(":")[2]) for line in first]
    assert any("self." in MODEL.splitlines()[line - 1] for line in shown), "lines of matrix products"
    assert moved == [f"{path}:{line + 5}" for line in shown]
    found = [lint(start.compiled, start.inspected, start.flops_per_step) for start in (starts[0], starts[2])]
    before, after = ([int(finding.source.rpartition(":")[2]) for finding in each if finding.source] for each in found)
    assert before
    assert after == [line + 5 for line in before]


@pytest.mark.slow
def test_damaged_entries_are_replaced_at_the_next_start(cache: Path) -> None:
    def from_cache() -> list[bool]:
        first, *others = DAMAGES
        return [bool(each.compiled.from_cache) for each in asked(tiny_config(preset=first), *others)]

    assert from_cache() == [False] * len(DAMAGES)
    written = sorted(cache.glob("jit_train_step-*-cache"), key=lambda path: path.stat().st_mtime_ns)
    assert len(written) == 2 * len(DAMAGES), "the step and its inspection, for each preset"
    for path, damage in zip(written, [damage for damage in DAMAGES.values() for _ in range(2)], strict=True):
        path.write_bytes(damage(path.read_bytes()))
    assert from_cache() == [False] * len(DAMAGES)
    assert from_cache() == [True] * len(DAMAGES)
    assert not [path for path in cache.iterdir() if not re.fullmatch(r"jit_\w+-\w+-(cache|atime)", path.name)]
