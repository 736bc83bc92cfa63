"""Random commands and failures in the real loop, which tests/loop_machine.py lists."""

import shutil
import traceback
from collections import Counter

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ..loop_machine import LoopMachine, Shared
from .row import Row

SEQUENCES = 20
"""Sequences of the short form."""
COMMANDS = 15
"""Commands or failures per sequence."""


def run(times: int) -> list[Row]:
    """Runs `times` as many sequences as the short form."""
    LoopMachine.shared = shared = Shared()
    count, problem = SEQUENCES * times, ""
    options = settings(
        max_examples=count, stateful_step_count=COMMANDS, deadline=None, phases=[Phase.generate], database=None
    )
    try:
        run_state_machine_as_test(LoopMachine, settings=options)
    except Exception as error:
        traceback.print_exception(error)
        problem = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(shared.folder)
    events = ", ".join(f"{name} {number:,}" for name, number in Counter(LoopMachine.done).most_common())
    note = problem or f"{shared.compared:,} losses within 1e-5 of the run without commands; {events}"
    return [Row("sequences of random commands and failures in the training loop", count, count * (not problem), note)]
