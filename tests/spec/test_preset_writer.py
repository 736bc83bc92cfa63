"""A preset written to a file is read back the same; a write is atomic."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.preset import SPLIT_ONCE, Override, Preset
from shardtui.engine.spec.preset_reader import REST, load_presets, parse_preset, read_preset
from shardtui.engine.spec.preset_writer import preset_text, write_preset

TEXT = st.text(st.characters(exclude_categories=("Cs",)))


@st.composite
def presets(draw: st.DrawFn) -> Preset:
    name = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
    names = draw(st.lists(name, min_size=1, max_size=4, unique=True))
    mesh = {name: draw(st.integers(1, 64)) for name in names}
    if draw(st.booleans()):
        mesh[names[0]] = REST
    axes = st.lists(st.sampled_from(names), unique=True).map(tuple)

    def override() -> Override:
        free, spec = draw(st.permutations(names)), []
        for count in draw(st.lists(st.integers(0, 2), max_size=4)):
            spec.append(tuple(free[:count]))
            free = free[count:]
        return Override(tuple(spec), draw(st.integers(0, 2**40)))

    rules = {
        logical: (draw(axes),) if logical in SPLIT_ONCE else tuple(draw(st.lists(axes, min_size=1, max_size=4)))
        for logical in draw(st.sets(TEXT, max_size=4))
    }
    overrides = {glob: override() for glob in draw(st.sets(TEXT, max_size=3))}
    return Preset("any", draw(TEXT), draw(TEXT), mesh, rules, overrides, "")


@given(presets())
def test_a_written_preset_is_read_back_the_same(tmp_path: Path, preset: Preset) -> None:
    path = tmp_path / "any.toml"
    write_preset(path, preset_text(preset))
    found = read_preset(path)
    assert found == msgspec.structs.replace(preset, source=str(path))
    assert list(found.mesh) == list(preset.mesh), "the order of the axes"
    assert found == parse_preset(path, preset_text(preset))


def test_built_in_presets_are_read_back_the_same_and_files_read_like_ones_by_hand(home: Path) -> None:
    known, _ = load_presets(Path(__file__).parents[2] / "docs" / "examples")
    assert any(preset.pipeline_repeats > 1 for preset in known)
    for preset in known:
        again = parse_preset(Path(f"{preset.name}.toml"), preset_text(preset))
        assert again == msgspec.structs.replace(preset, source=f"{preset.name}.toml")
    override = Override(((), ("data", "model")), 1024)
    rules = {"embed": (("data", "model"),), "mlp": ((),), "heads": (("model",),)}
    text = preset_text(Preset("p", 'a "b"', "", {"data": REST, "model": 2}, rules, {"*.kernel": override}, ""))
    assert text == (
        'summary = "a \\"b\\""\n\n[mesh]\ndata = -1\nmodel = 2\n\n'
        '[rules]\nembed = ["data", "model"]\nmlp = ""\nheads = "model"\n\n'
        '[overrides]\n"*.kernel" = { spec = ["", ["data", "model"]], min_size = 1024 }\n'
    )


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").mkdir()
    with pytest.raises(UserError, match=r"p\.toml: cannot be written: Is a directory"):
        write_preset(tmp_path / "p.toml", "[mesh]\n")
    assert [path.name for path in tmp_path.iterdir()] == ["p.toml"]
