"""Every test sees eight simulated devices; the environment is set before anything loads jax."""

import os
import shutil
import signal
import sys
from importlib.metadata import version

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ.setdefault(  # a fourth of the compile time, the same partitioner; jax 0.12 has no emitters to choose from
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""),
)

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from shardtui.engine.models.task import Batch, Task, TrainState
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.program.inspection import inspect_program
from shardtui.engine.program.program import Program, compile_program, place
from shardtui.engine.spec.config import ModelConfig, RunConfig, TrainingConfig
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.wire.descriptions import CorpusInfo
from shardtui.engine.wire.events import EngineReady, PresetInspected

from .compilers import Compilers

settings.register_profile(
    "shardtui", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("shardtui")

TINY = ("layers=2", "embed=32", "heads=8", "mlp=64", "context=16", "dropout=0", "seq_len=16", "batch_size=8")
"""Settings under which every built-in preset fits eight devices and a step takes a few milliseconds. Without dropout it
compiles sooner."""

SHARDTUI = [sys.executable, "-m", "shardtui.tui"]
SETTINGS = [f"--set={setting}" for setting in TINY]
WITH_DROPOUT = "--set=dropout=0.1"


LONGEST = ("programs", "test_views.py", "test_comparing.py", "test_app.py", "test_cli.py", "test_terminal.py")
"""Groups of tests that begin first, so that both workers end together."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file share a worker, and so do all that need the compiled programs."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: LONGEST.index(group) if (group := _group(item)) in LONGEST else len(LONGEST))


def _group(item: pytest.Item) -> str:
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    return "programs" if "programs" in fixtures else item.path.name


@pytest.fixture(scope="session", autouse=True)
def own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For sockets, whose paths must be short, and for compiled programs, which all workers share."""
    path, base = f"/tmp/shardtui-test-{os.getpid()}", tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    os.environ |= {"SHARDTUI_RUNTIME_DIR": path, "XDG_CACHE_HOME": str(cache)}
    jax.config.update("jax_compilation_cache_dir", str(cache / "tests"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    yield
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """Are heard by processes of tests, also where a shell began them in the background: it has them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories of this test's own for runs and presets."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compilers:
    """To choose what stands in the place of the TPU compiler. Nothing that it said before is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Compilers(tmp_path / "compilers", monkeypatch)


WIDE = ModelConfig(layers=2, embed=128, heads=8, mlp=512, vocab=256, vocab_rows=256, context=128, dropout=0.0)
"""As wide as nano: the smaller one has too little to compute for its traffic."""
BATCHES = TrainingConfig(batch_size=16, seq_len=128)


def tiny_model(**changes: Any) -> ModelConfig:
    values = {"layers": 2, "embed": 32, "heads": 8, "mlp": 64, "vocab": 256, "vocab_rows": 256, "context": 16}
    return ModelConfig(**values | {"dropout": 0.0} | changes)


def tiny_config(**changes: object) -> RunConfig:
    training = TrainingConfig(batch_size=8, seq_len=16)
    values = {"run": "tiny-1", "model_name": "nano", "model": tiny_model(), "training": training, "preset": "dp"}
    values["data"] = __file__  # read in no time
    return RunConfig(**{**values, **changes})


@pytest.fixture(scope="session")
def task() -> Task:
    return Task(tiny_config(model=WIDE, training=BATCHES), "cpu")


READY = EngineReady(
    versions={},
    devices=[],
    simulated=True,
    memory_limit=None,
    warnings=[],
    dtype="float32",
    parameters=1,
    padding_parameters=0,
    tokens_per_step=128,
    flops_per_step=1e6,
    corpus=CorpusInfo("text", 1, 1, "0" * 64),
    presets=[],
    preset_problems=[],
)
"""Of an engine that tells nothing of note."""

OF_EXPERTS = ("dp-ep4", "ep2-tp2")
"""Built-in presets that want a mixture of experts."""
OF_OTHER_SIZES = ("dp-tp4", "fsdp-tp4", "fsdp-tp8")
"""Those that lie as `dp-tp2` and `fsdp-tp2` do, but for the sizes of their axes."""
KINDS = sorted({path.stem for path in (PRESETS / "parallelism").glob("*.toml")} - {*OF_EXPERTS, *OF_OTHER_SIZES})
"""Built-in presets for a dense model, one of each kind."""


@pytest.fixture(scope="session")
def programs(task: Task) -> dict[str, Program]:
    """Those of `KINDS`, compiled."""
    presets = [read_preset(PRESETS / "parallelism" / f"{name}.toml") for name in KINDS]
    return {preset.name: compile_program(task, place(task, preset, jax.devices())) for preset in presets}


class Known(Compiler):
    """With the programs that the tests have compiled already."""

    def __init__(self, task: Task, programs: dict[str, Program], made: Path = Path("nowhere")) -> None:
        presets = {name: read_preset(PRESETS / "parallelism" / f"{name}.toml") for name in programs}
        super().__init__(task, presets, jax.devices(), made)
        self.queue = self._queue
        for program in programs.values():
            self.kept.add(program)


@pytest.fixture(scope="session")
def inspected(task: Task, programs: dict[str, Program]) -> dict[str, PresetInspected]:
    return {name: inspect_program(task, program.placement) for name, program in programs.items()}


def step(state: TrainState, program: Program, steps: int) -> TrainState:
    shape = (steps, BATCHES.batch_size, BATCHES.seq_len + 1)
    tokens = np.random.default_rng(0).integers(0, 256, shape, np.int32)
    for row in tokens:
        batch = Batch(*map(jax.device_put, (row[:, :-1], row[:, 1:]), program.placement.batch_shardings))
        state, _ = program.step(state, batch)
    return state
