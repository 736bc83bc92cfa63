"""What `explain` says against the CPU's compiler, for random programs of jax.lax's operations and for layers, losses
and optimizers of Flax and Optax: collectives are equal in kind and mesh axes or said to be unknown, and results lie as
compiled. It exits with 1 if a program is answered wrongly in silence.
`python tests/long/explain.py [SEED …] [--record]` (ten minutes on two cores).
"""

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import cpu_devices  # noqa: F401

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner

from tests.explained_programs import PROGRAMS, library_answer, random_answer
from tests.suite import versions
from tests.table import Table, arguments

SEEDS = range(300)
EQUAL, UNKNOWN, WRONG, ABORTED = VERDICTS = ("as compiled", "said to be unknown", "wrong in silence", "compiler aborts")
COLUMNS = {"programs": "", **dict.fromkeys(VERDICTS, "{:,}")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED")
    options = arguments(parser)
    print(f"{versions()}\n")
    kinds: dict[str, list[int | str]] = {"`jax.lax`, random": [*(options.seeds or SEEDS)]}
    kinds |= {} if options.seeds else {"Flax and Optax": [*PROGRAMS]}
    found = {kind: judged_apart(programs) for kind, programs in kinds.items()}
    with Table("long/explain", COLUMNS, options.record) as table:
        for kind, counts in found.items():
            table.add(kind, *(counts[verdict] for verdict in VERDICTS))
    sys.exit(any(counts[WRONG] for counts in found.values()))


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
        return WRONG, [f"{answer.program}: {line}" for line in answer.wrong]
    return EQUAL if answer.is_equal else UNKNOWN, []


if __name__ == "__main__":
    main()
