"""FIFOs in place of files of runs and presets: nothing blocks on them, and messages name them."""

import json
import os
from pathlib import Path

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_files import user_presets
from shardtui.engine.spec.preset_reader import load_preset, load_presets
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import EventLog, last_seq
from shardtui.engine.wire.run_directory import compilation_cache, plan_cache, state_home

from ..command import answered
from ..conftest import tiny_config


def fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def test_good_runs_are_listed_next_to_bad_ones(home: Path) -> None:
    good, *bad = (run_directory.create(tiny_config(run=name)).path for name in ("good-1", "bad-1", "bad-2"))
    fifos = [fifo(bad[0] / "run.json"), fifo(bad[1] / "events.jsonl")]
    listed = answered("ls", "--json")
    assert [run["run"] for run in json.loads(listed.stdout)["runs"]] == [good.name]
    for path in fifos:
        assert f"{path}: cannot be read: a FIFO, not a regular file" in listed.stderr
    for use in (last_seq, lambda path: EventLog(path, lambda event: None)):
        with pytest.raises(UserError, match=r"events\.jsonl: cannot be read: a FIFO"):
            use(fifos[1])


@pytest.mark.parametrize(
    ("command", "name"),
    [(["verify"], "run.json"), (["train", "--resume"], "run.json"), (["train", "--resume"], "events.jsonl")],
)
def test_commands_name_the_bad_file_of_a_run(home: Path, command: list[str], name: str) -> None:
    path = fifo(run_directory.create(tiny_config()).path / name)
    result = answered(*command, "tiny-1", *(["--steps=3"] if "train" in command else []))
    assert result.returncode == 2
    assert f"shardtui: {path}: " in result.stderr
    assert "a FIFO, not a regular file" in result.stderr


def test_good_presets_are_listed_next_to_bad_ones(home: Path) -> None:
    presets = home / "config/shardtui/presets"
    path = fifo(presets / "parallelism/mine.toml")
    (presets / "parallelism/gone.toml").symlink_to("nowhere")
    found, problems = load_presets()
    assert "fsdp" in {preset.name for preset in found}
    assert f"{path}: cannot be read: a FIFO, not a regular file" in problems
    assert f"{path.with_name('gone.toml')}: cannot be read: No such file or directory" in problems
    for name in ("mine", str(path)):
        with pytest.raises(UserError, match="cannot be read: a FIFO"):
            load_preset(name)
    fifo(presets / "models/mine.toml")
    with pytest.raises(UserError, match="cannot be read: a FIFO"):
        choose_model("mine")


def test_directories_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, default, directory, name in (
        ("XDG_CONFIG_HOME", ".config", user_presets, "presets"),
        ("XDG_STATE_HOME", ".local/state", state_home, "runs"),
        ("XDG_CACHE_HOME", ".cache", compilation_cache, "jax"),
        ("XDG_CACHE_HOME", ".cache", plan_cache, "plan"),
    ):
        monkeypatch.delenv(variable, raising=False)
        assert directory() == tmp_path / default / "shardtui" / name
        for ignored in ("", "relative", "./here"):
            monkeypatch.setenv(variable, ignored)
            assert directory() == tmp_path / default / "shardtui" / name
        monkeypatch.setenv(variable, "/elsewhere")
        assert directory() == Path("/elsewhere/shardtui", name)
