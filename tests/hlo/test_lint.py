"""Each code finds the fault that is planted for it, and its chain ends at the rule at fault; good presets have none."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import msgspec
import pytest
from shardtui.engine.explain.explanation import Explanation
from shardtui.engine.explain.step import explained
from shardtui.engine.hlo.finding import RULES, Finding, Subject
from shardtui.engine.hlo.lint import lint
from shardtui.engine.hlo.operation_findings import gathered_parameters
from shardtui.engine.models.task import Task
from shardtui.engine.program.inspection import inspect_program
from shardtui.engine.program.placement import Placement, place
from shardtui.engine.program.program import Program, compile_program
from shardtui.engine.spec.config import TrainingConfig
from shardtui.engine.spec.preset_reader import parse_preset
from shardtui.engine.wire.collective import CollectiveInfo
from shardtui.engine.wire.descriptions import RematerializationInfo
from shardtui.engine.wire.events import PresetCompiled, PresetInspected
from shardtui.tui.state import finding_origins

from ..conftest import BATCHES, WIDE, tiny_config
from ..programs import KINDS


class Described(NamedTuple):
    """A compiled step, and the function that explains it, once."""

    compiled: PresetCompiled
    inspected: PresetInspected | None
    flops: float | None
    explanation: Callable[[], Explanation]

    @property
    def findings(self) -> list[Finding]:
        return lint(self.compiled, self.inspected, self.flops)

    def changed(self, **changes: Any) -> "Described":
        return self._replace(compiled=msgspec.structs.replace(self.compiled, **changes))

    def reinspected(self, **changes: Any) -> "Described":
        assert self.inspected
        return self._replace(inspected=msgspec.structs.replace(self.inspected, **changes))

    def ends(self, code: str) -> list[list[str]]:
        """Where the chains of each finding of a code end."""
        arrays = [*self.compiled.arrays, *(self.inspected.arrays if self.inspected else ())]
        found, explanation = [each for each in self.findings if each.code == code], self.explanation()
        evidence = [finding_origins.evidence(each, explanation, arrays) for each in found]
        return [finding_origins.ends(each, of, explanation) for each, of in zip(found, evidence, strict=True)]


BuiltIn = Callable[[str], Described]


def described(task: Task, compiled: PresetCompiled, placement: Placement) -> Described:
    """Without an inspection, which only the checks of activations need."""
    return Described(compiled, None, task.flops_per_step, cache(lambda: explained(placement)))


@pytest.fixture(scope="module")
def not_inspected(task: Task, programs: dict[str, Program]) -> BuiltIn:
    return cache(lambda name: described(task, programs[name].description, programs[name].placement))


@pytest.fixture(scope="module")
def built_in(not_inspected: BuiltIn, inspected: dict[str, PresetInspected]) -> BuiltIn:
    return lambda name: not_inspected(name)._replace(inspected=inspected[name])


def planted(preset: str, is_inspected: bool = False, training: TrainingConfig = BATCHES, **changes: Any) -> Described:
    """Compiles a preset for a model with changed sizes."""
    task = Task(tiny_config(model=msgspec.structs.replace(WIDE, **changes), training=training), "cpu")
    placement = place(task, parse_preset(Path("planted.toml"), preset), jax.devices())
    found = described(task, compile_program(placement).description, placement)
    return found._replace(inspected=inspect_program(placement)) if is_inspected else found


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


@pytest.mark.slow
def test_repeated_products_are_found() -> None:
    (finding,) = planted('[mesh]\ndata = 2\nmodel = 4\n[rules]\nbatch = "data"\nvocab = "model"\n').findings
    factor = (4 * (ATTENTION + MLP) + LOGITS) / (ATTENTION + MLP + LOGITS)
    assert finding.code == "S105"
    assert f"{factor:.2f} times as many: blocks/mlp 4.00 times, blocks/attention 4.00 times" in finding.message
    assert "logits" not in finding.message
    assert re.search(r"(attention|blocks|decoder)\.py:\d+$", finding.source)


@pytest.mark.slow
def test_redundant_compute_ends_at_the_rule_at_fault(not_inspected: BuiltIn) -> None:
    (found,) = planted('[mesh]\ndata = 4\nmodel = 2\n[rules]\nbatch = "data"\n', is_inspected=True).ends("S105")
    assert "argument blocks.mlp.down.kernel: mlp: no rule: unsharded" in found
    assert not any("layers: no rule" in end or "embed: no rule" in end for end in found)
    (found,) = not_inspected("pitfall-same-axis").ends("S105")
    assert any("rule batch → model" in end for end in found)
    (found,) = not_inspected("pitfall-first-dim").ends("S105")
    assert any('override "*.kernel" → model' in end for end in found)


@pytest.mark.core
def test_recomputation_is_not_redundant_and_a_gather_of_a_moment_none_of_a_parameter() -> None:
    found = planted('[mesh]\nfsdp = -1\n[rules]\nbatch = "fsdp"\nembed = "fsdp"\n', remat=True)
    assert found.findings == []
    assert sum(info.flops for info in found.compiled.products) > 1.2 * (found.flops or 0.0)
    # The optimizer gathers when the moments of a tensor parallel model are replicated.
    rules = "".join(f'{axis} = "model"\n' for axis in ("heads", "mlp", "vocab"))
    found = planted(f'[mesh]\nmodel = -1\n[rules]\n{rules}[overrides]\n"mu.*" = []\n')
    assert any(info.kind == "all-gather" for info in found.compiled.collectives or ())
    assert codes(found.findings) == ["S102"]


def test_bytes_of_a_combined_gather_are_divided_by_array(not_inspected: BuiltIn) -> None:
    names = ["blocks.mlp.up.kernel", "blocks.mlp.down.kernel"]
    combined = CollectiveInfo(
        kind="all-gather",
        axes=["model"],
        group_size=2,
        count=2,
        dtype="f32",
        op_name="",
        bytes_each=400,
        bytes_per_device=800,
        shapes=[[60], [40]],
        source="mine.py:3",
        written=False,
        gathered=names,
        multiplied=True,
    )
    step = not_inspected("pitfall-first-dim")
    found = step.changed(collectives=[combined]).findings
    gathered = {finding.arrays[0]: finding.bytes_per_device for finding in found if finding.code == "S106"}
    assert gathered == dict(zip(names, (480, 320), strict=True))
    (array,) = (each for each in step.compiled.arrays if each.name == names[0])
    array = msgspec.structs.replace(array, compiled_spec=[[], ["model"], ["other"]])
    twice = [combined, msgspec.structs.replace(combined, axes=["other"])]
    mesh = msgspec.structs.replace(step.compiled.mesh, axes={"model": 4, "other": 2})
    (both,) = gathered_parameters(
        Subject(step.changed(collectives=twice, arrays=[array], mesh=mesh).compiled, None, None)
    )
    assert (both.axes, both.bytes_per_device) == (["model", "other"], 960)
    assert "all-gathered over model × other, 960 B per" in both.message


@pytest.mark.parametrize("name", slow_but("fsdp-tp2", names=GOOD))
def test_good_presets_have_no_finding(name: str, built_in: BuiltIn) -> None:
    assert built_in(name).findings == []


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_good_presets_have_no_finding_without_an_inspection(name: str, not_inspected: BuiltIn) -> None:
    assert not_inspected(name).findings == []


def test_the_pitfall_of_replicated_moments(not_inspected: BuiltIn) -> None:
    found = not_inspected("pitfall-replicated-moments")
    (finding,) = found.findings
    assert finding.code == "S102"
    split = [array.name for array in found.compiled.arrays if array.kind == "parameter" and any(array.compiled_spec)]
    assert set(finding.arrays) == {f"{moment}.{name}" for moment in ("mu", "nu") for name in split}
    parameters = 2 * 128 * 128 * 3 + 2 * 128 * 128 + 4 * 128 * 512 + 256 * 128 + 128 * 128
    assert finding.bytes_per_device == pytest.approx(2 * 4 * parameters * 7 / 8, rel=0.02)
    (ends,) = found.ends("S102")
    assert [text.partition("override ")[2][:6] for text in ends] == ['"mu.*"', '"nu.*"']


def test_a_moment_is_compared_with_its_own_parameter(not_inspected: BuiltIn) -> None:
    """Not with another one, whose name its own ends in."""
    found = not_inspected("tp")
    whole = next(each for each in found.compiled.arrays if each.kind == "parameter" and not any(each.compiled_spec))
    split = next(each for each in found.compiled.arrays if each.kind == "parameter" and any(each.compiled_spec))
    other = msgspec.structs.replace(split, name=whole.name.rpartition(".")[2])
    assert found.changed(arrays=[other, *found.compiled.arrays]).findings == []


def test_the_pitfall_of_one_axis_for_batch_and_weights(built_in: BuiltIn) -> None:
    idle, redundant = built_in("pitfall-same-axis").findings
    assert (idle.code, redundant.code) == ("S104", "S105")
    assert "nothing is split over data: its 2 devices" in idle.message
    assert redundant.message.endswith(
        "2.00 times as many: blocks/mlp 2.00 times, blocks/attention 2.00 times, logits 2.00 times; heads, mlp, vocab "
        "stay unsharded, since the batch uses their mesh axes"
    )
    assert 'batch = ["model", "data"]' in redundant.fix


def test_the_pitfall_of_the_first_dim(not_inspected: BuiltIn) -> None:
    found = not_inspected("pitfall-first-dim")
    redundant, *gathers = found.findings
    assert codes([redundant, *gathers]) == ["S105", "S106", "S106", "S106", "S106"]
    factors = "1.73 times as many: blocks/mlp 1.67 times, blocks/attention 1.78 times, logits 2.00 times"
    assert factors in redundant.message
    kernels = {"attention.qkv": 3 * 128 * 128, "attention.out": 128 * 128, "mlp.up": 128 * 512, "mlp.down": 512 * 128}
    assert {finding.arrays[0]: finding.bytes_per_device for finding in gathers} == {
        f"blocks.{name}.kernel": 2 * 2 * 4 * size for name, size in kernels.items()
    }, "two layers, forward and backward"
    for finding, (end, *_) in zip(gathers, found.ends("S106"), strict=True):
        assert re.search(r"(attention|blocks|decoder|layers|projection|stack)\.py:\d+$", finding.source)
        assert end.startswith(f'argument {finding.arrays[0]}: override "*.kernel" → model (2): ')


@pytest.mark.slow
def test_a_large_replicated_parameter_lacks_a_rule() -> None:
    preset = '[mesh]\ndata = 4\nmodel = 2\n[rules]\nbatch = "data"\nheads = "model"\nmlp = "model"\n'
    found = planted(preset, vocab_rows=8192)
    finding, repeated = found.findings
    assert (finding.code, finding.arrays, repeated.code) == ("S101", ["token.embedding"], "S105")
    assert "times as many: logits 2.00 times" in repeated.message
    assert finding.bytes_per_device == 8192 * 128 * 4 // 2
    assert 'add the rule vocab = "model"' in finding.fix
    ((end, *_),) = found.ends("S101")
    assert end == "argument token.embedding: vocab: no rule: unsharded"


@pytest.mark.slow
def test_a_dim_that_does_not_divide_ends_at_its_rule() -> None:
    preset = '[mesh]\ndata = 1\nmodel = -1\n[rules]\nmlp = "model"\nactivation_embed = "model"\n'
    found = planted(preset, is_inspected=True, embed=132, heads=4)
    findings = [each for each in found.findings if each.code == "S103"]
    assert {name for finding in findings for name in finding.arrays} > {"embedding", "blocks.mlp.residual", "norm"}
    assert "activation_embed 132 does not divide by 8 (model), so it is unsharded" in findings[0].message
    rule = "rule → model (8): activation_embed 132 does not divide by 8"
    assert all(any(rule in end for end in ends) for ends in found.ends("S103"))


@pytest.mark.slow
def test_an_idle_axis_ends_at_the_rule_of_the_batch(not_inspected: BuiltIn) -> None:
    spare = '[mesh]\ndata = 4\nspare = 2\n[rules]\nbatch = "data"\n'
    for found, axis in ((not_inspected("pitfall-same-axis"), "model"), (planted(spare), "data")):
        ((end, *_),) = found.ends("S104")
        assert end == f"argument batch.inputs: rule batch → {axis}"


@pytest.mark.slow
def test_traffic_over_compute_ends_at_the_rule_of_its_axis(not_inspected: BuiltIn) -> None:
    preset = '[mesh]\ndata = -1\n[rules]\nbatch = "data"\n'
    (finding,) = planted(preset, training=TrainingConfig(batch_size=8, seq_len=1)).findings
    assert finding.code == "S109"
    words = r"data carries 3\.\d+ MB per device and step for 2\.\d+ MFLOP of compute: 0\.\d FLOP per byte"
    assert re.search(words, finding.message)
    (ends,) = not_inspected("dp")._replace(flops=1.0).ends("S109")
    assert any("rule batch → data" in end for end in ends)


def test_a_layout_other_than_intended(built_in: BuiltIn) -> None:
    found = built_in("fsdp-tp2")
    arrays = [
        msgspec.structs.replace(array, compiled_spec=[[], [], []])
        if array.name == "grad.blocks.mlp.up.kernel"
        else array
        for array in (found.inspected.arrays if found.inspected else ())
    ]
    found = found.reinspected(arrays=arrays)
    (finding,) = found.findings
    assert (finding.code, finding.arrays) == ("S108", ["grad.blocks.mlp.up.kernel"])
    assert finding.message.endswith("intended (–, fsdp, model), compiled (–, –, –)")
    ((end, *_),) = found.ends("S108")
    assert "constraint of grad.blocks.mlp.up.kernel to (–, fsdp, model): rule embed → fsdp" in end


def test_an_involuntary_rematerialization_names_arrays_of_its_shape(built_in: BuiltIn) -> None:
    warned = RematerializationInfo(
        operation="%dot.7 = f32[2,128,512]{2,1,0} dot",
        shape=[16, 128, 512],
        from_sharding="{devices=[4,1,2]<=[8]}",
        to_sharding="{devices=[2,1,4]<=[8]}",
        op_name="jit(train_step)/mlp/dot_general",
        source="",
    )
    found = built_in("fsdp-tp2").reinspected(rematerializations=[warned])
    (finding,) = found.findings
    assert (finding.code, finding.arrays) == ("S107", ["blocks.mlp.up", "blocks.mlp.hidden"])
    says = "in jit(train_step)/mlp/dot_general is replicated to reshard it from {devices=[4,1,2]<=[8]}"
    assert says in finding.message
    (ends,) = found.ends("S107")
    assert {end.partition(": ")[2].partition(" (")[0] for end in ends} >= {"rule batch → fsdp", "rule mlp → model"}


def test_rules_for_logical_axes_that_no_parameter_has(not_inspected: BuiltIn) -> None:
    found = not_inspected("dp").changed(unused_rules=["embed", "mlp"])
    (finding,) = found.findings
    assert (finding.code, finding.bytes_per_device) == (
        "S110",
        found.compiled.memory and found.compiled.memory.parameters,
    )
    assert "the preset has rules for embed, mlp, but the model has no such logical axis" in finding.message
    (ends,) = found.ends("S110")
    assert ends and all(end.endswith("no rule: unsharded") for end in ends)
    assert not_inspected("fsdp-tp2").changed(unused_rules=["mlp"]).findings == []


def test_a_tensor_axis_over_dcn(not_inspected: BuiltIn) -> None:
    found = not_inspected("fsdp-tp2")._replace(flops=None)
    infos = found.compiled.collectives or ()
    between = [msgspec.structs.replace(info, network="dcn", group_size=4) for info in infos]
    sent = sum(info.bytes_sent or 0 for info in between if "model" in info.axes)
    (finding,) = [each for each in found.changed(collectives=between).findings if each.code == "S111"]
    assert (finding.axes, finding.dims, finding.bytes_per_device) == (["model"], ["heads", "mlp", "vocab"], sent)
    assert "model is a tensor axis (heads, mlp, vocab) and crosses slices" in finding.message
    assert not [each for each in found.findings if each.code == "S111"]


def test_every_code_has_a_test() -> None:
    """And all but two, which need several TPU slices or a user's program, a test of where its chains end."""
    texts = Path(__file__).read_text() + (Path(__file__).parents[1] / "explain/test_reasons.py").read_text()
    assert {code for code in RULES if f'"{code}"' not in texts} == set()
    assert {code for code in RULES if f'ends("{code}")' not in texts} == {"S111", "S112"}
