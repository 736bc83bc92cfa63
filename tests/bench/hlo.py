"""How fast `inspect --hlo` reads modules: an ordinary one, one with 400,000 collectives, and hostile ones."""

import contextlib
import subprocess
import tempfile
import time
from pathlib import Path

from shardtui.engine.analysis.collectives import inventory
from shardtui.engine.analysis.hlo import parse

from ..conftest import SHARDTUI
from ..hlo_texts import HOSTILE, MESH, collectives, repeated
from .figure import Figure, at_least
from .plain import Plain, config

REPEATS = 3
SIZE = 1_000_000
"""Characters of a hostile module."""
FASTER = 10
"""MB/s to reach."""


def run() -> list[Figure]:
    """Measures MB/s for each module."""
    ordinary, many = repeated(Plain(config()).step.as_text() or "", 20 * SIZE), collectives(400_000)
    hostile = {name: text for name, make in HOSTILE.items() if len(text := make(SIZE)) > SIZE // 10}
    return [
        _figure("a compiled step, again and again", ordinary, [_read(ordinary) for _ in range(REPEATS)]),
        _figure("400,000 collectives", many, [_read(many) for _ in range(REPEATS)]),
        _figure("400,000 collectives, the whole command", many, [_command(many) for _ in range(REPEATS)]),
        *(_figure(name, text, [_read(text) for _ in range(REPEATS)]) for name, text in hostile.items()),
    ]


def _figure(name: str, text: str, seconds: list[float]) -> Figure:
    megabytes = len(text) / 1e6
    speeds = [megabytes / each for each in seconds]
    return at_least(FASTER, f"`inspect --hlo`: {name}", speeds, "MB/s", f"{megabytes:.1f} MB")


def _read(text: str) -> float:
    began = time.perf_counter()
    with contextlib.suppress(ValueError):  # refusing must be as fast
        inventory(parse(text), MESH)
    return time.perf_counter() - began


def _command(text: str) -> float:
    mesh = ",".join(f"{axis}={size}" for axis, size in MESH.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.hlo"
        path.write_text(text)
        began = time.perf_counter()
        command = [*SHARDTUI, "inspect", f"--hlo={path}", f"--mesh={mesh}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began
