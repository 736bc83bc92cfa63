"""The installed packages are those of the source tree, and the UI process imports nothing heavy."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("jax", "flax", "optax", "orbax", "grain", "numpy")
VIEWS = [
    *("statistics", "shardtui.engine.hlo.lint", "shardtui.engine.explain.explanation"),
    *("shardtui.engine.spec.hf_config", "shardtui.tui.widgets.loss_plot", "shardtui.tui.state.run_summary"),
]
"""What is imported when it is shown or used."""


def test_every_package_of_the_tree_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    inits = [
        path for folder in ("engine", "presets", "schemas", "tui") for path in (ROOT / folder).rglob("__init__.py")
    ]
    found = {".".join(("shardtui", *path.parent.relative_to(ROOT).parts)) for path in inits}
    assert set(project["tool"]["setuptools"]["packages"]) == found


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {
        path.parent for folder in ("engine", "presets", "schemas", "tui") for path in (ROOT / folder).rglob("*.py")
    }
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    "module", ["shardtui.tui", "shardtui.tui.cli.main", "shardtui.tui.app", "shardtui.tui.cli.train"]
)
def test_the_ui_process_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_the_first_frame_does_not_wait_for_views() -> None:
    code = (
        f"import sys, shardtui.tui.app, shardtui.tui.cli.run; print([name for name in {VIEWS} if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_presets_are_installed_with_the_package() -> None:
    from shardtui.engine.spec.preset_files import preset_files

    assert {"nano", "nano-moe", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"} <= preset_files("models").keys()
    built_in = {"dp", "tp", "dp-tp2", "dp-tp4", "fsdp", "fsdp-tp2", "hsdp", "fsdp-1d", "sp2", "dp-sp2"}
    experts = {"dp-ep4", "ep2-tp2"}
    pitfalls = {"pitfall-same-axis", "pitfall-replicated-moments"}
    assert built_in | experts | pitfalls <= preset_files("parallelism").keys()
