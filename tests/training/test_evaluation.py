"""The loss of held-out data: the same under every preset, without dropout, and without any effect on training."""

import subprocess
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest
from flax import nnx
from shardtui.engine.base.user_error import UserError
from shardtui.engine.data.batches import Batches
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import trace_held_out
from shardtui.engine.spec.checks import problems_of
from shardtui.engine.spec.config import EvaluationConfig, UserModel
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.inputs import text_inputs
from shardtui.engine.wire.checkpoints import CheckpointInfo

from ..conftest import SETTINGS, SHARDTUI, WITH_DROPOUT, tiny_config, tiny_model
from ..oracle.arrays import tokens
from ..schemas import checked_lines
from ..suite import loss_of

TEXT = bytes(range(1, 251)) * 20
SHARE = EvaluationConfig(share=0.1, every_steps=2, batches=2)


def held_out_loss(task: Task, preset: str, batch: Batch) -> float:
    placement = place(task, load_preset(preset), jax.devices())
    state = jax.device_put(jax.jit(task.initial_state)(), placement.state_shardings)
    on_devices = Batch(*map(jax.device_put, batch, placement.batch_shardings))
    return float(trace_held_out(placement).lower().compile()(state, on_devices))


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param("fsdp-tp2", marks=pytest.mark.core),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pp2", "sp2")),
    ],
)
def test_the_held_out_loss_is_that_of_a_plain_forward_pass_under_every_kind_of_preset(preset: str) -> None:
    task = Task(tiny_config(model=tiny_model(dropout=0.5), evaluation=SHARE), "cpu")
    batch = tokens(task)
    state, on_device = jax.jit(task.initial_state)(), jax.device_put(batch)
    loss = jax.jit(loss_of(task))
    expected = float(loss(state.params, on_device, None))
    assert float(loss(state.params, on_device, jax.random.key(1))) != pytest.approx(expected, rel=1e-3), "dropout"
    assert held_out_loss(task, preset, batch) == pytest.approx(expected, rel=1e-5)


MODEL = """
from flax import nnx
class Model(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(256, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(8, 256, rngs=rngs)
    def __call__(self, tokens):
        return self.out(self.dropout(self.norm(self.table(tokens))))
"""
BATCHES = "def loss(model, batch): return model(batch['x']).mean()\ndef batch(step): return {'x': [[step]] * 8}\n"


def user_task(folder: Path, code: str) -> Task:
    path = folder / "lm.py"
    path.write_text(code)
    model = UserModel(reference=f"{path}:Model", directory=str(folder))
    return Task(tiny_config(model=model, data=None, evaluation=SHARE), "cpu")


def test_a_users_module_is_evaluated_in_eval_mode_unless_it_makes_the_batches(tmp_path: Path) -> None:
    task = user_task(tmp_path, MODEL)
    batch = tokens(task)
    module = task.model.module()
    module.eval()
    logits = module(batch.inputs)  # type: ignore[operator]
    chosen = np.take_along_axis(np.asarray(nnx.log_softmax(logits)), batch.targets[..., None], -1)
    assert held_out_loss(task, "dp", batch) == pytest.approx(-chosen.mean(), rel=1e-5)
    with pytest.raises(UserError, match=r"batch of lm\.py makes the batches, so no text can be held out: omit them"):
        user_task(tmp_path, MODEL + BATCHES)


def test_a_share_holds_out_the_end_of_the_data_unless_that_is_too_little(tmp_path: Path) -> None:
    data = tmp_path / "text"
    data.write_bytes(np.random.default_rng(0).integers(1, 255, 6_000, np.uint8).tobytes())
    inputs = text_inputs(tiny_config(data=str(data), evaluation=SHARE))
    assert isinstance(inputs.batches, Batches) and inputs.held_out and inputs.held_out_corpus
    assert (inputs.corpus.bytes, inputs.held_out_corpus.bytes) == (5_400, 600)
    trained, held_out = (
        {row.tobytes() for n in range(batches.full_batches) for row in batches[n][0]}
        for batches in (inputs.batches, inputs.held_out)
    )
    assert trained and held_out and not trained & held_out
    whole = text_inputs(tiny_config(data=str(data)))
    assert inputs.corpus.sha256 != whole.corpus.sha256, "a resumed run must not train on what it evaluated"
    other = msgspec.structs.replace(SHARE, share=None, data=str(data))
    assert text_inputs(tiny_config(evaluation=other)).held_out_corpus == whole.corpus
    data.write_bytes(TEXT)
    (few := tmp_path / "few").write_bytes(TEXT[: 8 * 16])
    for evaluation, says in (
        (
            EvaluationConfig(share=0.01),
            "--eval-share 0.01 of --data .*: 50 bytes are fewer than .* 8 × 16 [+] 1: hold more",
        ),
        (EvaluationConfig(share=0.002), "--eval-share 0.002 of --data .*: 10 bytes are fewer than one sequence"),
        (EvaluationConfig(data=str(few)), "--eval-data .*: 128 bytes are fewer than .* 8 × 16 [+] 1: give more data"),
        (EvaluationConfig(data=str(tmp_path / "none")), "--eval-data .*/none: no such file"),
    ):
        with pytest.raises(UserError, match=says):
            text_inputs(tiny_config(data=str(data), evaluation=evaluation))


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        (EvaluationConfig(), "nothing is held out: add --eval-data PATH or --eval-share F"),
        (EvaluationConfig(data="a", share=0.1), "--eval-data a: --eval-share 0.1 holds data out, too: omit one"),
        (EvaluationConfig(share=1.0), "--eval-share 1.0: must be above 0 and below 1"),
        (EvaluationConfig(share=0.1, every_steps=0), "--eval-every 0: must be at least 1"),
        (EvaluationConfig(share=0.1, batches=0), "--eval-batches 0: must be at least 1"),
    ],
)
def test_invalid_options_are_refused(evaluation: EvaluationConfig, says: str) -> None:
    (problem,) = problems_of(tiny_config(evaluation=evaluation))
    assert says in problem


def test_the_best_checkpoint_is_that_of_the_lowest_held_out_loss() -> None:
    def info(loss: float | None, eval_loss: float | None) -> CheckpointInfo:
        return CheckpointInfo(step=1, time=0, preset="dp", devices=8, loss=loss, bytes=1, eval_loss=eval_loss)

    infos = [info(2.0, 3.0), info(1.5, 3.5), info(1.0, None), info(0.5, 3.4)]
    assert min(infos, key=lambda found: found.rank) is infos[0]
    assert min([*infos[2:3], info(0.9, None)], key=lambda found: found.rank).loss == 0.9


def trained(*arguments: str) -> list[dict[str, Any]]:
    run = subprocess.run([*SHARDTUI, "train", "--json", *arguments], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return checked_lines("events", run.stdout)


def of(lines: list[dict[str, Any]], kind: str, key: str) -> list[Any]:
    return [line[key] for line in lines if line["type"] == kind]


@pytest.mark.slow
def test_two_processes_evaluate_together_and_a_resumed_run_goes_on(home: Path) -> None:
    model, share = (*SETTINGS, WITH_DROPOUT, "--steps=4"), "--eval-share=0.01"
    plain = trained(*model, share, "--eval-every=100")
    assert of(plain, "Evaluated", "step") == [4], "the last step is evaluated in any case"
    alone = trained(*model, share, "--eval-every=2", "--eval-batches=2")
    assert of(alone, "StepDone", "loss") == of(plain, "StepDone", "loss"), "equal to the bit"
    two = ("--processes=2", "--preset=fsdp", "--switch=3:tp", "--run=two")
    together = trained(*model, share, "--eval-every=2", "--eval-batches=2", *two)
    assert [of(together, "Evaluated", key) for key in ("step", "batches")] == [[2, 4], [2, 2]]
    assert of(together, "Evaluated", "loss") == pytest.approx(of(alone, "Evaluated", "loss"), rel=1e-5)
    kept = of(alone, "CheckpointsKept", "checkpoints")[-1]
    assert kept[-1]["eval_loss"] == of(alone, "Evaluated", "loss")[-1]
    resumed = trained("--resume=two", "--processes=1", "--steps=6")
    assert of(resumed, "Evaluated", "step") == [6]
