"""Rules with alternatives, of which the first that fits is used; and rules of MaxText's form."""

from pathlib import Path

import jax
import msgspec
import pytest
import yaml
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.parallel.rules import by_rules, flax_rules
from shardtui.engine.program.inspection import inspect_program
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_program
from shardtui.engine.spec.maxtext_rules import maxtext_text, read_maxtext
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_reader import load_preset, load_presets, parse_preset
from shardtui.tui.cli.main import main
from shardtui.tui.state.draft import Draft

from ..conftest import tiny_config, tiny_model

MESH = """
[mesh]
fsdp = 4
model = 2
[rules]
batch = "fsdp"
embed = "fsdp"
heads = "model"
"""


def preset(rules: str, head: str = "") -> Preset:
    return parse_preset(Path("p.toml"), head + MESH + rules)


def test_the_first_alternative_that_divides_and_is_free_is_used() -> None:
    mesh = {"fsdp": 4, "model": 2}
    rules = {"embed": (("fsdp",),), "mlp": (("fsdp",), ("fsdp", "model"), ("model",), ())}
    kernel, bias, odd = (
        by_rules(shape, axes, rules, mesh).dims
        for shape, axes in (((8, 16), ("embed", "mlp")), ((16,), ("mlp",)), ((8, 15), ("embed", "mlp")))
    )
    assert [dim.axes for dim in kernel] == [("fsdp",), ("model",)]
    assert kernel[1].reason == (
        "mlp: alternative 3 of 4 → model (2): 16 ÷ 2 = 8; passed over fsdp (fsdp splits another dim); "
        "passed over fsdp+model (fsdp splits another dim)"
    )
    assert bias[0].reason == "mlp: alternative 1 of 4 → fsdp (4): 16 ÷ 4 = 4"
    assert odd[1].axes == ()
    assert odd[1].reason.endswith("passed over model (15 does not divide by 2)")
    assert odd[1].problem is None


def test_a_dim_that_no_alternative_fits_is_a_problem_and_explicit_axis_types_take_none() -> None:
    task = Task(tiny_config(model=tiny_model(mlp=63)), "cpu")
    with pytest.raises(UserError, match=r"mlp 63: no alternative fits: model \(63 does not divide by 2\); .*add \[\]"):
        place(task, preset('mlp = [["model"], ["fsdp", "model"]]'), jax.devices())
    assert place(task, preset('mlp = [["model"], []]'), jax.devices())
    with pytest.raises(UserError, match="explicit axis types take no alternatives"):
        place(task, preset('mlp = [["model"], []]', 'axis_types = "explicit"'), jax.devices())
    rules = flax_rules(preset('mlp = [["model"], ["fsdp", "model"], []]'), set())
    assert [axes for name, axes in rules if name == "mlp"] == ["model", ("fsdp", "model"), None]


def test_alternatives_that_cannot_be_are_refused() -> None:
    for rules, problem in (
        ('mlp = ["model", ["fsdp"]]', "[rules] mlp: axes and lists are mixed"),
        ('seq = [["model"], []]', "[rules] seq: 2 alternatives, but the whole step splits seq in one way"),
        ('mlp = [["model"], ["tensor"]]', "[rules] mlp: no mesh axis 'tensor'"),
    ):
        assert problem in "\n".join(preset(rules).problems)


@pytest.mark.core
def test_activations_and_moments_take_the_same_alternative() -> None:
    task = Task(tiny_config(model=tiny_model(mlp=65, layers=1)), "cpu")
    placement = place(task, preset('mlp = [["model"], []]'), jax.devices())
    arrays = {array.name: array for array in compile_program(placement).description.arrays}
    for name in ("blocks.mlp.up.kernel", "mu.blocks.mlp.up.kernel"):
        assert arrays[name].compiled_spec == [[], ["fsdp"], []]
        assert "passed over model (65 does not divide by 2)" in arrays[name].reasons[2]
    activations = {array.name: array for array in inspect_program(placement).arrays}
    assert "passed over model" in activations["blocks.mlp.hidden"].reasons[2]


def test_an_edited_rule_has_no_alternatives_and_the_others_keep_theirs() -> None:
    origin = preset('mlp = [["model"], []]\nvocab = [["model"], ["fsdp"]]')
    draft = Draft(origin, origin, 8, frozenset())
    assert draft.rule_words("mlp") == "model, else unsharded"
    edited = draft.with_rule("mlp", ("fsdp",))
    assert edited.edits == ["mlp = fsdp"]
    assert edited.preset.with_alternatives == {"vocab": (("model",), ("fsdp",))}
    without = draft.without_axis("model")
    assert without.problems() == []
    assert without.preset.rules.keys() == {"batch", "embed"}
    rest = draft.with_rule("mlp", ("fsdp", "model"), ("model",), ()).without_axis("model").preset
    assert rest.rules["mlp"] == (("fsdp",), ())


RULES = """
model_name: small
mesh_axes: ['data', 'stage', 'fsdp', 'tensor']
logical_axis_rules: [
  ['activation_batch', ['data', 'fsdp']],
  ['activation_norm_length', ['tensor']],
  ['cache_heads', ['tensor']],
  ['embed', ['fsdp', 'tensor']],
  ['embed', ['fsdp']],
  ['heads', ['tensor']],
  ['mlp', 'tensor'],
  ['mlp', []],
  ['kv', null],
  ['layers', 'stage'],
]
dcn_data_parallelism: -1
ici_data_parallelism: 1
ici_pipeline_parallelism: 1
ici_fsdp_parallelism: -1
ici_tensor_parallelism: 2
"""


def test_rules_become_a_preset_that_fits_and_is_exported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rules := home / "small.yml").write_text(RULES)
    assert main(["presets", "import", str(rules)]) == 0
    preset = load_preset("small")
    assert preset in load_presets()[0]
    assert preset.mesh == {"fsdp": -1, "tensor": 2}
    assert preset.rules == {
        "batch": (("fsdp",),),
        "embed": (("fsdp", "tensor"), ("fsdp",), ()),
        "heads": (("tensor",), ()),
        "mlp": (("tensor",), ()),
    }
    assert place(Task(tiny_config(), "cpu"), preset, jax.devices())
    printed = capsys.readouterr()
    assert printed.out.strip() == preset.source
    assert "2 mesh axes of size 1, left out: data, stage" in printed.err
    assert "1 rules of what no built-in model has, left out: cache_heads" in printed.err
    assert "1 rules that differ here: activation_norm_length like activation_length" in printed.err
    assert main(["presets", "import", str(rules)]) == 2, "it exists"
    assert main(["presets", "export", "pitfall-replicated-moments"]) == 2
    assert "[overrides]: MaxText's rules are by logical axis only" in capsys.readouterr().err
    assert main(["presets", "export", "dp-tp2"]) == 0
    assert '["activation_batch", ["data"]]' in capsys.readouterr().out
    found = read_maxtext(rules, "any", {"data": 2, "stage": 2})
    assert found.preset.sizes(16) == {"data": 2, "stage": 2, "fsdp": 2, "tensor": 2}
    assert found.preset.stage_axes == ("stage",)
    with pytest.raises(UserError, match=r"--mesh model: not an axis of .*: choose from data, stage, fsdp, tensor"):
        read_maxtext(rules, "any", {"model": 2})
    for name in ("small", "fsdp-tp2", "hsdp", "dp-tp2-pp2"):
        path = home / f"{name}-out.yml"
        path.write_text(maxtext_text(load_preset(name)))
        assert yaml.safe_load(path.read_text())["mesh_axes"] == list(load_preset(name).mesh)
        again, preset = read_maxtext(path, name, {}).preset, load_preset(name)
        about = {"summary": "", "teaches": "", "source": ""}
        assert msgspec.structs.replace(again, **about) == msgspec.structs.replace(preset, **about)


ATTENTION_ON_EXPERT = """
mesh_axes: ['data', 'fsdp', 'expert']
logical_axis_rules: [
  ['activation_batch', ['data', 'fsdp', 'expert']],
  ['activation_mlp', []],
  ['vocab', []],
  ['embed_vocab', ['fsdp']],
  ['embed_attn', ['expert']],
  ['heads', []],
  ['kv_heads', []],
  ['exp', 'expert'],
  ['embed_moe', ['fsdp']],
  ['mlp_moe', []],
  ['embed_router', ['expert']],
  ['mlp', []],
  ['embed', ['fsdp']],
]
"""


def test_rules_of_some_parameters_are_theirs_alone(tmp_path: Path, home: Path) -> None:
    """AI-Hypercomputer/maxtext#5020: attention and routers over `expert`, all other weights over `fsdp`."""
    (path := tmp_path / "a.yml").write_text(ATTENTION_ON_EXPERT)
    found = read_maxtext(path, "a", {"data": 2, "fsdp": 2, "expert": 2})
    assert (found.left_out, found.differing, found.unused_axes) == ([], [], [])
    assert set(found.preset.rules) == {"batch", "experts", "embed", "embed_attn", "embed_router"}
    model = tiny_model(experts=4, heads=4, kv_heads=2)
    placement = place(Task(tiny_config(model=model), "cpu"), found.preset, jax.devices())
    splits = {
        jax.tree_util.keystr(name, simple=True, separator="."): [axis for dim in decision.dims for axis in dim.axes]
        for name, decision in jax.tree_util.tree_leaves_with_path(placement.state.params)
    }
    assert {name: axes for name, axes in splits.items() if "kernel" in name or "embedding" in name} == {
        "blocks.attention.kv.kernel": ["expert"],
        "blocks.attention.out.kernel": ["expert"],
        "blocks.attention.query.kernel": ["expert"],
        "blocks.mlp.experts.down.kernel": ["expert", "fsdp"],
        "blocks.mlp.router.kernel": ["expert"],
        "blocks.mlp.experts.up.kernel": ["expert", "fsdp"],
        "position.embedding": ["fsdp"],
        "token.embedding": ["fsdp"],
    }
    path.write_text(maxtext_text(found.preset))
    again = read_maxtext(path, "a", {})
    assert (again.preset, again.left_out, again.differing) == (found.preset, [], [])
    path.write_text(ATTENTION_ON_EXPERT.replace("['heads', []]", "['q_heads', ['fsdp']], ['heads', []]"))
    with pytest.raises(UserError, match="q_heads is split otherwise than heads: give both the same axes"):
        read_maxtext(path, "a", {"fsdp": 4, "expert": 2})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mesh_axes: [", "not valid YAML"),
        ("- 1", "no mesh_axes and logical_axis_rules"),
        ("mesh_axes: ['data']", "logical_axis_rules"),
        ("mesh_axes: []\nlogical_axis_rules: []", "mesh_axes is empty"),
        ("mesh_axes: ['data']\nlogical_axis_rules: [['embed', 3]]", "logical_axis_rules"),
        ("mesh_axes: ['data']\nlogical_axis_rules: []\nici_data_parallelism: many", "must be whole numbers"),
    ],
)
def test_bad_files_leave_nothing(text: str, problem: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "bad.yml").write_text(text)
    assert main(["presets", "import", str(home / "bad.yml")]) == 2
    assert problem in capsys.readouterr().err
    assert not list(home.glob("config/**/*.toml"))
