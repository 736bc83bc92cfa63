"""Compiles the programs of known traffic for a TPU slice that nobody has to hold, and compares.

`python tests/long/tpu_traffic.py [--record]` (under a minute) needs the extra `tpu`. With `--write` it also keeps the
compiled texts in tests/hlo, where the tests read them.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from shardtui.engine.analysis.collectives import inventory
from shardtui.engine.analysis.hlo import parse
from shardtui.engine.base import figures

from tests.collective_programs import lower_fsdp, programs
from tests.suite import versions
from tests.table import Table, arguments

TOPOLOGY = "v5e:2x4"
TEXTS = Path(__file__).parents[1] / "hlo"
COLUMNS = {"program": "", "kind": "{}", "axes": "{}", "times": "{}", "bytes each, on paper": "{:,}", "compiled": "{}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the compiled texts in tests/hlo")
    options = arguments(parser)
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices
    mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    print(f"{versions()}, {TOPOLOGY}, data 4 × model 2\n")
    wrong = 0
    with Table("long/tpu_traffic", COLUMNS, options.record, "python tests/long/tpu_traffic.py") as table:
        for program in programs():
            text = program.lower(mesh).compile().as_text() or ""
            found = [(c.kind, c.axes, c.count, c.bytes_each) for c in inventory(parse(text), dict(mesh.shape))]
            wrong += found != [program.traffic]
            kind, axes, count, each = program.traffic
            same = "the same" if found == [program.traffic] else str(found)
            times = "unknown" if count is None else count
            table.add(program.name, kind, figures.over(axes), times, each, same)
            if options.write:
                keep(f"tpu {program.name}", text)
    if options.write:
        keep("tpu fsdp", lower_fsdp(mesh).compile().as_text() or "")
    return 1 if wrong else 0


def keep(name: str, text: str) -> None:
    """Without the paths of the machine that it was made on."""
    path = TEXTS / f"{name}.hlo".replace(" ", "-")
    path.parent.mkdir(exist_ok=True)
    for found, instead in ((str(Path(__file__).parents[2]), "/home/me/shardtui"), (sys.prefix, "/home/me/.venv")):
        text = text.replace(found, instead)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
