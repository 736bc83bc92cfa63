"""jax's persistent compilation cache, in engines of their own: what is damaged in it costs one start, not each."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from .conftest import tiny_config

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


def steps(cache: Path) -> Iterator[Path]:
    return cache.glob("jit_train_step-*-cache")


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
