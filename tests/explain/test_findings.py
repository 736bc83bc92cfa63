"""Each lint code, and each pitfall: the chains of its findings end at the rule at fault."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import msgspec
import pytest
from shardtui.engine.explain.explanation import Explanation
from shardtui.engine.explain.step import explained
from shardtui.engine.hlo.finding import RULES
from shardtui.engine.hlo.lint import Finding, lint
from shardtui.engine.models.task import Task
from shardtui.engine.program.inspection import inspect_program
from shardtui.engine.program.placement import Placement, place
from shardtui.engine.program.program import Program, compile_program
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.wire.descriptions import ArrayInfo, RematerializationInfo
from shardtui.engine.wire.events import PresetCompiled, PresetInspected
from shardtui.tui.state import finding_origins

from ..conftest import BATCHES, WIDE, tiny_config


class Described(NamedTuple):
    """A compiled step with its explanation."""

    compiled: PresetCompiled
    inspected: PresetInspected | None
    flops: float
    explanation: Explanation

    def findings(self, code: str) -> list[Finding]:
        return [each for each in lint(self.compiled, self.inspected, self.flops) if each.code == code]

    def ends(self, code: str) -> list[list[str]]:
        """Where the chains of each finding of a code end."""
        arrays = [*self.compiled.arrays, *(self.inspected.arrays if self.inspected else ())]
        return [ends(each, self.explanation, arrays) for each in self.findings(code)]


def ends(finding: Finding, explanation: Explanation, arrays: Sequence[ArrayInfo]) -> list[str]:
    return finding_origins.ends(finding, finding_origins.evidence(finding, explanation, arrays), explanation)


BuiltIn = Callable[[str], Described]


@pytest.fixture(scope="module")
def built_in(task: Task, programs: dict[str, Program]) -> BuiltIn:
    """Without an inspection, which only the checks of activations need."""

    @cache
    def described(name: str) -> Described:
        program = programs[name]
        return Described(program.description, None, task.flops_per_step, explained(task, program.placement))

    return described


@pytest.fixture(scope="module")
def split(task: Task, programs: dict[str, Program], inspected: dict[str, PresetInspected]) -> Described:
    """`fsdp-tp2`, inspected."""
    program = programs["fsdp-tp2"]
    found = explained(task, program.placement)
    return Described(program.description, inspected[program.name], task.flops_per_step, found)


def planted(path: Path, preset: str, is_inspected: bool = False, **changes: int) -> Described:
    """Compiles and explains a preset for a model with changed sizes."""
    (path / "planted.toml").write_text(preset)
    task = Task(tiny_config(model=msgspec.structs.replace(WIDE, **changes), training=BATCHES), "cpu")
    placement: Placement = place(task, read_preset(path / "planted.toml"), jax.devices())
    compiled = compile_program(task, placement).description
    inspected = inspect_program(task, placement) if is_inspected else None
    return Described(compiled, inspected, task.flops_per_step, explained(task, placement))


@pytest.mark.core
def test_a_replicated_parameter_lacks_a_rule(tmp_path: Path) -> None:
    rules = 'batch = "data"\nheads = "model"\nmlp = "model"\n'
    found = planted(tmp_path, f"[mesh]\ndata = 4\nmodel = 2\n[rules]\n{rules}", vocab_rows=8192)
    ((first, *_),) = found.ends("S101")
    assert first == "argument token.embedding: vocab: no rule: unsharded"


def test_replicated_moments_end_at_their_overrides(built_in: BuiltIn) -> None:
    (found,) = built_in("pitfall-replicated-moments").ends("S102")
    assert [text.partition("override ")[2][:6] for text in found] == ['"mu.*"', '"nu.*"']


@pytest.mark.core
def test_a_dim_that_does_not_divide_ends_at_its_rule(tmp_path: Path) -> None:
    preset = '[mesh]\ndata = 1\nmodel = -1\n[rules]\nmlp = "model"\nactivation_embed = "model"\n'
    found = planted(tmp_path, preset, is_inspected=True, embed=132, heads=4).ends("S103")
    assert found
    assert all(
        any("rule → model (8): activation_embed 132 does not divide by 8" in end for end in each) for each in found
    )


@pytest.mark.slow
def test_an_idle_axis_ends_at_the_rule_of_the_batch(tmp_path: Path, built_in: BuiltIn) -> None:
    ((first, *_),) = built_in("pitfall-same-axis").ends("S104")
    assert first == "argument batch.inputs: rule batch → model"
    ((first, *_),) = planted(tmp_path, '[mesh]\ndata = 4\nspare = 2\n[rules]\nbatch = "data"\n').ends("S104")
    assert first == "argument batch.inputs: rule batch → data"


@pytest.mark.slow
def test_redundant_compute_ends_at_the_rule_at_fault(built_in: BuiltIn, tmp_path: Path) -> None:
    preset = '[mesh]\ndata = 4\nmodel = 2\n[rules]\nbatch = "data"\n'
    (found,) = planted(tmp_path, preset, is_inspected=True).ends("S105")
    assert "argument blocks.mlp.down.kernel: mlp: no rule: unsharded" in found
    assert not any("layers: no rule" in end or "embed: no rule" in end for end in found)
    (found,) = built_in("pitfall-same-axis").ends("S105")
    assert any("rule batch → model" in end for end in found)
    (found,) = built_in("pitfall-first-dim").ends("S105")
    assert any('override "*.kernel" → model' in end for end in found)


def test_gathered_parameters_end_at_their_override(built_in: BuiltIn) -> None:
    pitfall = built_in("pitfall-first-dim")
    found = dict(zip((each.arrays[0] for each in pitfall.findings("S106")), pitfall.ends("S106"), strict=True))
    assert len(found) == 4
    for name, (first, *_) in found.items():
        assert first.startswith(f'argument {name}: override "*.kernel" → model (2): ')


def test_a_rematerialization_ends_at_the_rules_of_its_arrays(split: Described) -> None:
    assert split.inspected
    warned = RematerializationInfo(
        operation="%dot.7 = f32[2,128,512]{2,1,0} dot",
        shape=[16, 128, 512],
        from_sharding="{devices=[4,1,2]<=[8]}",
        to_sharding="{devices=[2,1,4]<=[8]}",
        op_name="jit(train_step)/mlp/dot_general",
        source="",
    )
    inspected = msgspec.structs.replace(split.inspected, rematerializations=[warned])
    (found,) = split._replace(inspected=inspected).ends("S107")
    assert {end.partition(": ")[2].partition(" (")[0] for end in found} >= {"rule batch → fsdp", "rule mlp → model"}


def test_another_layout_ends_at_the_rules_that_asked_for_it(split: Described) -> None:
    assert split.inspected
    gradient = next(array for array in split.inspected.arrays if array.name == "grad.blocks.mlp.up.kernel")
    replicated = msgspec.structs.replace(gradient, compiled_spec=[[], [], []])
    arrays = [replicated if array is gradient else array for array in split.inspected.arrays]
    inspected = msgspec.structs.replace(split.inspected, arrays=arrays)
    ((first, *_),) = split._replace(inspected=inspected).ends("S108")
    assert "constraint of grad.blocks.mlp.up.kernel to (–, fsdp, model): rule embed → fsdp" in first


def test_traffic_ends_at_the_rule_of_its_axis(built_in: BuiltIn) -> None:
    (found,) = built_in("dp")._replace(flops=1.0).ends("S109")
    assert found
    assert any("rule batch → data" in end for end in found)


def test_rules_without_dims_end_at_the_dims_of_the_parameters(built_in: BuiltIn) -> None:
    described = built_in("dp")
    compiled = msgspec.structs.replace(described.compiled, unused_rules=["embed", "mlp"])
    (found,) = described._replace(compiled=compiled).ends("S110")
    assert found
    assert all(end.endswith("no rule: unsharded") for end in found)


def test_every_code_has_a_test() -> None:
    """But the one about several TPU slices, which no devices here are: test_lint.py."""
    text = Path(__file__).read_text()
    codes = {code for code, (name, _) in RULES.items() if name != "layers-over-dcn"}
    assert {code for code in codes if f'"{code}"' not in text} == set()
