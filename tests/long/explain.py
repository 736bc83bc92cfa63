"""Collectives that `explain` estimates against those of the CPU's compiler, for random programs of jax.lax's operations
and for layers, losses and optimizers of Flax and Optax: equal in kind and mesh axes, or said to be unknown. It exits
with 1 if a program is answered wrongly in silence. `python tests/long/explain.py [SEED …]` (five minutes on two cores).
"""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.explained_programs import PROGRAMS, Answer, library_answer, random_answer
from tests.suite import versions

SEEDS = range(300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED")
    seeds = parser.parse_args().seeds
    print(f"{versions()}\n")
    answers = [shown(random_answer(seed)) for seed in seeds or SEEDS]
    answers += [shown(library_answer(name)) for name in (() if seeds else PROGRAMS)]
    equal, unknown = sum(each.is_equal for each in answers), sum(each.is_unknown for each in answers)
    silent = sum(bool(each.wrong) for each in answers)
    print(f"{len(answers)} programs: {equal} equal, {unknown} with unknown traffic, {silent} wrong in silence")
    sys.exit(bool(silent))


def shown(answer: Answer) -> Answer:
    for line in answer.wrong:
        print(f"{answer.program}: {line}", flush=True)
    return answer


if __name__ == "__main__":
    main()
