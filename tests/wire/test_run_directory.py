"""Names, locks and directories of runs."""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.lock import Holder

from ..conftest import SETTINGS, SHARDTUI, tiny_config


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "A", "x" * 65, "a\nb", "naïve", "-x"])
def test_names_cannot_leave_the_directory(home: Path, name: str) -> None:
    for use in (run_directory.checked_name, lambda name: run_directory.create(tiny_config(run=name))):
        with pytest.raises(UserError, match="a name has 1 to 64 characters"):
            use(name)


def test_a_run_keeps_its_configuration(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    assert directory.config == tiny_config()
    assert run_directory.find("tiny-1") == directory
    assert run_directory.all_runs() == [directory]
    with pytest.raises(UserError, match="this run already exists: choose another name"):
        run_directory.create(tiny_config())
    assert run_directory.free_name("tiny") == "tiny-2"
    directory.discard()
    assert run_directory.all_runs() == []


def test_one_holder_at_a_time(home: Path) -> None:
    directory = run_directory.create(tiny_config())
    assert directory.holder() is None
    with pytest.raises(UserError, match="no run is training"):
        run_directory.find(None)
    with directory.hold():
        assert directory.holder() == Holder(os.getpid(), "here")
        assert run_directory.find(None) == directory
        with pytest.raises(UserError, match=f"process {os.getpid()} holds its lock"):
            directory.hold()
    assert directory.holder() is None


def test_the_runtime_directory_is_private(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "run"
    monkeypatch.setenv("SHARDTUI_RUNTIME_DIR", str(path))
    if len(str(path)) <= 60:
        assert run_directory.runtime_directory() == path
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    with pytest.raises(UserError, match="other users can enter it, or it is not a directory"):
        run_directory.runtime_directory()
    path.rmdir()
    path.symlink_to(home)
    with pytest.raises(UserError, match="other users can enter it, or it is not a directory"):
        run_directory.runtime_directory()
    monkeypatch.setenv("SHARDTUI_RUNTIME_DIR", str(home / ("long" * 20)))
    with pytest.raises(UserError, match="too long for a socket"):
        run_directory.runtime_directory()


def test_a_state_directory_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    with pytest.raises(UserError, match=r"cannot be written: .*: set XDG_STATE_HOME"):
        run_directory.create(tiny_config())


@pytest.mark.slow
def test_edited_settings_are_reported_when_the_run_resumes(home: Path) -> None:
    def train(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*SHARDTUI, "train", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    begun = train(*SETTINGS, "--run=tiny-1", "--steps=2", f"--data={__file__}", "--preset=dp")
    assert begun.returncode == 0, begun.stderr
    directory = run_directory.find("tiny-1")
    config = directory.config
    slower = msgspec.structs.replace(config.training, learning_rate=3e-4)
    directory.write_config(msgspec.structs.replace(config, training=slower))
    changed = train("--resume=tiny-1", "--steps=3", "--set=learning_rate=0.002")
    assert (changed.returncode, "run.json: " in changed.stderr) == (0, False), changed.stderr
    directory.write_config(msgspec.structs.replace(config, training=slower))
    edited = train("--resume=tiny-1", "--steps=4")
    assert edited.returncode == 0, edited.stderr
    assert "run.json: learning_rate is 0.0003, but the checkpoint of step 3 was saved with 0.002" in edited.stderr
    directory.write_config(msgspec.structs.replace(directory.config, seed=7))
    refused = train("--resume=tiny-1", "--steps=5")
    assert refused.returncode == 2
    assert "run.json: seed is 7, but the checkpoint of step 4 was saved with 0: restore it" in refused.stderr
