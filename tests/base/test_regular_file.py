"""FIFOs, sockets, devices and directories in place of files: nothing blocks on them, and messages name them."""

import json
import os
from pathlib import Path

import pytest
from shardtui.engine.base.regular_file import NotRegular, open_regular, read_regular
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_files import user_presets
from shardtui.engine.spec.preset_reader import load_preset, load_presets
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.event_log import EventLog, last_seq
from shardtui.engine.wire.run_directory import RunDirectory, compilation_cache, plan_cache, state_home

from ..command import answered
from ..conftest import tiny_config


def fifo(path: Path) -> Path:
    """Makes a FIFO, in place of the file if there is one."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def created(name: str) -> RunDirectory:
    return run_directory.create(tiny_config(run=name))


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 4) == read_regular(tmp_path / "link", 4) == b"text"
    others = {fifo(tmp_path / "fifo"): "a FIFO", tmp_path: "a directory", Path("/dev/zero"): "a character device"}
    for path, kind in others.items():
        with pytest.raises(NotRegular, match=f"{kind}, not a regular file"):
            open_regular(path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    events = fifo(tmp_path / "events.jsonl")
    for use in (last_seq, lambda path: EventLog(path, lambda event: None)):
        with pytest.raises(UserError, match=r"events\.jsonl: cannot be read: a FIFO"):
            use(events)


def test_good_runs_are_listed_next_to_bad_ones(home: Path) -> None:
    for name in ("good-1", "bad-1", "bad-2"):
        created(name)
    runs = run_directory.state_home()
    bad = {
        fifo(runs / "bad-1/run.json"): "cannot be read: a FIFO, not a regular file",
        fifo(runs / "bad-2/events.jsonl"): "cannot be read: a FIFO, not a regular file",
    }
    listed = answered("ls", "--json")
    assert [run["run"] for run in json.loads(listed.stdout)["runs"]] == ["good-1"]
    for path, why in bad.items():
        assert f"{path}: {why}" in listed.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [(["verify"], "run.json"), (["train", "--resume"], "run.json"), (["train", "--resume"], "events.jsonl")],
)
def test_commands_name_the_bad_file_of_a_run(home: Path, command: list[str], name: str) -> None:
    path = fifo(created("tiny-1").path / name)
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


PLACES = [
    ("XDG_CONFIG_HOME", ".config", user_presets, "presets"),
    ("XDG_STATE_HOME", ".local/state", state_home, "runs"),
    ("XDG_CACHE_HOME", ".cache", compilation_cache, "jax"),
    ("XDG_CACHE_HOME", ".cache", plan_cache, "plan"),
]


def test_directories_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, default, directory, name in PLACES:
        monkeypatch.setenv(variable, "/elsewhere")
        assert directory() == Path("/elsewhere/shardtui", name)
        usual = tmp_path / default / "shardtui" / name
        for ignored in ("", "relative", "./here"):
            monkeypatch.setenv(variable, ignored)
            assert directory() == usual
        monkeypatch.delenv(variable)
        assert directory() == usual
