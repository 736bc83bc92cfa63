"""Traced costs of programs of libraries against the TPU compiler's: `python tests/long/program_costs.py [WORD …]
[--record]`.

Needs the extra `tpu`, no TPU, and one to two minutes a case on two cores.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
from shardtui.engine.explain.explanation import UNKNOWN, Explanation, ProgramRequest
from shardtui.engine.spec.model_choice import user_model
from shardtui.tui.cli import values

from tests.long.estimates import ask
from tests.suite import versions
from tests.table import Table, arguments

STEPS = Path(__file__).parent / "programs" / "steps.py"
CASES = """
linen             v5e:2x4   data=8
linen             v5e:2x4   data=4,model=2
equinox           v5e:2x4   data=8
equinox           v6e:2x4   data=8
equinox_undonated v5e:2x4   data=8
haiku             v5e:2x4   data=8
haiku             v5p:2x2x2 data=8
nnx_model         v5e:2x4   data=8
nnx_model         v5e:2x4   data=4,model=2
plain             v5e:2x4   data=8
plain             v5p:2x2x4 data=16
inference         v5e:2x4   data=8
"""
"""A function of `STEPS`, slice and mesh."""
COLUMNS = {
    **dict.fromkeys(("program", "slice", "mesh"), ""),
    **dict.fromkeys(("traced peak", "compiled peak"), "bytes"),
    "peak off": "{:+.1%}",
    **dict.fromkeys(("traced sent", "compiled sent"), "bytes"),
    "sent off": "{:+.1%}",
    "unknown": "{}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = arguments(parser)
    print(f"{versions()}\n")
    with Table("long/program_costs", COLUMNS, options.record) as table:
        for name, topology, mesh in map(str.split, CASES.strip().split("\n")):
            if {*options.words} <= {name, topology, mesh}:
                table.add(name, topology, mesh, *_figures(name, topology, mesh))


def _figures(name: str, topology: str, mesh: str) -> list[float | int | str | None]:
    function, _ = user_model(f"{STEPS}:{name}", option="explain")
    program = ProgramRequest(function=function, mesh=values.mesh(mesh), compiles=True, topology=topology)
    found = msgspec.json.decode(ask(program.question, program).splitlines()[-1], type=Explanation)
    traced, compiled = found.cost, found.compiled and found.compiled.cost
    assert traced and compiled
    cells: list[float | int | str | None] = []
    for one, other in ((traced.peak_bytes, compiled.peak_bytes), (traced.bytes_sent, compiled.bytes_sent)):
        cells += [one, other, one / other - 1 if one and other else None]
    return [*cells, str(sum(each.kind == UNKNOWN for each in found.collectives))]


if __name__ == "__main__":
    main()
