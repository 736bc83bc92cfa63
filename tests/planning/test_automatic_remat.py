"""`remat = "auto"`: what it tries, by estimate, and what it trains with, by the compiler."""

from pathlib import Path

import jax
import pytest
from shardtui.engine.models.task import Task
from shardtui.engine.planning.automatic_remat import fitting_remats, usable
from shardtui.engine.planning.step_trace import traced_work
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.spec.config import ModelConfig
from shardtui.engine.spec.model_config import POLICIES
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.training_words import training_words

from ..bench.plain import config
from ..conftest import tiny_config

GPT_2 = config("remat=auto", "batch_size=64", name="gpt2")


def tried(capacity: int | None) -> list[str]:
    return list(fitting_remats(Task(GPT_2, "tpu"), jax.devices(), capacity, load_preset("fsdp")))


@pytest.mark.slow
def test_the_policies_that_fit_are_tried_by_how_little_they_recompute() -> None:
    fitting = tried(2_500_000_000)
    assert fitting == [policy for policy in reversed(POLICIES) if policy in fitting] and 1 < len(fitting) < 7
    tasks = [Task(GPT_2.with_remat(remat), "tpu") for remat in (*fitting, "full")]
    flops = [traced_work(task, load_preset("fsdp"), jax.devices()).flops for task in tasks]
    assert flops == sorted(flops)


def test_without_known_memory_none_is_tried() -> None:
    assert tried(None) == []


def test_a_share_of_the_smallest_device_stays_free() -> None:
    assert usable([None, 100, 200], 0.05) == 95
    assert usable([None], 0.05) is None


@pytest.mark.core
def test_what_the_compiler_says_does_not_fit_is_not_trained_with(tmp_path: Path) -> None:
    task = Task(tiny_config().with_remat("auto"), "cpu")
    chosen = {}
    for capacity in (None, 10**9, 1):
        compiler = Compiler(task, {}, jax.devices(), tmp_path, remats=lambda _: ["minimal"], capacity=capacity)
        try:
            program = compiler.compiled("dp")
        finally:
            compiler.close()
        model = program.placement.task.config.model
        assert isinstance(model, ModelConfig)
        assert program.description.remat == model.remat
        chosen[capacity] = model.remat
    assert chosen == {None: "minimal", 10**9: "minimal", 1: "full"}


@pytest.mark.parametrize(("chosen", "words"), [(None, "remat auto"), ("minimal", "remat auto: minimal")])
def test_the_choice_is_said(chosen: str | None, words: str) -> None:
    assert training_words(GPT_2, chosen) == words
