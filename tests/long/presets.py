"""What is said of random presets and programs, against independent checks: `python tests/long/presets.py [--record]`
(an hour on two cores), with `--first N` for others; exit 1 where anything is wrong.

A preset is placed, and told whether it fits and why not; of those that fit some are compiled and train two steps. See
tests/preset_checks.py for what is checked, and tests/random_presets.py for what is drawn.
"""

import argparse
import os
import sys
import time

import cpu_devices  # noqa: F401

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner

import jax

from tests.preset_checks import Checked, Checks, wrong_of_program
from tests.random_presets import case
from tests.random_programs import program
from tests.suite import versions
from tests.table import Table, arguments

COLUMNS = {"checked": "", "number": "{:,}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--placed", type=int, default=400, metavar="N", help="presets that are placed")
    parser.add_argument("--described", type=int, default=100, metavar="N", help="of those that fit, how many compile")
    parser.add_argument("--programs", type=int, default=100, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    options = arguments(parser)
    began = time.monotonic()
    seeds = range(options.first, options.first + options.placed)
    found: list[Checked] = []
    described = trained = fitting = 0
    for seed in seeds:
        checks = Checks(case(seed))
        checked = checks.placed()
        fits = bool(checked.info and checked.info.fits)
        fitting += fits
        if fits and described < options.described:
            described += 1
            if compiled := checks.described():
                checks.trained(compiled)
                trained += 1
        found.append(checked)
        _say(checked.case.summary, checked.wrong)
        jax.clear_caches()  # of programs that nobody runs again
    programs = {seed: wrong_of_program(seed) for seed in range(options.first, options.first + options.programs)}
    for seed, wrong in programs.items():
        _say(program(seed).summary, wrong)
    rows = {
        "presets placed, or refused as other means refuse them": len(found),
        "of these laid out and traced": fitting,
        "arrays whose shards and bytes are those of `devices_indices_map`": sum(each.arrays for each in found),
        "presets compiled: specs, argument bytes and operations": described,
        "collectives as a second reader has them": sum(each.collectives for each in found),
        "trained two steps as one device does, state moved and back, digests equal": trained,
        "random programs: collectives and operations": len(programs),
    }
    bad = sum(bool(each.wrong) for each in found) + sum(map(bool, programs.values()))
    print(f"{versions()}, seeds from {options.first}\n")
    with Table("long/presets", COLUMNS, options.record) as table:
        for name, count in {**rows, "wrong": bad}.items():
            table.add(name, count)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if bad else 0


def _say(told: str, wrong: list[str]) -> None:
    if wrong:
        print(told, *(f"  {line[:1000]}" for line in wrong[:5]), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
