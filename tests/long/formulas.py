"""Formulas against the CPU's compiler on random presets: `python tests/long/formulas.py [--count N] [--first SEED]
[--mixtures] [--record]` (half an hour on two cores) prints each estimate that is far off, and how many there were.
"""

import argparse
import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # the same partitioner, sooner
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
from shardtui.engine.analysis.traffic import flows
from shardtui.engine.models.task import Task
from shardtui.engine.planning.estimate import Step
from shardtui.engine.program.placement import describe_preset, place
from shardtui.engine.program.program import compile_program

from tests.random_presets import NANO, Case, case
from tests.suite import versions
from tests.table import Table, arguments

PEAK, SENT = 0.1, 0.05
"""What is further off is told."""
NOTHING = 2000
"""Bytes sent that no formula counts: the loss, and norms of the gradients."""
COLUMNS = {
    "presets": "",
    "with estimates": "{:,}",
    "peak off by > 10 %": "{:,}",
    "sent off by > 5 %": "{:,}",
    "median peak": "{:.1%}",
    "worst peak": "{:.1%}",
    "worst sent": "{:.1%}",
}


@dataclass(frozen=True)
class Errors:
    """Of the estimate, as parts of what the compiler says."""

    peak: float
    sent: float

    @property
    def is_far(self) -> bool:
        return abs(self.peak) > PEAK or abs(self.sent) > SENT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=84, metavar="N", help="presets that can be laid out")
    parser.add_argument("--first", type=int, default=1001, metavar="SEED")
    parser.add_argument("--mixtures", action="store_true", help="of mixtures of experts alone")
    options = arguments(parser)
    sizes = replace(NANO, mixtures=1.0) if options.mixtures else NANO
    known: list[Errors] = []
    whys: Counter[str] = Counter()
    seed = options.first
    while len(known) + whys.total() < options.count:
        found = _errors(case(seed, sizes))
        if isinstance(found, str):
            whys[found] += 1
        elif found:
            known.append(found)
            if found.is_far:
                print(f"peak {found.peak:+.1%}, sent {found.sent:+.1%}: {case(seed, sizes).summary}", flush=True)
        seed += 1
        jax.clear_caches()
    print(f"{versions()}\n")
    peaks, sent = ([abs(getattr(each, name)) for each in known] for name in ("peak", "sent"))
    far = sum(error > PEAK for error in peaks), sum(error > SENT for error in sent)
    name = f"{options.count}{' mixtures' * options.mixtures}, seeds {options.first} to {seed - 1}"
    with Table(f"long/formulas{'-mixtures' * options.mixtures}", COLUMNS, options.record) as table:
        table.add(name, len(known), *far, median(peaks), max(peaks), max(sent))
    for why, count in whys.most_common():
        print(f"no estimate, {count} ×: {why}", file=sys.stderr)


def _errors(case: Case) -> Errors | str | None:
    """Why there is no estimate, as text; None where the preset does not fit."""
    task, devices = Task(case.config, "cpu"), jax.devices()[: case.devices]
    if not describe_preset(task, case.preset, devices).fits:
        return None
    step = Step(task, case.preset, case.devices)
    if step.unknown:
        return step.unknown
    compiled = compile_program(task, place(task, case.preset, devices)).description
    assert compiled.memory and compiled.collectives is not None
    said, sent = (sum(flow.bytes_sent for flow in each) for each in (step.flows, flows(compiled.collectives)))
    moved = said / sent - 1 if sent > NOTHING else float(said > NOTHING)
    return Errors(sum(step.parts.values()) / compiled.memory.peak - 1, moved)


if __name__ == "__main__":
    main()
