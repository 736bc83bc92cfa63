"""`shardtui presets import` and `presets export`: presets from MaxText's configuration files, and back."""

import argparse
import sys
from pathlib import Path

from ...engine.base.invalid import Invalid
from ...engine.spec.maxtext_rules import maxtext_text, read_maxtext
from ...engine.spec.preset_files import FILE_NAME, user_presets
from ...engine.spec.preset_reader import load_preset, parse_preset
from ...engine.spec.preset_writer import preset_text, write_preset
from ..terminal.clean import printable
from ..terminal.exit_codes import FINE


def exchange(options: argparse.Namespace) -> int:
    """Imports a file, or exports a preset. Raises Invalid."""
    if not options.subject:
        missing = "FILE.yml" if options.action == "import" else "PRESET"
        raise Invalid(f"presets {options.action}: {missing} is missing")
    if options.action == "export":
        preset = load_preset(options.subject)
        if preset.problems:
            raise Invalid(*preset.problems)
        print(maxtext_text(preset), end="")
        return FINE
    return _import(Path(options.subject).expanduser(), options.name, options.sizes or {})


def _import(path: Path, name: str | None, sizes: dict[str, int]) -> int:
    name = name or path.stem
    if not FILE_NAME.fullmatch(name):
        raise Invalid(f"--name {name}: a preset's name has 1 to 64 letters, digits, '.', '_' and '-'")
    target = user_presets() / "parallelism" / f"{name}.toml"
    if target.exists():
        raise Invalid(f"{target} already exists: choose another --name, or remove it")
    found = read_maxtext(path, name, sizes)
    text = preset_text(found.preset)
    if problems := parse_preset(target, text).problems:
        raise Invalid(*problems)
    write_preset(target, text)
    print(printable(str(target)))
    notes = {"mesh axes of size 1": found.unused_axes, "rules that no built-in model uses": found.left_out}
    for about, names in notes.items():
        if names:
            print(printable(f"{len(names)} {about}, left out: {', '.join(names)}"), file=sys.stderr)
    return FINE
