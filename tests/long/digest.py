"""Does a digest show every change? `python tests/long/digest.py [--record]` (ten minutes): changes of arrays
of every dtype, and how often two changes cancel each other in an array of 2²⁵ elements."""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from shardtui.engine.program.digest import _mixed, digests

from tests.changes import CHANGES, DTYPES, tried
from tests.suite import versions
from tests.table import Table, arguments

TRIES = 10_000
"""Of each change of each dtype."""
ELEMENTS = 2**25
COLUMNS = {"change": "", "arrays changed": "{:,}", "missed": "{:,}"}
ODDS = {
    "elements": "",
    "each changed by": "",
    "first words cancel": "{:.2f} ×",
    "and 8 low bits of the second": "{:.2f} ×",
    "and 8 high bits": "{:.2f} ×",
}

Words = np.ndarray
"""uint32 [2²⁵]"""


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}\n")
    with Table("long/digest", COLUMNS, options.record) as table:
        _add_changes(table)
    print()
    with Table("long/digest-odds", ODDS) as table:
        _add_odds(table)


def _add_changes(table: Table) -> None:
    changed, missed = Counter[str](), Counter[str]()
    for result in tried(digests, DTYPES, TRIES):
        changed[result.change] += result.changed
        missed[result.change] += result.missed
    for change in CHANGES:
        table.add(change, changed[change], missed[change])


def _add_odds(table: Table) -> None:
    """Of the pairs of elements of one array that are changed alike: of how many the first words cancel, and of how many
    of these the lowest and highest bits of the second words, each to what chance would have."""
    chance = np.random.default_rng(0)
    mixed = jax.jit(lambda words: _mixed(words, [jnp.arange(ELEMENTS, dtype=jnp.uint32)]))
    for name, (words, sign) in _arrays(chance).items():
        for change, changed in _changes(chance, words, sign).items():
            steps = [np.asarray(a) - np.asarray(b) for a, b in zip(mixed(changed), mixed(words), strict=True)]
            one, other = _cancelling(steps[0])
            second = steps[1][one] + steps[1][other]
            expected = (ELEMENTS // 2) ** 2 / 2**32
            parts = (len(one) / expected, 256 * np.mean(second % 256 == 0), 256 * np.mean(second >> 24 == 0))
            table.add(name, change, *map(float, parts))


def _arrays(chance: np.random.Generator) -> dict[str, tuple[Words, int]]:
    """With the bit of the sign."""
    normal = chance.standard_normal(ELEMENTS, np.float32).view(np.uint32)
    return {
        "float32, normal": (normal, 31),
        "float32 of bfloat16 values": (normal & np.uint32(0xFFFF0000), 31),
        "bfloat16, normal": (normal >> np.uint32(16), 15),
        "int8": (chance.integers(-128, 128, ELEMENTS).astype(np.uint32), 31),
        "float32, zeros": (np.zeros(ELEMENTS, np.uint32), 31),
    }


def _changes(chance: np.random.Generator, words: Words, sign: int) -> dict[str, Words]:
    others = words[chance.permutation(ELEMENTS)]
    return {
        "its sign": words ^ np.uint32(1 << sign),
        "its lowest bit": words ^ np.uint32(1),
        "another's bits, or the next": others + (others == words).astype(np.uint32),
    }


def _cancelling(steps: Words) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of an element of the first half and one of the second whose steps add up to 0."""
    first, second = np.split(steps, 2)
    order = np.argsort(second)
    found = second[order]
    begins, ends = (np.searchsorted(found, -first, side) for side in ("left", "right"))
    counts = ends - begins
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(len(first)), counts), len(first) + order[np.repeat(begins, counts) + within]


if __name__ == "__main__":
    main()
