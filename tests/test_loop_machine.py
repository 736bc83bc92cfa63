"""Random commands and failures in the real loop: the short form of `tests/faults/loop.py`."""

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from .loop_machine import LoopMachine, Workshop


@pytest.fixture
def machine() -> Iterator[type[LoopMachine]]:
    LoopMachine.shop = Workshop()
    yield LoopMachine
    shutil.rmtree(LoopMachine.shop.folder)


def test_random_commands_and_failures_leave_the_run_where_it_should_be(machine: type[LoopMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=12, deadline=None))
