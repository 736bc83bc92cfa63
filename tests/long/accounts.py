"""Accounts of traced steps under every preset: `python tests/long/accounts.py [--record] [MODEL …]` (ten minutes on two
cores); exit 1 if anything is wrong.

Each preset that fits is compiled, and two steps are traced. What tests/profiling/test_counts.py checks for a few of
them must hold for all: every collective of the inventory has its events, as often as the text says; the work by the
text is what ran; the parts of each device add up to the step.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

from shardtui.engine.base.invalid import Invalid
from shardtui.engine.program.program import Program
from shardtui.engine.spec.preset_files import is_pitfall
from shardtui.engine.spec.preset_reader import load_presets
from shardtui.engine.wire.step_breakdown import StepBreakdown

from tests.profiling import test_counts as counts
from tests.suite import versions
from tests.table import Table, arguments

CHECKS: list[Callable[[tuple[Program, StepBreakdown]], None]] = [
    counts.test_each_collective_of_the_inventory_runs_as_often_as_the_text_says,
    counts.test_the_work_by_the_text_is_what_ran,
    counts.test_the_parts_of_each_device_add_up_to_the_step,
    counts.test_the_sums_of_collectives_are_those_of_traffic_and_of_the_parts,
    counts.test_devices_wait_no_longer_than_others_are_late,
    counts.test_the_flops_of_the_operations_are_those_of_the_program,
]
MODELS = ("nano", "nano-moe", "user's")
COLUMNS = {
    "model": "",
    "presets": "",
    "collectives": "{:,}",
    "their executions per step": "{:,.0f}",
    "largest gap of a device's sum": "{:.1e}",
    "wrong": "",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)}; all by default")
    options = arguments(parser)
    print(f"{versions()}\n")
    command = " ".join(["python tests/long/accounts.py", *options.models])
    with Table("long/accounts", COLUMNS, options.record, command) as table:
        for model in options.models or MODELS:
            table.add(model, *checked(model))
    return any(row[-1] for row in table.rows)


def checked(model: str) -> tuple[int, int, float, float, int]:
    """The row of a model."""
    accounts: list[StepBreakdown] = []
    wrong = 0
    for name in (preset.name for preset in load_presets()[0] if not is_pitfall(preset.name)):
        with contextlib.suppress(Invalid), tempfile.TemporaryDirectory() as folder:
            found = counts.measured_step(model, name, Path(folder))
            accounts.append(found[1])
            for check in CHECKS:
                wrong += is_wrong(check, found, f"{model}, {name}")
    collectives = [each for account in accounts for each in account.collectives]
    return len(accounts), len(collectives), sum(each.count for each in collectives), max(map(gap, accounts)), wrong


def is_wrong(
    check: Callable[[tuple[Program, StepBreakdown]], None], found: tuple[Program, StepBreakdown], where: str
) -> bool:
    try:
        check(found)
    except AssertionError as error:
        print(f"{where}: {check.__name__}: {str(error)[:300]}", file=sys.stderr)
        return True
    return False


def gap(account: StepBreakdown) -> float:
    """How far the parts of a device are from the step, at most, as a fraction of it."""
    return max(abs(sum(device.seconds) / account.step_seconds - 1) for device in account.devices)


if __name__ == "__main__":
    sys.exit(main())
