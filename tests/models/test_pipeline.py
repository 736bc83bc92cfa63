"""Pipelines: the same numbers as without stages, and the traffic, memory and bubble of the formulas."""

from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from flax import nnx
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.traffic import Flow, flows
from shardtui.engine.models.blocks import apply_dropout
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.parallel.constraints import activation_rules
from shardtui.engine.planning.estimate import layout_row
from shardtui.engine.planning.step_trace import traced_cost, traced_work
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program
from shardtui.engine.spec.config import ModelConfig, TrainingConfig
from shardtui.engine.spec.preset import PipelineInfo, Preset
from shardtui.engine.spec.preset_reader import load_preset, parse_preset, read_preset
from shardtui.tui.state.step_words import pipeline_words

from ..conftest import BATCHES, WIDE, step, tiny_config
from ..suite import loss_of

INTERLEAVED = Path(__file__).parents[2] / "docs" / "examples" / "pp2-interleaved.toml"
PIPELINED = [pytest.param("pp2", marks=pytest.mark.slow), "dp-tp2-pp2"]
FEW = 128
"""Bytes that norms and the mean of the loss send, at most."""
STREAM = BATCHES.batch_size * BATCHES.seq_len * WIDE.embed * 4
"""Bytes of the global batch's residual stream, float32."""


def bytes_sent(flows: Iterable[Flow]) -> dict[tuple[str, ...], float]:
    return {(flow.kind, *flow.axes): flow.bytes_known for flow in flows if flow.bytes_known > FEW}


def preset(name: str, microbatches: int | None, repeats: int = 1) -> Preset:
    return msgspec.structs.replace(load_preset(name), microbatches=microbatches, pipeline_repeats=repeats)


MESH, RULES = {"a": 2, "b": 2, "data": 2}, {"layers": (("a", "b"),), "batch": (("data",),)}
TWO_AXES = Preset("p", "", "", MESH, RULES, {}, "", pipeline_repeats=3)


@pytest.mark.parametrize(
    ("preset", "axes", "layers", "batch", "micro", "remat"),
    [
        pytest.param(
            TWO_AXES, ["a", "b"], 12, 16, 8, False, marks=pytest.mark.core, id="more micro-batches than stages"
        ),
        *(
            pytest.param(preset(name, micro, repeats), ["pipeline"], 4, 8, micro, remat, marks=pytest.mark.slow)
            for name, micro, repeats, remat in (
                ("pp2", 1, 1, False),
                ("pp2", 2, 1, False),
                ("dp-tp2-pp2", 4, 1, False),
                ("pp2", 2, 2, "save_dot_except_mlpwi"),
                ("dp-tp2-pp2", 4, 2, True),
            )
        ),
    ],
)
def test_gradients_match_those_without_stages(
    preset: Preset, axes: list[str], layers: int, batch: int, micro: int, remat: bool | str
) -> None:
    """Loss and gradients of one batch, dropout on."""
    model = ModelConfig(layers=layers, embed=16, heads=2, mlp=32, vocab=256, vocab_rows=256, context=8)
    config = tiny_config(model=model, training=TrainingConfig(batch_size=batch, seq_len=8))
    plain = Task(config, "cpu")
    staged = Task(msgspec.structs.replace(config, model=msgspec.structs.replace(model, remat=remat)), "cpu")
    params = jax.jit(plain.initial_state)().params
    tokens = jax.random.randint(jax.random.key(1), (batch, 9), 0, 256)
    inputs, key = Batch(tokens[:, :-1], tokens[:, 1:]), jax.random.key(2)
    expected = jax.jit(jax.value_and_grad(loss_of(plain)))(params, inputs, key)
    placement = place(staged, preset, jax.devices())
    stages, repeats = 2 ** len(axes), preset.pipeline_repeats
    bubble = (stages - 1) / (repeats * micro + stages - 1)
    pipeline = PipelineInfo(axes=axes, stages=stages, microbatches=micro, repeats=repeats, bubble=bubble)
    assert placement.pipeline == pipeline
    params, inputs = jax.device_put((params, inputs), (placement.state_shardings.params, placement.batch_shardings))
    with jax.set_mesh(placement.mesh), activation_rules(placement.mesh, preset.rules, None, pipeline):
        found = jax.jit(jax.value_and_grad(loss_of(staged)))(params, inputs, key)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)


@pytest.mark.parametrize("stages", range(2, 9))
@pytest.mark.parametrize("repeats", range(1, 9))
def test_exchanges_bring_each_chunk_to_its_stage_once(stages: int, repeats: int) -> None:
    info = PipelineInfo(axes=["p"], stages=stages, microbatches=stages, repeats=repeats, bubble=0.5)
    for sent in info.exchanges:
        assert [chunk // repeats for chunk in sent] == list(range(stages)), "each stage sends one that it has"
        assert sorted(chunk % stages for chunk in sent) == list(range(stages)), "each stage receives one"
    assert sorted(chunk for sent in info.exchanges for chunk in sent) == list(range(stages * repeats))


@pytest.mark.parametrize("name", PIPELINED)
def test_steps_match_data_parallel(name: str, task: Task, programs: dict[str, Program]) -> None:
    each = (programs["dp"], programs[name])
    ends = [step(compile_initial_state(program.placement)(), program, steps=2) for program in each]
    for one, other in zip(*(jax.tree.leaves(end.opt_state) for end in ends), strict=True):
        assert np.linalg.norm(np.asarray(one) - np.asarray(other)) <= 1e-5 * np.linalg.norm(np.asarray(one))


@pytest.mark.parametrize("name", PIPELINED)
def test_every_tick_sends_a_microbatch_both_ways(name: str, task: Task, programs: dict[str, Program]) -> None:
    program = programs[name]
    found = program.description
    assert found.pipeline and found.collectives
    groups = found.mesh.axes["data"]
    moves = [info for info in found.collectives if info.kind == "collective-permute"]
    assert [(info.axes, info.count, info.bytes_each) for info in moves] == [
        (["pipeline"], found.pipeline.ticks, STREAM // groups // found.pipeline.microbatches)
    ] * 2
    assert all(info.written and "/stack.py:" in info.source for info in moves)
    traced = traced_cost(task, program.placement.preset, 8, None, jax.devices()).collectives or []
    assert bytes_sent(traced) == pytest.approx(bytes_sent(flows(found.collectives)), abs=FEW)
    (permuted,) = (flow for flow in traced if "permute" in flow.kind)
    assert permuted.count == 2 * found.pipeline.ticks


@pytest.fixture(scope="module")
def four_layers() -> Task:
    return Task(tiny_config(model=msgspec.structs.replace(WIDE, layers=4, dropout=0.1), training=BATCHES), "cpu")


@pytest.mark.slow
def test_the_interleaved_program_does_what_its_trace_says(four_layers: Task) -> None:
    interleaved = read_preset(INTERLEAVED)
    found = compile_program(place(four_layers, interleaved, jax.devices())).description
    cost = traced_cost(four_layers, interleaved, 8, None, jax.devices())
    assert found.pipeline and found.pipeline.ticks == 9 and found.memory
    compiled = bytes_sent(flows(found.collectives or []))
    assert bytes_sent(cost.collectives or []) == pytest.approx(compiled, abs=FEW)
    assert cost.peak_bytes == pytest.approx(found.memory.peak, rel=0.2)
    stage = sum(array.bytes for array in found.arrays if array.name.startswith("blocks")) // 2
    moved = STREAM // 4 // found.pipeline.microbatches * 2 * found.pipeline.ticks
    assert compiled["collective-permute", "pipeline"] == moved + stage, "half of a stage leaves it, and its gradients"


@pytest.mark.slow
def test_idle_stages_cost_as_much_as_busy_ones_and_dropout_depends_on_the_example(task: Task) -> None:
    """The bubble as FLOPs: a stage runs its layers M + S - 1 times for M micro-batches."""
    flops = [traced_work(task, preset("pp2", count), jax.devices()).flops for count in (1, 2, 4)]
    logits = BATCHES.tokens_per_step / 4 * 6 * WIDE.embed * WIDE.vocab_rows / 2
    blocks = [each - logits for each in flops]
    assert [each / blocks[0] for each in blocks] == pytest.approx([1, 3 / 4, 5 / 8])
    mesh, rules = {"data": 8, "pipeline": 1}, {"batch": (("data",),), "layers": (("pipeline",),)}
    assert Preset("p", "", "", mesh, rules, {}, "").pipeline(8, 16) is None
    rules = {"batch": (("fsdp",),), "layers": (("fsdp",),)}
    assert Preset("p", "", "", {"fsdp": -1}, rules, {}, "").pipeline(8, 16) is None
    dropout, key, x = nnx.Dropout(0.5), jax.random.key(0), jnp.ones((8, 4, 16))
    batch = apply_dropout(dropout, x, key, jnp.arange(len(x)))
    part = apply_dropout(dropout, x[3:5], key, jnp.arange(3, 5))
    np.testing.assert_array_equal(part, batch[3:5])
    assert 0.3 < float(jnp.mean(batch == 0)) < 0.7
    assert len({np.asarray(example).tobytes() for example in batch}) == len(x)


@pytest.mark.parametrize(
    ("stages", "devices", "batch", "given", "expected"),
    [(2, 8, 16, None, 4), (2, 8, 16, 2, 2), (4, 4, 64, None, 16), (4, 4, 6, None, 6), (8, 8, 1, None, 1)],
)
def test_microbatches_and_bubble(stages: int, devices: int, batch: int, given: int | None, expected: int) -> None:
    mesh, rules = {"data": -1, "pipeline": stages}, {"batch": (("data",),), "layers": (("pipeline",),)}
    found = Preset("p", "", "", mesh, rules, {}, "", (), given).pipeline(devices, batch)
    bubble = (stages - 1) / (expected + stages - 1)
    assert found == PipelineInfo(axes=["pipeline"], stages=stages, microbatches=expected, bubble=bubble)


@pytest.mark.parametrize(
    ("text", "layers", "says"),
    [
        ("microbatches = 3", 2, "batch 16 ÷ data (4) = 4 does not divide by it: use a divisor of 4, or a batch of 24"),
        ("microbatches = 0", 2, "Expected `int` >= 1"),
        ("microbatches = 'few'", 2, "Expected `int"),
        ("pipeline_repeats = 0", 4, "Expected `int` >= 1"),
        ("pipeline_repeats = 2", 6, "6 layers ÷ pipeline (2) = 3 does not divide by it: use a divisor of 3, or a"),
        ("pipeline_repeats = 2\nmicrobatches = 1", 4, "1 micro-batches are fewer than 2 stages"),
    ],
)
def test_invalid_schedules(text: str, layers: int, says: str) -> None:
    task = Task(tiny_config(model=msgspec.structs.replace(WIDE, layers=layers), training=BATCHES), "cpu")
    text += '\n[mesh]\ndata = -1\npipeline = 2\n[rules]\nbatch = "data"\nlayers = "pipeline"\n'
    with pytest.raises(UserError) as error:
        place(task, parse_preset(Path("bad.toml"), text), jax.devices())
    (problem,) = error.value.problems
    assert says in problem


@pytest.mark.parametrize("key", ["microbatches", "pipeline_repeats"])
def test_a_schedule_needs_stages(key: str) -> None:
    (problem,) = parse_preset(Path("bad.toml"), f'{key} = 2\n[mesh]\ndata = -1\n[rules]\nbatch = "data"\n').problems
    assert f"{key}: the preset has no pipeline stages" in problem


def test_stages_appear_in_plans_and_layouts(task: Task, four_layers: Task, programs: dict[str, Program]) -> None:
    compiled = programs["dp-tp2-pp2"].description
    row = layout_row(task, load_preset(compiled.preset), 8, None)
    assert row.pipeline == compiled.pipeline
    assert row.pipeline and pipeline_words(row.pipeline) == "2 stages, 8 micro-batches, bubble 11 %"
    found = layout_row(four_layers, read_preset(INTERLEAVED), 8, None).pipeline
    assert found and pipeline_words(found) == "2 stages, 2 repeats, 4 micro-batches, bubble 11 %"
    arrays = {array.name: array for array in compiled.arrays}
    up = arrays["blocks.mlp.up.kernel"]
    assert up.compiled_spec == [["pipeline"], [], ["model"]]
    assert up.reasons[0] == "layers: rule → pipeline (2): 2 ÷ 2 = 1"
