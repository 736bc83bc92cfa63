"""The step of the built-in model: each chain ends at a rule, and each collective is explained."""

import jax
import pytest
from shardtui.engine.models.task import Task
from shardtui.engine.origins.agreement import by_flow
from shardtui.engine.origins.explanation import Explanation, ValueOrigin
from shardtui.engine.origins.step import explained
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program
from shardtui.engine.spec.preset_reader import load_preset

from ..program.test_inspection import ACTIVATIONS

PRESETS = ("dp", "fsdp-tp2", "dp-sp2", "pitfall-same-axis")


@pytest.fixture(scope="module", params=PRESETS)
def explanation(request: pytest.FixtureRequest, task: Task) -> Explanation:
    return explained(task, place(task, load_preset(request.param), jax.devices()))


def ends(value: ValueOrigin) -> dict[str, str]:
    return {link.axis: link.what for link in value.origin if link.kind != "conflict"}


def test_each_axis_of_a_named_value_ends_at_a_rule(explanation: Explanation) -> None:
    named = {value.name: value for value in explanation.values}
    wanted = ACTIVATIONS | {name for name in named if name.startswith(("grad.", "mu.", "token.", "position."))}
    assert wanted <= set(named)
    for name in wanted:
        split = [axis for axes in named[name].axes for axis in axes]
        assert set(split) == set(ends(named[name])), name
        assert all("rule " in what for what in ends(named[name]).values()), (name, ends(named[name]))


def test_each_collective_says_why(explanation: Explanation) -> None:
    assert explanation.collectives
    for each in explanation.collectives:
        assert each.because, each
        assert each.source, each
        assert each.count


def test_layouts_are_those_of_the_compiled_step(explanation: Explanation, programs: dict[str, Program]) -> None:
    layouts = {value.name: value.axes for value in explanation.values}
    for array in programs[explanation.program].description.arrays:
        assert layouts[array.name] == array.compiled_spec, array.name


@pytest.mark.parametrize("preset", ["dp", "tp", "fsdp", "fsdp-1d", "fsdp-tp2", "pitfall-same-axis"])
def test_traffic_is_that_of_the_compiled_step(task: Task, programs: dict[str, Program], preset: str) -> None:
    found = explained(task, place(task, load_preset(preset), jax.devices()))
    compiled = by_flow(programs[preset].description.collectives or ())
    estimated = by_flow(found.collectives)
    assert compiled
    for flow in {*compiled, *estimated}:
        assert estimated.get(flow, 0) == pytest.approx(compiled.get(flow, 0), rel=0.01, abs=100), flow


def test_weights_that_share_an_axis_with_the_batch_are_gathered_by_the_rule_at_fault(task: Task) -> None:
    found = explained(task, place(task, load_preset("pitfall-same-axis"), jax.devices()))
    reasons = [text for each in found.collectives for text in each.because]
    assert any("rule batch → " in text for text in reasons)
