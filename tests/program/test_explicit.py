"""Explicit axis types: the same model, with shardings in the arrays' types."""

from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.models.task import Task
from shardtui.engine.planning.estimate import estimate_row, preview
from shardtui.engine.planning.step_trace import traced_cost
from shardtui.engine.program.placement import describe_preset, place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program, trace_step
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_reader import load_preset, parse_preset
from shardtui.engine.spec.preset_writer import preset_text
from shardtui.engine.wire.commands import PreviewPreset
from shardtui.engine.wire.events import PresetInspected

from ..conftest import BATCHES, WIDE, step, tiny_config, tiny_model
from ..models.families import FAMILIES
from ..preset_checks import train

NAME = "fsdp-tp2-explicit"
DENSE = tiny_config(model=WIDE, training=BATCHES)
MIXTURE = tiny_config(model=msgspec.structs.replace(WIDE, layers=1, experts=8, experts_per_token=2, dropout=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_traced(family: str) -> None:
    task = Task(tiny_config(model=msgspec.structs.replace(FAMILIES[family], remat="minimal_with_context")), "cpu")
    trace_step(place(task, load_preset(NAME), jax.devices()))


@pytest.fixture(scope="module")
def tiny() -> Task:
    return Task(tiny_config(), "cpu")


def explicit(name: str) -> Preset:
    return msgspec.structs.replace(load_preset(name), axis_types="explicit")


def sent(program: Program) -> dict[tuple[str, ...], int | None]:
    return {(flow.kind, *flow.axes): flow.bytes_per_device for flow in flows(program.description.collectives or [])}


def test_types_are_what_jax_prints_and_the_state_is_the_same(task: Task, programs: dict[str, Program]) -> None:
    program = programs[NAME]
    state = step(compile_initial_state(program.placement)(), program, 1)
    arrays = [array for array in program.description.arrays if array.kind != "batch"]
    assert [array.type for array in arrays] == [str(jax.typeof(leaf)) for leaf in jax.tree.leaves(state)]
    types = {array.name: array.type for array in arrays}
    assert types["blocks.mlp.up.kernel"] == f"float32[{WIDE.layers},{WIDE.embed}@fsdp,{WIDE.mlp}@model]"
    assert types["step"] == "int32[]"
    assert not any(array.type for array in programs["fsdp-tp2"].description.arrays)
    states = (compile_initial_state(programs[name].placement)() for name in (NAME, "fsdp-tp2"))
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.slow
def test_activations_and_gradients_have_types(inspected: dict[str, PresetInspected]) -> None:
    types = {array.name: array.type for array in inspected[NAME].arrays}
    assert types["blocks.mlp.hidden"].endswith(f"@fsdp,{BATCHES.seq_len},{WIDE.mlp}@model]")
    assert types["grad.token.embedding"] == f"float32[{WIDE.vocab}@model,{WIDE.embed}@fsdp]"
    assert inspected[NAME].problem is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), [("tp", DENSE), ("dp-sp2", DENSE), ("ep2-tp2", MIXTURE)])
def test_collectives_match_those_of_automatic_types(name: str, config: RunConfig) -> None:
    task = Task(config, "cpu")
    with_explicit, with_auto = (place(task, preset, jax.devices()) for preset in (explicit(name), load_preset(name)))
    assert sent(compile_program(with_explicit)) == sent(compile_program(with_auto))


def test_biases_and_scales_are_gathered_only_once(task: Task, programs: dict[str, Program]) -> None:
    """Under automatic types the compiler gathers some of them again for the backward pass, as it does kernels."""
    gather, with_explicit, with_auto = ("all-gather", "fsdp"), sent(programs[NAME]), sent(programs["fsdp-tp2"])
    assert {flow: size for flow, size in with_explicit.items() if flow != gather} == {
        flow: size for flow, size in with_auto.items() if flow != gather
    }
    cost = traced_cost(task, load_preset(NAME), 8, None, jax.devices())
    traced = {(flow.kind, *flow.axes): flow.bytes_per_device for flow in cost.collectives or ()}
    assert traced[gather] == pytest.approx(with_explicit[gather], rel=0.01)
    assert (with_explicit[gather] or 0) < (with_auto[gather] or 0)


def laid_out(rules: str) -> Preset:
    text = f'axis_types = "explicit"\n[mesh]\ndata = 4\nmodel = 2\n[rules]\n{rules}\n'
    return parse_preset(Path("x.toml"), text)


@pytest.mark.parametrize(
    "rules",
    [
        'batch = "data"\nembed = ["model", "data"]',
        'batch = "data"\nactivation_embed = "model"',
        'batch = "data"\nhead_dim = "model"',
        'batch = "data"\nkeys = "model"',
        pytest.param('batch = "data"\nembed = "model"', marks=pytest.mark.slow),
        pytest.param('heads = "data"\nembed = "model"', marks=pytest.mark.slow),
    ],
)
def test_products_over_sharded_dims_name_their_out_sharding(rules: str, tiny: Task) -> None:
    placement = place(tiny, laid_out(rules), jax.devices())
    assert trace_step(placement).out_info[1]["loss"].shape == ()


@pytest.mark.core
def test_losses_match_automatic_types_if_weights_and_activations_are_sharded_differently(tiny: Task) -> None:
    preset = laid_out('batch = "data"\nembed = "model"\nkeys = "model"')
    compiled = (
        compile_program(place(tiny, msgspec.structs.replace(preset, axis_types=types), jax.devices()))
        for types in ("auto", "explicit")
    )
    losses, others = (train(tiny, program) for program in compiled)
    assert others == pytest.approx(losses, rel=1e-5)


def test_ambiguous_shardings_are_reported_before_compilation() -> None:
    mixture = Task(tiny_config(model=tiny_model(experts=4)), "cpu")
    preset = laid_out('batch = "data"\nkeys = "model"')
    info = describe_preset(mixture, preset, jax.devices())
    (problem,) = info.problems
    assert not info.fits
    assert problem.startswith('x: axis_types = "explicit": experts.py:')
    assert "jnp.cumsum(order, axis=1)" in problem and "ShardingTypeError" in problem
    assert problem.endswith('set axis_types = "auto" to let the compiler decide')
    assert estimate_row(mixture, preset, 8, None).problems == [problem]
    question = PreviewPreset(number=1, preset="x", before=preset_text(preset), after="[mesh]\ndata = -1\n")
    assert next(preview(mixture, jax.devices(), question)).before.problems == [problem]
    automatic = msgspec.structs.replace(preset, axis_types="auto")
    assert describe_preset(mixture, automatic, jax.devices()).fits


def test_stages_and_other_axis_types_are_refused(tiny: Task) -> None:
    with pytest.raises(UserError, match=r"^pp2: \[rules\] layers: explicit axis types cannot split blocks: set"):
        place(tiny, explicit("pp2"), jax.devices())
    with pytest.raises(UserError, match=r"Invalid enum value 'manual' at `\.axis_types`: choose from auto, explicit"):
        parse_preset(Path("x.toml"), 'axis_types = "manual"\n[mesh]\ndata = -1\n')
