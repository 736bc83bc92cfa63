"""Presets from the rules of an installed MaxText: `python tests/long/maxtext_rules.py [DIRECTORY]`.

Reads every file of its configuration that has a mesh and rules, at several sizes, and places nano and nano-moe on eight
devices under each. Needs `maxtext` (Python 3.12 or later), or a directory with its files.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}

import jax
import yaml
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.maxtext_rules import maxtext_text, read_maxtext
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_reader import parse_preset
from shardtui.engine.spec.preset_writer import preset_text

SIZES = ({}, {"fsdp": -1, "tensor": 2}, {"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": -1, "expert": 2})


def main() -> int:
    """Prints a line for each file and size; returns 1 if a preset does not fit nano or nano-moe."""
    spec = find_spec("maxtext") if len(sys.argv) < 2 else None
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(spec.origin or "").parent if spec else None
    if folder is None:
        print("maxtext is not installed: install it, or give a directory of its files", file=sys.stderr)
        return 2
    files = [path for path in sorted(folder.rglob("*.yml")) if is_complete(path)]
    tried = [fits(path, sizes) for path in files for sizes in SIZES if set(sizes) <= axes_of(path)]
    print(f"{len(files)} files, {len(tried)} presets, {tried.count(False)} do not fit")
    return 0 if tried and all(tried) else 1


def is_complete(path: Path) -> bool:
    """Whether a file has a mesh and rules of its own."""
    text = path.read_text()
    return "\nmesh_axes:" in text and "\nlogical_axis_rules:" in text


def axes_of(path: Path) -> set[str]:
    """The mesh axes of a file."""
    return set(yaml.safe_load(path.read_text())["mesh_axes"])


def fits(path: Path, sizes: dict[str, int]) -> bool:
    """Prints whether a file's preset fits, as read back from a file of ours, and can be exported."""
    try:
        preset = read_maxtext(path, "theirs", sizes).preset
        read = parse_preset(Path("theirs.toml"), preset_text(preset))
        tasks = [Task(config(model), "cpu") for model in ("nano", "nano-moe")]
        place(tasks["experts" in preset.rules], read, jax.devices())
        text = maxtext_text(read)
    except Invalid as error:
        print(f"✗ {path.name} {sizes}: {error.problems[0]}")
        return False
    print(f"✓ {path.name} {sizes}: {read.mesh}, {len(text.splitlines()) - len(read.mesh) - 3} rules")
    return True


def config(model: str) -> RunConfig:
    """The config of a run of a built-in model."""
    choice = choose_model(model)
    return RunConfig(run="any", model_name=model, model=choice.model, training=choice.training, preset="dp")


if __name__ == "__main__":
    sys.exit(main())
