"""Eight simulated devices for every test: the environment is set before anything imports jax."""

import asyncio
import gc
import inspect
import os
import shutil
import signal
import sys
from importlib.metadata import version

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it and LINES for its workers
os.environ.pop("LINES", None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each worker compiles all tests, and each process all modules
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ.setdefault(  # a fraction of the compile time, the same partitioner; jax 0.12 has no emitters to choose from
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
    + (
        " --xla_cpu_use_fusion_emitters=false"
        if version("jaxlib").startswith("0.10.")
        else " --xla_cpu_opt_preset=FAST_COMPILE"
    ),
)

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Timer
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from shardtui.engine.models.task import Batch, Task, TrainState
from shardtui.engine.program.compilation_cache import use_compilation_cache
from shardtui.engine.program.program import Program
from shardtui.engine.spec.config import ModelConfig, RunConfig, TrainingConfig
from shardtui.engine.spec.model_choice import load_model, user_model
from shardtui.engine.wire.descriptions import CorpusInfo
from shardtui.engine.wire.events import EngineReady
from shardtui.engine.wire.lock import holder
from shardtui.engine.wire.run_directory import compilation_cache

from . import fork_server
from .compilers import Compilers
from .programs import Inspected, Programs

settings.register_profile(
    "shardtui", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("shardtui")

TINY = ("layers=2", "embed=32", "heads=8", "mlp=64", "context=16", "dropout=0", "seq_len=16", "batch_size=8")
"""Settings with which every built-in preset fits eight devices and a step takes milliseconds. Without dropout, which
makes compiling faster."""

SHARDTUI = [sys.executable, "-m", "shardtui.tui"]
SETTINGS = [f"--set={setting}" for setting in TINY]
LEAST_MODEL = f"{Path(__file__).with_name('least_model.py')}:LeastModel"
LEAST = [f"--model={LEAST_MODEL}", "--seq-len=16", "--batch-size=8", f"--data={__file__}"]
"""The same for a model that is traced and compiled in a fraction of the time."""
PACED_FILE = Path(__file__).with_name("paced_model.py")
PACED = [f"--model={PACED_FILE}:LeastModel", "--batch-size=8"]
"""The same with 20 ms a step, for runs that train on while a test waits for something else."""
WITH_DROPOUT = "--set=dropout=0.1"


KEPT_PROGRAMS = ".pytest_cache/jax"
MAX_KEPT_BYTES = 1_000_000_000
LONGEST = (
    *("programs", "test_cli.py", "test_app.py", "test_views.py", "test_server.py", "test_watch.py"),
    *("test_tutorial.py", "test_search.py", "test_comparing.py", "test_host_supervision.py", "test_stuck.py"),
)
"""Groups of tests that start first, so that all workers finish at about the same time."""


def pytest_configure(config: pytest.Config) -> None:
    """Lets the snapshots of tests that `-m` leaves out be unused. Deletes kept programs once there are too many."""
    config.option.warn_unused_snapshots |= bool(config.option.markexpr)
    kept = config.rootpath / KEPT_PROGRAMS
    if not hasattr(config, "workerinput") and sum(path.stat().st_size for path in kept.glob("*")) > MAX_KEPT_BYTES:
        shutil.rmtree(kept)  # mostly those of older code


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the tests of one file on one worker, and so all that need the compiled programs."""
    place: dict[pytest.Item, int] = {}
    for item in items:
        fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
        group = "programs" if "programs" in fixtures else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))
        place[item] = LONGEST.index(group) if group in LONGEST else len(LONGEST)
    items.sort(key=place.__getitem__)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sums the seconds of `--durations` by room, those of its fixtures included."""
    if terminalreporter.config.option.durations is None:
        return
    seconds: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            _, *rooms, _ = report.nodeid.partition("::")[0].split("/")
            seconds[rooms[0] if rooms else "tests"] += report.duration
    terminalreporter.section("seconds by room")
    for room, spent in seconds.most_common():
        terminalreporter.write_line(f"{spent:7.1f} s  {spent / seconds.total():4.0%}  {room}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session", autouse=True)
def own_directories(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Sets directories for sockets, whose paths must be short, and for what all workers and later runs share."""
    path, base = f"/tmp/shardtui-test-{os.getpid()}", tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    os.environ |= {"SHARDTUI_RUNTIME_DIR": path, "XDG_CACHE_HOME": str(cache)}
    kept, compiled = pytestconfig.rootpath / KEPT_PROGRAMS, compilation_cache()
    for folder in (kept, compiled.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # the other worker was here first
        compiled.symlink_to(kept)
    use_compilation_cache()
    gc.collect()
    gc.freeze()  # what was imported stays
    gc.set_threshold(20_000, 20, 50)  # tracing makes many objects, and little garbage
    yield
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """Restores SIGINT, which a shell that starts tests in the background has ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def warm_processes(own_directories: None, interrupts: None) -> None:
    """Starts processes by forks; `tests/faults` starts interpreters, as users do."""
    fork_server.start()


@contextmanager
def killed_after(seconds: float, pid: int) -> Iterator[None]:
    """Kills a process that has not ended after `seconds`, for tests that read its output line by line: `communicate`
    would lose what was read ahead of those lines."""
    timer = Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the directories for runs and presets. Kills the engines that a failed test has left running."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield tmp_path
    for lock in tmp_path.glob("state/shardtui/runs/*/lock"):
        found = holder(lock)
        if found and found.is_here and found.pid not in (0, os.getpid()):
            os.kill(found.pid, signal.SIGKILL)


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compilers:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Compilers(tmp_path / "compilers", monkeypatch)


WIDE = ModelConfig(layers=2, embed=128, heads=8, mlp=512, vocab=256, vocab_rows=256, context=128, dropout=0.0)
"""As wide as nano: the tiny model has too little compute for its traffic."""
BATCHES = TrainingConfig(batch_size=16, seq_len=128)


def tiny_model(**changes: Any) -> ModelConfig:
    values = {"layers": 2, "embed": 32, "heads": 8, "mlp": 64, "vocab": 256, "vocab_rows": 256, "context": 16}
    return ModelConfig(**{**values, "dropout": 0.0, **changes})


def tiny_config(**changes: object) -> RunConfig:
    """The config of a run under `dp` with the model of `TINY`, with changes of its fields."""
    training = TrainingConfig(batch_size=8, seq_len=16)
    values = {"run": "tiny-1", "model_name": "nano", "model": tiny_model(), "training": training, "preset": "dp"}
    return RunConfig(**{**values, "data": __file__, **changes})  # a small file


def least_config(**changes: object) -> RunConfig:
    """Returns the same for the model of `LEAST`."""
    return tiny_config(model_name="least", model=user_model(LEAST_MODEL)[0], **changes)


def paced_config(model: str = "LeastModel", **changes: object) -> RunConfig:
    """Returns the same for a model of `paced_model`, with 20 ms a step."""
    return tiny_config(model_name="paced", model=user_model(f"{PACED_FILE}:{model}")[0], data=None, **changes)


def built_in_task(name: str, *settings: str, platform: str = "tpu") -> Task:
    """Returns a task that trains a built-in model with these settings, such as `batch_size=64`, for TPUs by default."""
    model = load_model(name, settings)
    return Task(tiny_config(model_name=name, model=model.model, training=model.training), platform)


@pytest.fixture(scope="session")
def task() -> Task:
    return Task(tiny_config(model=WIDE, training=BATCHES), "cpu")


ABOUT: dict[str, Any] = {"versions": {}, "devices": [], "simulated": True, "memory_limit": None, "warnings": []}
ABOUT |= {"dtype": "float32", "parameters": 1, "padding_parameters": 0, "tokens_per_step": 128, "flops_per_step": 1e6}
READY = EngineReady(**ABOUT, corpus=CorpusInfo("text", 1, 1, "0" * 64), presets=[], preset_problems=[])


@pytest.fixture(scope="session")
def programs(task: Task) -> Programs:
    return Programs(task)


@pytest.fixture(scope="session")
def inspected(task: Task, programs: Programs) -> Inspected:
    return Inspected(task, programs)


def step(state: TrainState, program: Program, steps: int) -> TrainState:
    """Trains on random tokens and returns the new state; `state` is donated."""
    shape = (steps, BATCHES.batch_size, BATCHES.seq_len + 1)
    tokens = np.random.default_rng(0).integers(0, 256, shape, np.int32)
    for row in tokens:
        batch = Batch(*map(jax.device_put, (row[:, :-1], row[:, 1:]), program.placement.batch_shardings))
        state, _ = program.step(state, batch)
    return state
