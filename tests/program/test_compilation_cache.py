"""jax's persistent compilation cache, in separate engine processes: damaged entries are replaced at the next start, and
entries belong to the current source code."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.hlo.lint import lint
from shardtui.engine.program.compilation_cache import digest_of_code
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.wire.events import Inspection

from ..conftest import tiny_config
from ..models.test_user_model import config_of, written

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
