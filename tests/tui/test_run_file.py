"""Run files: the options of `run` and `train` as TOML, and the one that each run writes."""

import argparse
import math
import tomllib
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.spec.config import RunConfig
from shardtui.tui.cli.main import _parser, _with_command, main
from shardtui.tui.cli.run import _new_run
from shardtui.tui.cli.run_file import known_options, parse

from ..schemas import schema
from ..test_schemas import takes

LINE = """
    --preset fsdp --devices 8 --steps 9 --switch 3:dp --switch 5:tp --set layers=2 --set learning_rate=3e-4
    --batch-size 16 --seq-len 32 --eval-share 0.05 --low-memory --device-memory 16e9 --on-spike pause --data texts.txt
    --checkpoint-dir kept --checkpoint-minutes 2.5 --seed 3 --keep 2 --sample-every 5 --sample-prompt def --to csv:a.csv
""".split()  # noqa: SIM905 # as one types it
EVERY = """
    --preset mine.toml --data texts.txt --tokenizer tokens.json --text-field body --end-of-text <end> --seed 0
    --eval-data held --eval-share 0.05 --eval-every 7 --eval-batches 3 --on-nonfinite skip --on-spike pause
    --numbers-every 0 --devices 8 --platform cpu --device-memory 16e9 --batch-size 16 --seq-len 32 --set layers=2
    --checkpoint-every 4 --checkpoint-minutes 0 --checkpoint-dir kept --keep 2 --profile 3 --profile-every 2.5
    --check-devices 9 --low-memory --margin 0.1 --keep-programs 1e9 --stop-timeout 0 --sample-every 5
    --sample-prompt def --processes 2 --to csv:a.csv --to tensorboard:logs --supervise --restarts 0 --min-processes 1
    --fallback fsdp,other.toml --steps 9 --switch 3:dp --switch 5:other.toml
""".split()  # noqa: SIM905


@pytest.fixture(autouse=True)
def place(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("def main(): pass\n" * 500)
    return tmp_path


def options(*arguments: str, command: str = "train") -> argparse.Namespace:
    return parse(_parser(command), [command, *arguments], argparse.Namespace())


def started(*arguments: str, command: str = "train") -> tuple[RunConfig, str]:
    """Returns the configuration and the run file of a new run."""
    directory = _new_run(options(*arguments, command=command))
    return directory.config, directory.run_file.read_text()


def test_a_run_writes_the_file_that_starts_it_again_from_anywhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = started(*LINE)
    assert takes("run-file", text)
    (place / "mine.toml").write_text(text)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    for arguments in (["../mine.toml"], ["--like", config.run]):
        again, written = started(*arguments)
        assert msgspec.structs.replace(again, run=config.run) == config
        assert written.splitlines() == text.splitlines()
    assert str(place / "texts.txt") in text and f"csv:{place / 'a.csv'}" in text


@pytest.mark.parametrize("model", ["gpt2", "mine.py:build", "package.pymodel:build", "hf:weights", "hf:~/weights"])
def test_every_option_is_read_back_from_another_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    given = options(*EVERY, f"--model={model}", "--json", "--run=mine")
    known = known_options()
    assert known.keys() == {word[2:] for word in EVERY if word.startswith("--")} | {"model"}
    assert known.keys() == tomllib.loads(given.run_file).keys() and takes("run-file", given.run_file)
    (place / "every.toml").write_text(given.run_file)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    again = options("../every.toml")
    assert {name: getattr(again, action.dest) for name, action in known.items()} == {
        name: getattr(given, action.dest) for name, action in known.items()
    }
    assert again.run_file == given.run_file


def test_none_ends_the_destinations_of_a_run_file(place: Path) -> None:
    (place / "a.toml").write_text('to = "csv:a.csv"\n')
    assert "to" not in tomllib.loads(options("a.toml", "--to=none").run_file)
    assert tomllib.loads(options("a.toml", "--to=none", "--to=wandb:p").run_file)["to"] == ["wandb:p"]


def test_options_on_the_command_line_win_and_run_passes_over_what_only_train_has(place: Path) -> None:
    (place / "a.toml").write_text(
        'preset = "fsdp"\nsteps = 3\nswitch = "2:dp"\nlow-memory = false\n[set]\nlayers = 2\nremat = true\n'
    )
    given = options("a.toml", "--set", "layers=1", "--steps=5", "--preset", "tp")
    assert (given.preset, given.steps, given.low_memory) == ("tp", 5, None)
    assert given.set == ["layers=2", "remat=true", "layers=1"]
    text = tomllib.loads(given.run_file)
    assert text == {"preset": "tp", "steps": 5, "switch": ["2:dp"], "set": {"layers": 1, "remat": True}}
    config, text = started("--preset=tp", "a.toml", command="run")
    assert (config.preset, config.model.layers, config.switches, "steps" in text) == ("tp", 2, (), False)


def test_a_run_file_alone_is_run() -> None:
    assert _with_command(["a.toml", "--devices=8"]) == ["run", "a.toml", "--devices=8"]


def test_texts_and_lists_are_read_back() -> None:
    prompt = '"é\\\n\x00\x7f\u2028'
    given = options(f"--sample-prompt={prompt}", "--set=a b=\x7f", "--set=sizes=[1, -inf]")
    assert tomllib.loads(given.run_file) == {"sample-prompt": prompt, "set": {"a b": "\x7f", "sizes": [1, -math.inf]}}


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("preset", "a.toml", "not valid TOML"),
        ('prest = "dp"', "a.toml", "unknown option 'prest': did you mean preset?"),
        ('run = "mine"', "a.toml", "run: a file starts a new run: give --run on the command line"),
        ("low-memory = 1", "a.toml", "low-memory = 1: must be true or false"),
        ("seed = true", "a.toml", "seed = True: must be a text or a number"),
        ("set = 3", "a.toml", "set = 3: must be a table"),
        ("[preset]\na = 1", "a.toml", "must be a text or a number"),
        ("[set]\nlayrs = 3", "a.toml", "unknown key 'layrs'"),
        ("", "none.toml", "none.toml"),
        ("", "--like=nobody", "nobody"),
        ("", "a.toml --like=b", "a.toml and --like b: give one of them"),
    ],
)
def test_a_wrong_file_is_refused_and_leaves_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: str, says: str
) -> None:
    (place / "a.toml").write_text(text)
    assert main(["train", *arguments.split(), "--steps=1"]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1
    assert not list(place.rglob("run.json"))


def test_the_schema_has_every_option() -> None:
    assert set(schema("run-file")["properties"]) == set(known_options())
    assert not {"run", "resume", "help", "json"} & set(known_options())
