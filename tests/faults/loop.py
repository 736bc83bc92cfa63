"""Random commands and failures in the real loop (`tests/loop_machine.py`).

Switches, scheduled ones too, pauses, single steps, saves, going back, added presets, and resuming on 8, 4 and 1
devices; first steps after a switch, loads, saves and batches that fail, and damaged checkpoints.
"""

import shutil
import traceback
from collections import Counter

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ..loop_machine import LoopMachine, Workshop
from .row import Row

SEQUENCES = 20
"""Of the short form."""
COMMANDS = 15


def run(times: int) -> list[Row]:
    LoopMachine.shop = shop = Workshop()
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
        shutil.rmtree(shop.folder)
    events = ", ".join(f"{name} {number:,}" for name, number in Counter(LoopMachine.done).most_common())
    note = problem or f"{shop.compared:,} losses within 1e-5 of the run without commands; {events}"
    return [Row("sequences of random commands and failures in the training loop", count, count * (not problem), note)]
