"""A program that knows nothing of shardtui: it trains, evaluates, starts a worker, and fails in a step."""

import multiprocessing
import os
import pickle
import sys

os.environ["JAX_NUM_CPU_DEVICES"] = "8"


class Batch:
    def __init__(self, number: int) -> None:
        self.number = number


def worker(number: int) -> str:
    return f"{__name__} has jax: {'jax' in sys.modules}, batch {Batch(number).number}"


def main() -> None:
    from .trainer import train

    fail = train()
    print(pickle.loads(pickle.dumps(Batch(3))).number, sys.argv[1:], __name__)
    print(sorted(name for name in os.environ if name == "PYTHONPATH" or "WATCH" in name))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(worker, (5,)))
    fail()


if __name__ == "__main__":
    main()
