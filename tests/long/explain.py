"""Collectives that `explain` estimates against those of the CPU's compiler, for random programs of jax.lax's operations
and for layers, losses and optimizers of Flax and Optax: equal in kind and mesh axes, or said to be unknown. It exits
with 1 if a program is answered wrongly in silence. `python tests/long/explain.py [SEED …]` (five minutes on two cores).
"""

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.explained_programs import PROGRAMS, library_answer, random_answer
from tests.suite import versions

SEEDS = range(300)
ABORTED = "the compiler aborts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED")
    seeds = parser.parse_args().seeds
    print(f"{versions()}\n")
    found = judged_apart([*(seeds or SEEDS), *(() if seeds else PROGRAMS)])
    print(", ".join(f"{count} {verdict}" for verdict, count in found.most_common()))
    sys.exit(bool(found["wrong in silence"]))


def judged_apart(programs: list[int | str]) -> Counter[str]:
    """Judges programs in another process, which is started anew after one on which XLA ends it (jax 0.12)."""
    found, waiting = Counter[str](), programs
    while waiting:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            for program in list(waiting):
                try:
                    verdict, lines = pool.submit(judged, program).result()
                except BrokenProcessPool:
                    verdict, lines = ABORTED, [f"{program}: {ABORTED}"]
                waiting = waiting[1:]
                found[verdict] += 1
                print(*lines, sep="\n", end="\n" if lines else "", flush=True)
                if verdict == ABORTED:
                    break
    return found


def judged(program: int | str) -> tuple[str, list[str]]:
    answer = random_answer(program) if isinstance(program, int) else library_answer(program)
    if answer.wrong:
        return "wrong in silence", [f"{answer.program}: {line}" for line in answer.wrong]
    return "equal" if answer.is_equal else "unknown", []


if __name__ == "__main__":
    main()
