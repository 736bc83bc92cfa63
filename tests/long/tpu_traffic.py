"""Compiles the programs of known traffic for a TPU slice that nobody has to hold, and compares.

`python tests/long/tpu_traffic.py` (under a minute) needs the extra `tpu`. With `--write` it also keeps the compiled
texts in tests/hlo, where the tests read them.
"""

import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from shardtui.engine.analysis.collectives import inventory
from shardtui.engine.analysis.hlo import parse

from tests.collective_programs import lower_fsdp, programs

TOPOLOGY = "v5e:2x4"
TEXTS = Path(__file__).parents[1] / "hlo"


def main() -> int:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices
    mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    print(f"jax {jax.__version__}, {TOPOLOGY}, data 4 × model 2\n")
    print("| program | on paper | compiled | |\n|---|---|---|---|")
    wrong = 0
    for program in programs():
        text = program.lower(mesh).compile().as_text() or ""
        found = [(c.kind, c.axes, c.count, c.bytes_each) for c in inventory(parse(text), dict(mesh.shape))]
        wrong += found != [program.traffic]
        print(f"| {program.name} | {program.traffic} | {found} | {'✓' if found == [program.traffic] else '✗'} |")
        keep(program.name, text)
    keep("fsdp", lower_fsdp(mesh).compile().as_text() or "")
    return 1 if wrong else 0


def keep(name: str, text: str) -> None:
    """Without the paths of the machine that it was made on."""
    if "--write" in sys.argv:
        TEXTS.mkdir(exist_ok=True)
        for path, instead in ((str(Path(__file__).parents[2]), "/home/me/shardtui"), (sys.prefix, "/home/me/.venv")):
            text = text.replace(path, instead)
        (TEXTS / f"tpu {name}.hlo".replace(" ", "-")).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
