"""Where our files are, by the XDG Base Directory Specification."""

from collections.abc import Callable
from pathlib import Path

import pytest
from shardtui.engine.spec.preset_files import user_presets
from shardtui.engine.wire.run_directory import compilation_cache, plan_cache, state_home

PLACES = [
    ("XDG_CONFIG_HOME", ".config", user_presets, "presets"),
    ("XDG_STATE_HOME", ".local/state", state_home, "runs"),
    ("XDG_CACHE_HOME", ".cache", compilation_cache, "jax"),
    ("XDG_CACHE_HOME", ".cache", plan_cache, "plan"),
]


@pytest.mark.parametrize(("variable", "default", "directory", "name"), PLACES)
def test_directories_of_the_user(
    variable: str,
    default: str,
    directory: Callable[[], Path],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, "/elsewhere")
    assert directory() == Path("/elsewhere/shardtui", name)
    usual = tmp_path / default / "shardtui" / name
    for ignored in ("", "relative", "./here"):
        monkeypatch.setenv(variable, ignored)
        assert directory() == usual
    monkeypatch.delenv(variable)
    assert directory() == usual
