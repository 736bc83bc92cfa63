"""The schemas are those of the structs; those of TOML files take what the reader takes.

Tests that run a command hold its output against them, see `schemas.py`.
"""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from shardtui.engine.base.directories import ENGINE
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.model_choice import model_preset
from shardtui.engine.spec.preset import LOGICAL_AXES, Preset
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import parse_preset
from shardtui.engine.spec.preset_writer import preset_text

from .schemas import SCHEMAS, schema, structs
from .spec.test_preset_writer import presets

ROOT = Path(__file__).parent.parent
NAMES = sorted(path.stem for path in SCHEMAS.glob("*.json"))
BUILT_IN = sorted(PRESETS.glob("*/*.toml"))

MODEL = "layers=1\nembed=8\nheads=1\nmlp=8\nvocab=256\nvocab_rows=256\ncontext=8\n"
TRAINING = "[training]\nbatch_size=8\nseq_len=8\n"


def takes(name: str, text: str) -> bool:
    return Draft202012Validator(schema(name)).is_valid(tomllib.loads(text))


def reader_takes(name: str, text: str) -> bool:
    try:
        if name == "model-file":
            return bool(model_preset(tomllib.loads(text), "mine.toml"))
        return not parse_preset(Path("mine.toml"), text).problems
    except UserError:
        return False


def test_they_travel_with_the_package_and_the_page_links_to_each() -> None:
    installed = (ENGINE.parent / "schemas").glob("*.json")
    assert {path.name: path.read_text() for path in installed} == {
        f"{name}.json": (SCHEMAS / f"{name}.json").read_text() for name in NAMES
    }
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(\.\./schemas/([^)]+)\.json\)", page)) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_one_and_says_what_every_field_is(name: str) -> None:
    whole = schema(name)
    Draft202012Validator.check_schema(whole)
    for part in structs(whole):
        assert all(each.get("description") for each in (part, *part["properties"].values())), part


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda path: path.stem)
def test_editors_find_the_schema_of_a_built_in_file_and_take_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = path.parent / text.splitlines()[0].removeprefix("#:schema ")
    assert found.resolve().parent == (PRESETS.parent / "schemas").resolve()
    assert takes(found.stem, text)


def test_a_preset_may_split_every_axis_that_the_built_in_models_have() -> None:
    rules = schema("preset-file")["properties"]["rules"]["properties"]
    assert {name: rule["description"].lower() for name, rule in rules.items()} == {
        name: text.lower() for name, text in LOGICAL_AXES.items()
    }


@given(presets())
def test_what_we_write_is_taken(preset: Preset) -> None:
    assert takes("preset-file", preset_text(preset))


PRESETS_TAKEN = (
    '[mesh]\ndata = 2\nmodel = -1\n[rules]\nbatch = ["data"]\nmlp = "model"\nheads = ""\nmine = []\n',
    '[mesh]\ndata = 2\n[overrides]\n"*" = ["", "data"]\n"a" = []\n"b" = [[], ["data"]]\n"c" = { spec = [] }\n',
    '[mesh]\ndata = 2\n[overrides]\n"a" = { spec = ["data"], min_size = 1024 }\n',
    'summary = ""\nteaches = ""\naxis_types = "explicit"\nmicrobatches = 4\n[mesh]\np = 2\n[rules]\nlayers = "p"\n',
    'pipeline_repeats = 2\n[mesh]\np = 2\n[rules]\nlayers = "p"\n',
    "".join(["[mesh]\n", *(f"a{number} = 1\n" for number in range(16))]),
    "[mesh]\nA_1 = 1000000\n",
)
PRESETS_REFUSED = (
    *("[mesh]\ndata = 0\n", "[mesh]\ndata = -2\n", "[mesh]\ndata = 1000001\n", '[mesh]\ndata = "all"\n'),
    *("[mesh]\n'a b' = 1\n", "[mesh]\n", 'summary = "no mesh"\n', "colour = 1\n[mesh]\ndata = 2\n"),
    "".join(["[mesh]\n", *(f"a{number} = 1\n" for number in range(17))]),
    *("summary = 1\n[mesh]\ndata = 2\n", 'axis_types = "manual"\n[mesh]\ndata = 2\n'),
    *("pipeline_repeats = 0\n[mesh]\ndata = 2\n", "microbatches = 0\n[mesh]\ndata = 2\n"),
    *("[mesh]\ndata = 2\n[rules]\nbatch = 2\n", "[mesh]\ndata = 2\n[rules]\nmine = [2]\n"),
    'overrides = ["data"]\n[mesh]\ndata = 2\n',
    '[mesh]\ndata = 2\n[overrides]\n"a" = "data"\n',
    '[mesh]\ndata = 2\n[overrides]\n"a" = [1]\n',
    '[mesh]\ndata = 2\n[overrides]\n"a" = { min_size = 3 }\n',
    '[mesh]\ndata = 2\n[overrides]\n"a" = { spec = ["data"], size = 3 }\n',
)
MODELS_TAKEN = (
    f'summary = "s"\n[model]\n{MODEL}{TRAINING}',
    f'summary = "s"\n[model]\nkind = "gpt"\ndropout = 0\nremat = true\n{MODEL}dtype = "float32"\n{TRAINING}',
)
MODELS_REFUSED = (
    f"[model]\n{MODEL}{TRAINING}",
    f'summary = "s"\n{TRAINING}',
    f'summary = "s"\n[model]\n{MODEL}',
    f'summary = "s"\n[model]\n{MODEL}width = 3\n{TRAINING}',
    f'summary = "s"\n[model]\n{MODEL}{TRAINING}epochs = 3\n',
    f'summary = "s"\n[model]\n{MODEL}dtype = "int8"\n{TRAINING}',
    f'summary = "s"\n[model]\nkind = "user"\n{MODEL}{TRAINING}',
    f'summary = "s"\n[model]\n{MODEL.replace("layers=1", "layers=1.5")}{TRAINING}',
)


@pytest.mark.parametrize(
    ("name", "texts", "is_taken"),
    [
        ("preset-file", PRESETS_TAKEN, True),
        ("preset-file", PRESETS_REFUSED, False),
        ("model-file", MODELS_TAKEN, True),
        ("model-file", MODELS_REFUSED, False),
    ],
)
def test_what_the_reader_takes_is_taken_and_what_it_refuses_is_not(
    name: str, texts: tuple[str, ...], is_taken: bool
) -> None:
    for text in texts:
        assert (takes(name, text), reader_takes(name, text)) == (is_taken, is_taken), text
