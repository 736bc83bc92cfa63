"""The loop in this process: what it does where the device has less memory than was predicted."""

import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import pytest
from etils import epath
from shardtui.engine.checkpoint import Place
from shardtui.engine.compiler import Compiler
from shardtui.engine.config import PRESETS, CheckpointConfig, ScheduledSwitch
from shardtui.engine.data import Batches, read_corpus
from shardtui.engine.loop import Loop
from shardtui.engine.preset import read_preset
from shardtui.engine.program import Program
from shardtui.engine.protocol import Event, Restored, StepsDone, SwitchFailed
from shardtui.engine.saver import Saver
from shardtui.engine.task import Task


class Known(Compiler):
    """With the programs that the tests have compiled already."""

    def __init__(self, task: Task, programs: dict[str, Program]) -> None:
        presets = {name: read_preset(PRESETS / "parallelism" / f"{name}.toml") for name in programs}
        super().__init__(task, presets, jax.devices())
        self._programs = dict(programs)


def run(task: Task, programs: dict[str, Program], folder: Path, switches: tuple[ScheduledSwitch, ...]) -> list[Event]:
    """Six steps, saved after every second one."""
    text = folder / "text"
    text.write_text("What is split comes together. " * 100)
    checkpoints = CheckpointConfig(every_steps=2, every_minutes=None)
    config = msgspec.structs.replace(task.config, steps=6, data=str(text), switches=switches, checkpoints=checkpoints)
    events: list[Event] = []
    corpus = read_corpus(config.data)
    place = Place(epath.Path(folder / f"checkpoints-{len(switches)}"))
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    saver = Saver(place, config, task, corpus.describe(), jax.devices(), events.append, lambda: inbox.put(None))
    batches = Batches(corpus, config.training.batch_size, config.training.seq_len, config.seed)
    assert Loop(config, task, batches, Known(task, programs), saver, events.append, inbox).run(None) == 6
    return events


def losses(events: list[Event]) -> dict[int, float | None]:
    """By step; of a step that was made again the last."""
    return {
        step: loss
        for event in events
        if isinstance(event, StepsDone)
        for step, loss in enumerate(event.losses, event.step - len(event.losses) + 1)
    }


def exhausted(*_: Any) -> Any:
    """What XLA really raises where there is no memory for an array."""
    return jax.block_until_ready(jax.jit(lambda: jnp.ones(2**46, jnp.float32))())


def exhausted_after_donation(state: Any, *_: Any) -> Any:
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    return exhausted()


@pytest.mark.parametrize("step", [exhausted, exhausted_after_donation])
def test_a_switch_whose_first_step_finds_no_memory_is_taken_back(
    task: Task, programs: dict[str, Program], tmp_path: Path, step: Callable[..., Any]
) -> None:
    known = {"dp": programs["dp"], "fsdp": replace(programs["fsdp"], step=step)}
    plain = losses(run(task, known, tmp_path, ()))
    events = run(task, known, tmp_path, (ScheduledSwitch(5, "fsdp"),))
    (failed,) = [event for event in events if isinstance(event, SwitchFailed)]
    assert failed.to_preset == "fsdp"
    assert "out of device memory" in failed.problems[0]
    assert "smaller --batch-size" in failed.problems[0]
    assert losses(events) == plain
    restored = [event.step for event in events if isinstance(event, Restored)]
    assert restored == ([] if step is exhausted else [4])
