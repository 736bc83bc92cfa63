"""Compiles programs of known traffic for several TPU slices that nobody has to hold, and compares.

`python tests/long/slices_traffic.py [--record]` (under a minute) needs the extra `tpu`. With `--write` it also keeps
the compiled texts in tests/hlo/slices, where the tests read them.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from jax.sharding import AxisType, Mesh
from shardtui.engine.analysis.collectives import inventory
from shardtui.engine.analysis.hlo import parse
from shardtui.engine.base import figures
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.spec.topology import load_topology

from tests.collective_programs import lower_hierarchy, slices_programs
from tests.long.tpu_traffic import keep
from tests.suite import versions
from tests.table import Table, arguments

SLICE = "v5e:2x4"
COLUMNS = {
    "program": "",
    "slices": "",
    "kind": "{}",
    "axes": "{}",
    "times": "{}",
    "bytes each, on paper": "{:,}",
    "compiled": "{}",
}


def slices_mesh(slices: int, **axes: int) -> Mesh:
    """Returns a mesh over so many slices of eight chips."""
    devices = find_slice(load_topology(f"{slices}*{SLICE}"))
    grid = np.array(devices).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the compiled texts in tests/hlo")
    options = arguments(parser)
    print(f"{versions()}, slices of {SLICE}, replica × data 4 × model 2\n")
    wrong = 0
    with Table("long/slices_traffic", COLUMNS, options.record, "python tests/long/slices_traffic.py") as table:
        for slices in (2, 4):
            mesh = slices_mesh(slices, replica=slices, data=4, model=2)
            for program in slices_programs():
                text = program.lower(mesh).compile().as_text() or ""
                found = [
                    (c.kind, c.axes, c.count, c.bytes_each, c.network) for c in inventory(parse(text), dict(mesh.shape))
                ]
                wrong += found != [program.traffic(slices)]
                kind, axes, count, each, network = program.traffic(slices)
                same = "the same" if found == [program.traffic(slices)] else str(found)
                table.add(program.name, str(slices), kind, figures.over(axes, network), count, each, same)
                if options.write:
                    keep(f"slices/{slices} slices {program.name}", text)
            if options.write:
                text = lower_hierarchy(slices_mesh(slices, data=4 * slices, model=2)).compile().as_text() or ""
                keep(f"slices/{slices} slices hierarchy", text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
