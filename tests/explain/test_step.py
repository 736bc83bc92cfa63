"""The step of the built-in model: each chain ends at a rule, and each collective is explained."""

from collections.abc import Callable
from functools import cache

import msgspec
import pytest
from shardtui.engine.explain.explanation import Explanation, StepRequest, ValueOrigin, by_flow
from shardtui.engine.explain.step import explain_step, explained
from shardtui.engine.models.task import Task
from shardtui.engine.program.program import Program
from shardtui.engine.spec.config import TrainingConfig
from shardtui.tui.state.explanation_diff import numbered

from ..conftest import WIDE, tiny_config
from ..program.test_inspection import ACTIVATIONS

Explained = Callable[[str], Explanation]
PRESETS = (*(pytest.param(name, marks=pytest.mark.core) for name in ("dp", "pitfall-same-axis")), "fsdp-tp2")
SPLIT_SEQUENCE, *OTHERS = (pytest.param(name, marks=pytest.mark.slow) for name in ("dp-sp2", "tp", "fsdp", "fsdp-1d"))


@pytest.fixture(scope="module")
def of(task: Task, programs: dict[str, Program]) -> Explained:
    """The explanation of a preset's step."""
    return cache(lambda name: explained(programs[name].placement))


def ends(value: ValueOrigin) -> dict[str, str]:
    return {link.axis: link.what for link in value.origin if link.kind != "conflict" and link.axis}


@pytest.mark.parametrize("preset", [*PRESETS, SPLIT_SEQUENCE])
def test_each_value_ends_at_a_rule_and_each_collective_says_why(
    of: Explained, programs: dict[str, Program], preset: str
) -> None:
    explanation = of(preset)
    named = {value.name: value for value in explanation.values}
    wanted = ACTIVATIONS | {name for name in named if name.startswith(("grad.", "mu.", "token.", "position."))}
    assert wanted <= set(named)
    for name in wanted:
        split = [axis for axes in named[name].axes for axis in axes]
        assert set(split) == set(ends(named[name])), name
        assert all("rule " in what for what in ends(named[name]).values()), (name, ends(named[name]))
    for name in (*ACTIVATIONS, "token.embedding", "mu.token.embedding", "batch.inputs"):
        reasons = {link.dim: link.what for link in named[name].origin if not link.axis}
        assert set(reasons) == {dim for dim, axes in enumerate(named[name].axes) if not axes}, name
        assert all(f" {name}: " in what for what in reasons.values()), reasons
    known = numbered(explanation.values)
    led = [(label, link) for label, value in known.items() for link in value.origin if link.value]
    assert led
    assert {link.value for _, link in led} <= set(known)
    assert all(link.value != label for label, link in led if link.kind != "conflict")
    assert explanation.collectives
    assert all(each.because and each.source and each.count for each in explanation.collectives)
    layouts = {value.name: value.axes for value in explanation.values}
    for array in programs[preset].description.arrays:
        assert layouts[array.name] == array.compiled_spec, array.name


@pytest.mark.parametrize("preset", [*PRESETS, *OTHERS])
def test_traffic_is_that_of_the_compiled_step(of: Explained, programs: dict[str, Program], preset: str) -> None:
    compiled = by_flow(programs[preset].description.collectives or ())
    estimated = by_flow(of(preset).collectives)
    assert compiled
    for flow in {*compiled, *estimated}:
        assert estimated.get(flow, 0) == pytest.approx(compiled.get(flow, 0), rel=0.01, abs=100), flow


def test_weights_on_the_axis_of_the_batch_are_gathered_by_the_rule_at_fault(of: Explained) -> None:
    reasons = [text for each in of("pitfall-same-axis").collectives for text in each.because]
    assert any("rule batch → " in text for text in reasons)


@pytest.mark.parametrize(
    ("preset", "axes"),
    [("fsdp-tp2", [["fsdp"], [], ["model"]]), pytest.param("dp-sp2", [["data"], ["seq"], []], marks=pytest.mark.slow)],
)
def test_the_step_of_a_run_on_tpu_is_explained_on_simulated_devices(preset: str, axes: list[list[str]]) -> None:
    """With the TPU's attention kernel, or ring attention, and its dtype, while another process holds the TPU."""
    model = msgspec.structs.replace(WIDE, embed=512, heads=4, context=512)
    training = TrainingConfig(batch_size=16, seq_len=512)
    config = tiny_config(model=model, training=training, preset=preset, platform="tpu", devices=8)
    (found,) = explain_step(StepRequest(config=config, is_simulated=True))
    hidden = next(value for value in found.values if value.name == "blocks.mlp.hidden")
    assert (hidden.dtype, hidden.axes) == ("bf16", axes)
    assert {axis for dim in axes for axis in dim} == set(ends(hidden))
    assert all("rule " in what for what in ends(hidden).values())
