"""jax's persistent compilation cache, in engines of their own: what is damaged in it costs one start, not each, and
what is in it is of the code as it reads today."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.analysis.lint import lint
from shardtui.engine.wire.events import Inspection

from ..conftest import tiny_config
from ..models.test_user_model import config_of, written

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "dp": lambda data: data[: len(data) // 2],
    "tp": lambda data: b"\0garbage" + data[8:],
}
"""Of what was compiled under each preset."""
LIMIT = 20_000
"""Bytes of a file; a step's entry has more."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "shardtui/jax"


def from_cache(*presets: str, limited: Callable[[], None] | None = None) -> list[bool]:
    """The step under each preset, in an engine that compiles it."""
    config = msgspec.json.encode(tiny_config(preset=presets[0])).decode()
    engine = subprocess.run(
        [sys.executable, "-m", "shardtui.engine", "inspect", config, *presets[1:]],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=limited,
    )
    return [json.loads(line)["compiled"]["from_cache"] for line in engine.stdout.splitlines()]


MODEL = """
import jax, optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        named = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("mlp", "embed"))
        self.up = nnx.Linear(16, 16, use_bias=False, kernel_init=named, rngs=rngs)
        self.down = nnx.Linear(16, 16, use_bias=False, rngs=rngs)  # on all devices the same

    def __call__(self, x):
        x = self.up(x)
        return self.down(x)

def loss(model, batch):
    return (model(batch) ** 2).mean()

def batch(step, batch_size):
    return jax.random.normal(jax.random.key(step), (batch_size, 16))
"""
RULES = '[mesh]\nmodel = -1\n[rules]\nmlp = "model"\n'


def test_lines_that_moved_since_a_program_was_compiled(tmp_path: Path, cache: Path) -> None:
    """Two starts, and before the third one five lines are added at the top of the user's file."""
    path = written(tmp_path, MODEL)
    (tmp_path / "rows.toml").write_text(RULES)
    starts = [inspected(path, tmp_path / "rows.toml") for _ in range(2)]
    path.write_text("\n" * 5 + MODEL)
    starts.append(inspected(path, tmp_path / "rows.toml"))
    assert [start.compiled.from_cache for start in starts] == [False, True, False]
    first, again, moved = ([line for line in lines(start) if line.startswith(str(path))] for start in starts)
    assert first == again
    shown = [int(line.rpartition(":")[2]) for line in first]
    assert {text for line in shown if "self." in (text := MODEL.splitlines()[line - 1])}, "of products"
    assert moved == [f"{path}:{line + 5}" for line in shown]
    found = [lint(start.compiled, start.inspected, start.flops_per_step) for start in (starts[0], starts[2])]
    told = [[int(finding.source.rpartition(":")[2]) for finding in each if finding.source] for each in found]
    assert told[0]
    assert told[1] == [line + 5 for line in told[0]]


def inspected(model: Path, preset: Path) -> Inspection:
    config = config_of(f"{model}:Net", "batch_size=8", preset=str(preset), data=None)
    text = msgspec.json.encode(config).decode()
    engine = subprocess.run(
        [sys.executable, "-m", "shardtui.engine", "inspect", text], capture_output=True, text=True, check=True
    )
    return msgspec.json.decode(engine.stdout, type=Inspection)


def lines(start: Inspection) -> list[str]:
    """As Traffic shows them."""
    return [info.source for info in start.compiled.collectives or ()]


def steps(cache: Path) -> Iterator[Path]:
    return cache.glob("jit_train_step-*-cache")


@pytest.mark.slow
def test_damaged_entries_are_replaced_at_the_next_start(cache: Path) -> None:
    assert from_cache(*DAMAGES) == [False] * 2
    written = sorted(steps(cache), key=lambda path: path.stat().st_mtime_ns)
    assert len(written) == 4, "the step and the look into it, under each preset"
    for path, damage in zip(written, [damage for damage in DAMAGES.values() for _ in range(2)], strict=True):
        path.write_bytes(damage(path.read_bytes()))
    assert from_cache(*DAMAGES) == [False] * 2
    assert from_cache(*DAMAGES) == [True] * 2


def test_a_full_disk_leaves_no_part_of_an_entry(cache: Path) -> None:
    """What fits is kept. A limit on a file's size fails a write as a full disk does, and needs no disk."""
    assert from_cache("dp", limited=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))) == [False]
    assert list(cache.glob("*-cache"))
    assert not list(steps(cache))
    assert from_cache("dp") == [False]
