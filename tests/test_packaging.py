"""The installed packages are those of the source tree, and the UI process imports nothing heavy."""

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("jax", "flax", "optax", "orbax", "grain", "numpy")
VIEWS = (
    *("statistics", "shardtui.engine.hlo.lint", "shardtui.engine.explain.explanation"),
    *("shardtui.engine.spec.hf_config", "shardtui.tui.widgets.loss_plot", "shardtui.tui.state.run_summary"),
    "shardtui.tui.palette",
)
"""What is imported when it is shown or used."""


def test_every_folder_with_modules_is_a_package_and_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules = [path for folder in ("engine", "presets", "schemas", "tui") for path in (ROOT / folder).rglob("*.py")]
    folders = {path.parent for path in modules}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
    found = {".".join(("shardtui", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert set(project["tool"]["setuptools"]["packages"]) == found


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("shardtui.tui, shardtui.tui.cli.main, shardtui.tui.cli.train", HEAVY),
        ("shardtui.tui.app, shardtui.tui.cli.run", (*HEAVY, *VIEWS)),
        ("shardtui.engine.watch", ("flax", "optax", "orbax", "grain", "textual")),
    ],
)
def test_a_process_imports_nothing_heavy_and_views_when_they_are_shown(modules: str, unwanted: Sequence[str]) -> None:
    code = f"import sys, {modules}; print([name for name in {unwanted} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
