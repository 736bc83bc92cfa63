"""Text sampled between steps: under any layout the same, and no loss changes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import pytest
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program
from shardtui.engine.spec.config import Sampling, TrainingConfig
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.sampling import compile_sampler
from shardtui.engine.wire.commands import SampleText
from shardtui.engine.wire.events import Sampled, TrainingStarted
from shardtui.tui.cli.main import main
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import RunState
from shardtui.tui.terminal.clean import clean

from ..conftest import tiny_config
from ..programs import Programs
from ..recorded import recorded_run
from .test_loop import losses, named, run, tiny, tiny_programs

__all__ = ["tiny", "tiny_programs"]

Capture = pytest.CaptureFixture[str]


def sampler(task: Task, preset: str) -> Callable[..., bytes]:
    """Returns a function of the prompt, the number of tokens, the temperature and the seed."""
    placement = place(task, load_preset(preset), jax.devices())
    state = jax.device_put(jax.jit(task.initial_state)(), placement.state_shardings)
    return partial(compile_sampler(placement).sample, state)


@pytest.mark.core
def test_bytes_are_the_most_probable_ones_of_a_window_that_moves() -> None:
    task, prompt, count = Task(tiny_config(), "cpu"), b"def f(x):", 20
    params = jax.jit(task.initial_state)().params
    logits = jax.jit(task.logits)
    text = [*prompt]
    for _ in range(count):
        window = text[-15:]
        tokens = jnp.array([window + [0] * (16 - len(window))], jnp.int32)
        text.append(int(jnp.argmax(logits(params, tokens)[0, len(window) - 1])))
    assert sampler(task, "fsdp-tp2")(prompt, count, 0.0, 0) == bytes(text[len(prompt) :])


def test_a_model_of_one_position_reads_the_last_byte() -> None:
    sample = sampler(Task(tiny_config(training=TrainingConfig(batch_size=8, seq_len=1)), "cpu"), "dp")
    assert sample(b"ab", 4, 1.0, 0) == sample(b"b", 4, 1.0, 0)


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param("fsdp-tp2-explicit", marks=pytest.mark.core),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pp2", "sp2", "hsdp", "tp")),
    ],
)
def test_samples_are_the_same_under_every_layout(preset: str) -> None:
    task = Task(tiny_config(), "cpu")
    plain = sampler(task, "dp")
    text = sampler(task, preset)(b"import ", 24, 1.0, 7)
    assert text == plain(b"import ", 24, 1.0, 7)
    assert text != plain(b"import ", 24, 1.0, 8)


@pytest.mark.slow
def test_samples_leave_losses_as_they_are(task: Task, programs: dict[str, Program], tmp_path: Path) -> None:
    asked = Sampling(prompt="What is ", tokens=3, every_steps=2)
    answers = {TrainingStarted: SampleText(5, Sampling(tokens=2))}
    plain = losses(run(task, programs, tmp_path))
    events = run(task, programs, tmp_path, answer=lambda event: answers.get(type(event)), sampling=asked)
    assert losses(events) == plain
    found = named(events, Sampled)
    assert [(event.step, event.number, event.problem) for event in found] == [
        (0, 5, None),
        (2, 0, None),
        (4, 0, None),
        (6, 0, None),
    ]
    assert [bool(event.compile_seconds) for event in found] == [True, False, False, False]
    assert all(event.text for event in found)


def test_a_run_samples_after_every_nth_step_with_its_last(tiny: Task, tiny_programs: Programs, tmp_path: Path) -> None:
    events = run(tiny, tiny_programs, tmp_path, sampling=Sampling(every_steps=3))
    assert [event.step for event in named(events, Sampled)] == [3, 6]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["sample", "any", "--tokens", "0"], "--tokens 0: must be from 1 to 1,024"),
        (["sample", "any", "--temperature", "-1"], "--temperature -1.0: must be 0 or more"),
        (["sample", "any"], "run any: no such run"),
        (["sample", "tiny-1"], "run tiny-1 has ended, and only an engine has the model"),
        (["train", "--steps", "2", "--sample-every", "0"], "--sample-every 0: must be at least 1"),
        (["train", "--steps", "2", "--sample-prompt", "a"], "--sample-prompt a: add --sample-every N"),
    ],
)
def test_bad_options_and_runs_are_refused(options: list[str], problem: str, home: Path, capsys: Capture) -> None:
    recorded_run()
    assert main(options) == 2
    assert problem in capsys.readouterr().err


def test_a_sample_is_logged_with_what_it_cost() -> None:
    event = Sampled(4, "dp", 0, Sampling(prompt="def "), text="f(x):\n", seconds=0.5, compile_seconds=0.0)
    state = RunState()
    apply_all(state, [event])
    assert state.sampled == event
    assert clean(event).line == 'step 4: "def " → "f(x): " in 500 ms'
    assert msgspec.structs.replace(event, problem="out of memory").line == "step 4: no sample: out of memory"
