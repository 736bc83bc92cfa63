"""Parallelism presets: the built-in ones fit eight devices; an invalid one is rejected with every problem."""

from pathlib import Path

import jax
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_files import preset_files
from shardtui.engine.spec.preset_reader import load_preset, load_presets, read_preset

from ..conftest import tiny_config, tiny_model
from ..programs import OF_EXPERTS


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems(path: Path, text: str) -> str:
    try:
        return "\n".join(read_preset(write(path, text)).problems)
    except UserError as error:
        return "\n".join(error.problems)


def test_all_built_in_presets_fit_eight_devices(home: Path) -> None:
    presets, bad = load_presets()
    assert bad == []
    dense, mixture = (Task(tiny_config(model=tiny_model(experts=experts)), "cpu") for experts in (0, 8))
    for preset in presets:
        assert preset.teaches
        fitting, other = (mixture, dense) if preset.name in OF_EXPERTS else (dense, mixture)
        assert place(fitting, preset, jax.devices())
        if preset.name not in OF_EXPERTS and not preset.stage_axes:
            assert place(other, preset, jax.devices())
            continue
        with pytest.raises(UserError) as error:
            place(other, preset, jax.devices())
        assert error.value.problems == (
            f"{preset.name}: [rules] layers: blocks with experts cannot be pipeline stages: use a dense model"
            if preset.stage_axes
            else f"{preset.name}: [rules] experts: this model has no experts: try --model nano-moe or --set experts=8",
        )


def test_every_problem_of_a_file_is_reported_at_once(tmp_path: Path) -> None:
    text = problems(
        tmp_path / "bad.toml",
        'colour = 1\n[mesh]\ndata = -1\nmodel = 0\n[rules]\nmlp = "modle"\nheads = ["data", "data"]\n'
        '[overrides]\n"*.kernel" = ["expert"]\n"a" = { spec = ["data"], size = 3 }\n"b" = 3\n',
    )
    for place_and_fix in (
        "colour: unknown key: the keys are",
        "[mesh] model = 0: a size must be 1 or more, or -1",
        "[rules] mlp: no mesh axis 'modle': the mesh has data, model",
        "[rules] heads: mesh axis 'data' is named twice",
        "[overrides] \"*.kernel\": no mesh axis 'expert'",
        "unknown field `size`",
        '[overrides] "b": Expected',
    ):
        assert place_and_fix in text
    assert text.count(str(tmp_path / "bad.toml")) == 7


def test_invalid_files_are_rejected(tmp_path: Path) -> None:
    for text, says in (
        ("[mesh\n", "not valid TOML"),
        ("[mesh]\ndata = 'all'\n", "Expected `int`"),
        ("[mesh]\n", "[mesh]: no axis"),
        ("summary = 'x'\n", "missing required field `mesh`"),
        ("[mesh]\na = -1\nb = -1\n", "-1 is given more than once"),
        ("[mesh]\n'a b' = -1\n", "an axis name is letters"),
        ("[mesh]\n" + "".join(f"a{n} = 1\n" for n in range(17)), "17 axes: use at most 16"),
        ("[mesh]\ndata = 0x" + "f" * 4000, "[mesh] 'data': a size must be at most 1,000,000"),
        ("[mesh]\ndata = " + "9" * 5000, "not valid TOML: Exceeds the limit"),
        ("#" * (2**20 + 1), "1,048,577 bytes: at most 1,048,576 are read"),
    ):
        assert says in problems(tmp_path / "bad.toml", text)


def test_a_file_with_an_invalid_name_is_reported_and_left_out(home: Path) -> None:
    assert "rename the file" in problems(home / "[red]\x1b[31m.toml", "[mesh]\ndata = -1\n")
    for kind in ("parallelism", "models"):
        write(home / "config/shardtui/presets" / kind / "[red]\x1b[31m.toml", "[mesh]\ndata = -1\n")
        (home / "config/shardtui/presets" / kind / "folder.toml").mkdir()
        assert all("red" not in name and name != "folder" for name in preset_files(kind))
    assert "rename the file" in load_presets()[1][0]


def test_a_mesh_must_fit_the_devices() -> None:
    for mesh, devices, says in (
        ({"data": 3, "model": 2}, 8, "mesh data=3 × model=2 needs 6 devices, 8 found: set data = -1"),
        ({"data": -1, "model": 2}, 7, "needs a multiple of 2 devices, 7 found: use 6 devices"),
        ({"data": -1, "model": 16}, 8, "needs a multiple of 16 devices, 8 found: use 16 devices"),
    ):
        assert says in (Preset("p", "", "", mesh, {}, {}, "").size_problem(devices) or "")
    assert load_preset("dp-tp2").sizes(8) == {"data": 4, "model": 2}


def test_invalid_rules_and_overrides_are_rejected(tmp_path: Path) -> None:
    task = Task(tiny_config(), "cpu")
    for text, says in (
        ('[rules]\nembed = "data"\nmlp = "data"', "data already splits another dim"),
        ('[rules]\nlayers = "data"', "layers 2 does not divide by 8"),
        ('[rules]\nembde = "data"', "embde: no such logical axis"),
        ('[overrides]\n"*.kernal" = ["data"]', "matches no array"),
        ('[overrides]\n"norm.scale" = ["", "data"]', "names 2 dims, the array has 1"),
        ('[overrides]\n"norm.scale" = [["data", "model"]]', "embed 32 does not divide by 64"),
        ('[rules]\nbatch = ["data", "model"]\n[overrides]\n"batch.*" = []', "the step splits: .* batch 8 does not"),
        ('[rules]\nlayers = "data"\n[overrides]\n"*" = []', "the step splits: .* layers 2 does not divide by 8"),
    ):
        preset = read_preset(write(tmp_path / "bad.toml", f"[mesh]\ndata = 8\nmodel = 8\n{text}\n"))
        with pytest.raises(UserError, match=says):
            pytest.fail(f"{text} was taken: {place(task, preset, jax.devices() * 8)}")


def test_problems_of_file_mesh_and_arrays_are_reported_together(tmp_path: Path) -> None:
    rules = 'batch = "data"\nmlp = "modle"\nembed = "model"\nheads = "model"\n'
    text = f"colour = 1\n[mesh]\ndata = 3\nmodel = 2\n[rules]\n{rules}"
    with pytest.raises(UserError) as error:
        place(Task(tiny_config(), "cpu"), read_preset(write(tmp_path / "bad.toml", text)), jax.devices())
    for says in (
        "colour: unknown key",
        "[rules] mlp: no mesh axis 'modle'",
        "mesh data=3 × model=2 needs 6 devices, 8 found",
        "batch 8 does not divide by 3: make it 6 or 9",
        "model already splits another dim",
    ):
        assert says in str(error.value)
    assert len(error.value.problems) == 6  # embed and heads clash in both orders


def test_only_an_override_that_names_the_batch_applies_to_it(task: Task, tmp_path: Path) -> None:
    """`*` matches the state; the batch follows its rule."""
    for glob, spec in (("batch.*", None), ("batch.inputs", None), ("*", "data"), ("*s", "data")):
        text = f'[mesh]\ndata = 8\n[rules]\nbatch = "data"\n[overrides]\n"{glob}" = []\n'
        placement = place(task, read_preset(write(tmp_path / "p.toml", text)), jax.devices())
        assert placement.batch_shardings.inputs.spec[0] == spec, glob
