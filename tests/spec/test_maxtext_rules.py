"""Rules of MaxText's form become presets, and presets such rules."""

from pathlib import Path

import jax
import msgspec
import pytest
import yaml
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.maxtext_rules import maxtext_text, read_maxtext
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.tui.cli.main import main

from ..conftest import tiny_config

RULES = """
model_name: small
mesh_axes: ['data', 'stage', 'fsdp', 'tensor']
logical_axis_rules: [
  ['activation_batch', ['data', 'fsdp']],
  ['activation_norm_length', ['tensor']],  # nothing here has this name
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


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "small.yml"
    path.write_text(RULES)
    return path


def test_rules_become_a_preset_that_fits(rules: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "import", str(rules)]) == 0
    preset = load_preset("small")
    assert preset.mesh == {"fsdp": -1, "tensor": 2}
    assert preset.rules == {"batch": ("fsdp",), "embed": ("fsdp", "tensor"), "heads": ("tensor",), "mlp": ("tensor",)}
    assert preset.alternatives == {"embed": (("fsdp",), ()), "heads": ((),), "mlp": ((),)}
    assert place(Task(tiny_config(), "cpu"), preset, jax.devices())
    printed = capsys.readouterr()
    assert printed.out.strip() == preset.source
    assert "2 mesh axes of size 1, left out: data, stage" in printed.err
    assert "1 rules that no built-in model uses, left out: activation_norm_length" in printed.err
    assert main(["presets", "import", str(rules)]) == 2, "it exists"


def test_sizes_may_be_given(rules: Path) -> None:
    found = read_maxtext(rules, "any", {"data": 2, "stage": 2})
    assert found.preset.sizes(16) == {"data": 2, "stage": 2, "fsdp": 2, "tensor": 2}
    assert found.preset.stage_axes == ("stage",)
    with pytest.raises(UserError, match=r"--mesh model: not an axis of .*: choose from data, stage, fsdp, tensor"):
        read_maxtext(rules, "any", {"model": 2})


def test_an_exported_preset_is_imported_the_same(tmp_path: Path, home: Path, rules: Path) -> None:
    main(["presets", "import", str(rules)])
    for name in ("small", "fsdp-tp2", "hsdp", "dp-tp2-pp2"):
        path = tmp_path / f"{name}-out.yml"
        path.write_text(maxtext_text(load_preset(name)))
        assert yaml.safe_load(path.read_text())["mesh_axes"] == list(load_preset(name).mesh)
        again, preset = read_maxtext(path, name, {}).preset, load_preset(name)
        about = {"summary": "", "teaches": "", "source": ""}
        assert msgspec.structs.replace(again, **about) == msgspec.structs.replace(preset, **about)


def test_what_cannot_be_exported_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "export", "pitfall-replicated-moments"]) == 2
    assert "[overrides]: MaxText's rules are by logical axis only" in capsys.readouterr().err
    assert main(["presets", "export", "dp-tp2"]) == 0
    assert '["activation_batch", ["data"]]' in capsys.readouterr().out


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
