"""Reads a trace as `shardtui profile` does, without jax, and prints the seconds and the peak of memory in bytes:
`python -m tests.bench.reading TRACE MESH`, MESH as JSON."""

import json
import sys
import time
from pathlib import Path

from shardtui.engine.profiling.breakdown import read_breakdown

from ..suite import memory


def main(path: str, mesh: str) -> None:
    began = time.perf_counter()
    read_breakdown(Path(path), json.loads(mesh))
    print(time.perf_counter() - began, memory("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
