"""Random commands and failures in the real loop: the short form of `tests/faults/loop.py`."""

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ..loop_machine import LoopMachine, Shared


@pytest.fixture
def machine() -> Iterator[type[LoopMachine]]:
    LoopMachine.shared = Shared()
    yield LoopMachine
    shutil.rmtree(LoopMachine.shared.folder)


@pytest.mark.core
def test_the_loop_agrees_with_the_model_under_random_commands_and_failures(machine: type[LoopMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=12, deadline=None))


@pytest.mark.slow
def test_a_restored_state_is_saved_again_if_its_checkpoint_was_damaged(machine: type[LoopMachine]) -> None:
    state = machine()
    state.start(preset="dp", devices=8)
    state.train(2)
    state.stop_and_resume(devices=8, preset=None, after=4, to="fsdp")
    state.pause()
    state.restore_a_damaged_checkpoint(which=0, where=0)
    state.teardown()
