"""Collectives that `explain` estimates for random programs of jax.lax's operations against the CPU's compiler: equal in
kind and mesh axes, or said to be unknown. `python tests/long/explain.py [SEED …]` (ten minutes on two cores) exits with
1 if a program is answered wrongly in silence.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.explained_programs import Answer, random_answer
from tests.suite import versions

SEEDS = range(300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, default=SEEDS, metavar="SEED")
    print(f"{versions()}\n")
    answers = [shown(random_answer(seed)) for seed in parser.parse_args().seeds]
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
