"""Each code finds the fault that is planted for it; presets that are not pitfalls have no findings."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import msgspec
import pytest
from shardtui.engine.hlo.lint import RULES, Finding, lint
from shardtui.engine.models.sizes import flops_per_token
from shardtui.engine.models.task import Task
from shardtui.engine.program.inspection import inspect_program
from shardtui.engine.program.placement import Placement, place
from shardtui.engine.program.program import Program, compile_program
from shardtui.engine.spec.config import TrainingConfig
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.wire.descriptions import CollectiveInfo, RematerializationInfo
from shardtui.engine.wire.events import Inspection, PresetCompiled, PresetInspected

from ..conftest import BATCHES, WIDE, tiny_config
from ..programs import KINDS

Described = tuple[PresetCompiled, PresetInspected, float]
OnlyCompiled = tuple[PresetCompiled, None, float]
BuiltIn = Callable[[str], Described]
NotInspected = Callable[[str], OnlyCompiled]
TOTAL = BATCHES.tokens_per_step * flops_per_token(WIDE, BATCHES.seq_len)


@pytest.fixture
def built_in(programs: dict[str, Program], inspected: dict[str, PresetInspected]) -> BuiltIn:
    return lambda name: (programs[name].description, inspected[name], TOTAL)


@pytest.fixture
def not_inspected(programs: dict[str, Program]) -> NotInspected:
    """Without an inspection, which only the checks of activations need."""
    return lambda name: (programs[name].description, None, TOTAL)


def planted(path: Path, preset: str, training: TrainingConfig = BATCHES, **changes: int) -> Described:
    """Compiles and inspects a preset for a model with changed sizes."""
    task, placement = placed(path, preset, training, **changes)
    return compile_program(task, placement).description, inspect_program(task, placement), task.flops_per_step


def only_compiled(path: Path, preset: str, training: TrainingConfig = BATCHES, **changes: Any) -> OnlyCompiled:
    task, placement = placed(path, preset, training, **changes)
    return compile_program(task, placement).description, None, task.flops_per_step


def placed(path: Path, preset: str, training: TrainingConfig, **changes: Any) -> tuple[Task, Placement]:
    (path / "planted.toml").write_text(preset)
    task = Task(tiny_config(model=msgspec.structs.replace(WIDE, **changes), training=training), "cpu")
    return task, place(task, read_preset(path / "planted.toml"), jax.devices())


def codes(found: list[Finding]) -> list[str]:
    return [finding.code for finding in found]


GOOD = [name for name in KINDS if not name.startswith("pitfall")]
REPRESENTATIVE = ("dp", "fsdp-tp2", "fsdp-tp2-explicit", "dp-sp2", "dp-tp2-pp2")
"""One of each kind. Tests of the others are slow."""


ATTENTION, MLP, LOGITS = 2 * (8 * 128**2 + 4 * 128 * 128), 2 * 4 * 128 * 512, 2 * 128 * 256
"""Forward FLOPs of WIDE per token: two layers of weight products and attention scores, and the output layer."""


def slow_but(*fast: str, names: list[str]) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_but(*REPRESENTATIVE, names=KINDS))
def test_products_are_counted_exactly(name: str, programs: dict[str, Program]) -> None:
    """If a preset repeats nothing, each of the 8 devices computes an eighth."""
    products = programs[name].description.products
    needed = {info.scope: info.flops for info in products}
    tokens = 3 * BATCHES.tokens_per_step
    if (pipeline := programs[name].description.pipeline) is None:
        assert needed == {"blocks/attention": tokens * ATTENTION, "blocks/mlp": tokens * MLP, "logits": tokens * LOGITS}
    else:  # stages compute in idle ticks, too
        idle = 1 / (1 - pipeline.bubble)
        assert needed["blocks/mlp"] == pytest.approx(idle * tokens * MLP)
    if name in GOOD:
        assert all(8 * info.flops_per_device == info.flops for info in products)


def test_repeated_products_are_found_although_an_activation_is_split(tmp_path: Path) -> None:
    preset = '[mesh]\ndata = 2\nmodel = 4\n[rules]\nbatch = "data"\nvocab = "model"\n'
    (finding,) = lint(*only_compiled(tmp_path, preset))
    factor = (4 * (ATTENTION + MLP) + LOGITS) / (ATTENTION + MLP + LOGITS)
    assert finding.code == "S105"
    assert f"{factor:.2f} times as many: blocks/mlp 4.00 times, blocks/attention 4.00 times" in finding.message
    assert "logits" not in finding.message
    assert re.search(r"(attention|blocks|decoder)\.py:\d+$", finding.source)


def test_an_unsharded_batch_repeats_all_products_but_the_split_one(tmp_path: Path) -> None:
    (finding,) = lint(*only_compiled(tmp_path, '[mesh]\nmodel = 8\n[rules]\nmlp = "model"\n'))
    factor = (8 * (ATTENTION + LOGITS) + MLP) / (ATTENTION + MLP + LOGITS)
    assert f"{factor:.2f} times as many: blocks/attention 8.00 times, logits 8.00 times" in finding.message
    assert 'batch = "model"' in finding.fix


def test_recomputation_by_remat_is_not_redundant_compute(tmp_path: Path) -> None:
    preset = '[mesh]\nfsdp = -1\n[rules]\nbatch = "fsdp"\nembed = "fsdp"\n'
    compiled, *others = only_compiled(tmp_path, preset, remat=True)
    assert lint(compiled, *others) == []
    needed = sum(info.flops for info in compiled.products)
    assert needed > 1.2 * others[1]


def test_a_gather_of_a_moment_is_not_one_of_a_parameter(tmp_path: Path) -> None:
    """The optimizer gathers when the moments of a tensor parallel model are replicated."""
    rules = "".join(f'{axis} = "model"\n' for axis in ("heads", "mlp", "vocab"))
    preset = f'[mesh]\nmodel = -1\n[rules]\n{rules}[overrides]\n"mu.*" = []\n'
    compiled, *others = only_compiled(tmp_path, preset)
    assert any(info.kind == "all-gather" for info in compiled.collectives or ())
    assert codes(lint(compiled, *others)) == ["S102"]


def test_bytes_of_a_combined_gather_are_divided_by_array(not_inspected: NotInspected) -> None:
    compiled, *others = not_inspected("pitfall-first-dim")
    names = ["blocks.mlp.up.kernel", "blocks.mlp.down.kernel"]
    combined = CollectiveInfo(
        kind="all-gather",
        axes=["model"],
        group_size=2,
        count=2,
        bytes_each=400,
        bytes_per_device=800,
        dtype="f32",
        shapes=[[60], [40]],
        op_name="",
        source="mine.py:3",
        written=False,
        gathered=names,
        multiplied=True,
    )
    found = lint(msgspec.structs.replace(compiled, collectives=[combined]), *others)
    gathered = {finding.arrays[0]: finding.bytes_per_device for finding in found if finding.code == "S106"}
    assert gathered == dict(zip(names, (480, 320), strict=True))


@pytest.mark.parametrize("name", slow_but("fsdp-tp2", names=GOOD))
def test_good_presets_have_no_finding(name: str, built_in: BuiltIn) -> None:
    assert lint(*built_in(name)) == []


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_good_presets_have_no_finding_without_an_inspection(name: str, not_inspected: NotInspected) -> None:
    assert lint(*not_inspected(name)) == []


def test_the_pitfall_of_replicated_moments(not_inspected: NotInspected) -> None:
    compiled, *others = not_inspected("pitfall-replicated-moments")
    (finding,) = lint(compiled, *others)
    assert finding.code == "S102"
    split = [array.name for array in compiled.arrays if array.kind == "parameter" and any(array.compiled_spec)]
    assert set(finding.arrays) == {f"{moment}.{name}" for moment in ("mu", "nu") for name in split}
    parameters = 2 * 128 * 128 * 3 + 2 * 128 * 128 + 4 * 128 * 512 + 256 * 128 + 128 * 128
    assert finding.bytes_per_device == pytest.approx(2 * 4 * parameters * 7 / 8, rel=0.02)


def test_the_pitfall_of_one_axis_for_batch_and_weights(built_in: BuiltIn) -> None:
    idle, redundant = lint(*built_in("pitfall-same-axis"))
    assert (idle.code, redundant.code) == ("S104", "S105")
    assert "nothing is split over data: its 2 devices" in idle.message
    assert redundant.message.endswith(
        "2.00 times as many: blocks/mlp 2.00 times, blocks/attention 2.00 times, logits 2.00 times; heads, mlp, vocab "
        "stay unsharded, since the batch uses their mesh axes"
    )
    assert 'batch = ["model", "data"]' in redundant.fix


def test_the_pitfall_of_the_first_dim(not_inspected: NotInspected) -> None:
    found = lint(*not_inspected("pitfall-first-dim"))
    assert codes(found) == ["S105", "S106", "S106", "S106", "S106"]
    assert (
        "1.73 times as many: blocks/mlp 1.67 times, blocks/attention 1.78 times, logits 2.00 times" in found[0].message
    )
    kernels = {"attention.qkv": 3 * 128 * 128, "attention.out": 128 * 128, "mlp.up": 128 * 512, "mlp.down": 512 * 128}
    assert {finding.arrays[0]: finding.bytes_per_device for finding in found[1:]} == {
        f"blocks.{name}.kernel": 2 * 2 * 4 * size for name, size in kernels.items()
    }, "two layers, forward and backward"
    assert all(
        re.search(r"(attention|blocks|decoder|layers|projection|stack)\.py:\d+$", each.source) for each in found[1:]
    )


def test_a_large_replicated_parameter(tmp_path: Path) -> None:
    preset = '[mesh]\ndata = 4\nmodel = 2\n[rules]\nbatch = "data"\nheads = "model"\nmlp = "model"\n'
    finding, repeated = lint(*only_compiled(tmp_path, preset, vocab_rows=8192))
    assert (finding.code, finding.arrays, repeated.code) == ("S101", ["token.embedding"], "S105")
    assert "times as many: logits 2.00 times" in repeated.message
    assert finding.bytes_per_device == 8192 * 128 * 4 // 2
    assert 'add the rule vocab = "model"' in finding.fix


def test_a_dim_that_does_not_divide(tmp_path: Path) -> None:
    preset = '[mesh]\ndata = 1\nmodel = -1\n[rules]\nmlp = "model"\nactivation_embed = "model"\n'
    found = [f for f in lint(*planted(tmp_path, preset, embed=132, heads=4)) if f.code == "S103"]
    assert {name for finding in found for name in finding.arrays} > {"embedding", "blocks.mlp.residual", "norm"}
    assert "activation_embed 132 does not divide by 8 (model), so it is unsharded" in found[0].message


def test_an_axis_that_splits_nothing(tmp_path: Path) -> None:
    found = lint(*only_compiled(tmp_path, '[mesh]\ndata = 4\nspare = 2\n[rules]\nbatch = "data"\n'))
    assert codes(found) == ["S104", "S105"]
    assert "nothing is split over spare" in found[0].message


def test_traffic_over_compute(tmp_path: Path) -> None:
    preset = '[mesh]\ndata = -1\n[rules]\nbatch = "data"\n'
    found = lint(*only_compiled(tmp_path, preset, TrainingConfig(batch_size=8, seq_len=1)))
    assert codes(found) == ["S109"]
    assert re.search(
        r"data carries 1\.\d+ MB per device and step for 2\.\d+ MFLOP of compute: 1\.\d FLOP per byte", found[0].message
    )


def test_a_layout_other_than_intended(built_in: BuiltIn) -> None:
    compiled, inspected, flops = built_in("fsdp-tp2")
    gradient = next(array for array in inspected.arrays if array.name == "grad.blocks.mlp.up.kernel")
    replicated = msgspec.structs.replace(gradient, compiled_spec=[[], [], []])
    arrays = [replicated if array is gradient else array for array in inspected.arrays]
    (finding,) = lint(compiled, msgspec.structs.replace(inspected, arrays=arrays), flops)
    assert (finding.code, finding.arrays) == ("S108", ["grad.blocks.mlp.up.kernel"])
    assert finding.message.endswith("intended (–, fsdp, model), compiled (–, –, –)")


def test_an_involuntary_rematerialization_names_arrays_of_its_shape(built_in: BuiltIn) -> None:
    compiled, inspected, flops = built_in("fsdp-tp2")
    warned = RematerializationInfo(
        operation="%dot.7 = f32[2,128,512]{2,1,0} dot",
        shape=[16, 128, 512],
        from_sharding="{devices=[4,1,2]<=[8]}",
        to_sharding="{devices=[2,1,4]<=[8]}",
        op_name="jit(train_step)/mlp/dot_general",
        source="",
    )
    (finding,) = lint(compiled, msgspec.structs.replace(inspected, rematerializations=[warned]), flops)
    assert (finding.code, finding.arrays) == ("S107", ["blocks.mlp.up", "blocks.mlp.hidden"])
    assert (
        "in jit(train_step)/mlp/dot_general is replicated to reshard it from {devices=[4,1,2]<=[8]}" in finding.message
    )


def test_rules_for_logical_axes_that_no_parameter_has(not_inspected: NotInspected) -> None:
    compiled, *others = not_inspected("dp")
    unused = msgspec.structs.replace(compiled, unused_rules=["embed", "mlp"])
    (finding,) = lint(unused, *others)
    assert (finding.code, finding.bytes_per_device) == ("S110", compiled.memory and compiled.memory.parameters)
    assert "the preset has rules for embed, mlp, but the model has no such logical axis" in finding.message
    split, *others = not_inspected("fsdp-tp2")
    assert lint(msgspec.structs.replace(split, unused_rules=["mlp"]), *others) == []


def test_a_tensor_axis_over_dcn(not_inspected: NotInspected) -> None:
    compiled, *_ = not_inspected("fsdp-tp2")
    assert compiled.collectives
    between = [msgspec.structs.replace(info, network="dcn") for info in compiled.collectives]
    found = lint(msgspec.structs.replace(compiled, collectives=between), None, None)
    moved = sum(info.bytes_per_device or 0 for info in between if "model" in info.axes)
    (finding,) = [each for each in found if each.code == "S111"]
    assert (finding.axes, finding.dims, finding.bytes_per_device) == (["model"], ["heads", "mlp", "vocab"], moved)
    assert "model is a tensor axis (heads, mlp, vocab) and crosses slices" in finding.message
    assert not [each for each in lint(compiled, None, None) if each.code == "S111"]


def test_every_code_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert {code for code in RULES if f'"{code}"' not in text} == set()


def test_descriptions_survive_the_wire(built_in: BuiltIn) -> None:
    compiled, inspected, flops = built_in("fsdp-tp2")
    sent = Inspection(devices=[], versions={}, flops_per_step=flops, compiled=compiled, inspected=inspected)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Inspection) == sent
