"""Renews the texts in tests/hlo: programs of known collectives, compiled for TPU slices that nobody has to hold.

`python tests/long/tpu_texts.py` (under a minute) needs the extra `tpu`. tests/hlo/test_collectives.py and
test_megascale.py compare the texts with the bytes calculated on paper.
"""

import sys

import cpu_devices  # noqa: F401
import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.spec.topology import load_topology

from tests.collective_programs import lower_fsdp, lower_hierarchy, programs, slices_programs
from tests.suite import ROOT

SLICE = "v5e:2x4"


def mesh_of(topology: str, **axes: int) -> Mesh:
    grid = np.array(find_slice(load_topology(topology))).reshape(tuple(axes.values()))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def write(name: str, lowered: jax.stages.Lowered) -> None:
    """Without the paths of the machine that it was made on."""
    text = lowered.compile().as_text() or ""
    for found, instead in ((str(ROOT), "/home/me/shardtui"), (sys.prefix, "/home/me/.venv")):
        text = text.replace(found, instead)
    (ROOT / "tests/hlo" / f"{name}.hlo".replace(" ", "-")).write_text(text)


def main() -> None:
    mesh = mesh_of(SLICE, data=4, model=2)
    for program in programs():
        write(f"tpu {program.name}", program.lower(mesh))
    write("tpu fsdp", lower_fsdp(mesh))
    for slices in (2, 4):
        topology = f"{slices}*{SLICE}"
        mesh = mesh_of(topology, replica=slices, data=4, model=2)
        for transfer in slices_programs():
            write(f"slices/{slices} slices {transfer.name}", transfer.lower(mesh))
        write(f"slices/{slices} slices hierarchy", lower_hierarchy(mesh_of(topology, data=4 * slices, model=2)))


if __name__ == "__main__":
    main()
