"""`shardtui presets`: lists the presets, imports them from MaxText's configuration files, and exports them."""

import argparse
from pathlib import Path

from rich.text import Text

from ...engine.base import formatting
from ...engine.base.directories import expanded
from ...engine.base.output import note, say, show
from ...engine.base.user_error import UserError, refuse
from ...engine.spec.maxtext_rules import maxtext_text, read_maxtext
from ...engine.spec.preset_files import FILE_NAME, user_presets
from ...engine.spec.preset_reader import load_preset, parse_preset
from ...engine.spec.preset_writer import preset_text, write_preset
from ...engine.wire.descriptions import PresetListing
from ..client.engine_client import ask_engine
from ..state.step_words import pipeline_words
from ..terminal import FINE
from ..terminal.clean import clean, json_line
from ..terminal.plain_table import plain_table, table_console
from . import values
from .options import accept_training_options, add_device_options, add_json_option, add_model_options
from .run_config import new_config


def presets_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", nargs="?", choices=("import", "export"), help="omitted: list the presets")
    add(
        "subject",
        nargs="?",
        metavar="FILE.yml|PRESET",
        help="import: a configuration file of MaxText's, whose mesh and logical_axis_rules become a preset of yours; "
        "export: a preset, whose rules are printed in MaxText's form",
    )
    add("--name", metavar="NAME", help="with import: name of the preset; default: the file's")
    add(
        "--mesh",
        type=values.sizes,
        dest="sizes",
        metavar="AXIS=SIZE,…",
        help="with import: sizes of mesh axes in place of the file's; -1 for the remaining devices",
    )
    accept_training_options(parser)
    add("--preset", type=values.preset, help=argparse.SUPPRESS)
    add_device_options(parser)
    add_model_options(parser)
    add_json_option(parser)


def presets_command(options: argparse.Namespace) -> int:
    if options.action:
        return _exchange(options)
    config = new_config(options)
    (listing,) = ask_engine(PresetListing, "presets", config)
    if options.json:
        show(json_line(listing))
        return FINE
    listing = clean(listing)
    table = plain_table("", "preset", f"mesh on {listing.devices}", "summary", title=f"presets for {config.model_name}")
    for info in listing.presets:
        about = f"{info.summary}: {pipeline_words(info.pipeline)}" if info.pipeline else info.summary
        why = about if info.fits else "\n".join(info.problems)
        table.add_row("✓" if info.fits else "✗", Text(info.name), formatting.axes(info.mesh), Text(why))
    table_console().print(table)
    say(*listing.problems)
    return FINE


def _exchange(options: argparse.Namespace) -> int:
    if not options.subject:
        missing = "FILE.yml" if options.action == "import" else "PRESET"
        raise UserError(f"presets {options.action}: {missing} is missing")
    if options.action == "export":
        preset = load_preset(options.subject)
        if preset.problems:
            raise UserError(*preset.problems)
        show(*maxtext_text(preset).splitlines())
        return FINE
    return _import(expanded(options.subject), options.name, options.sizes or {})


def _import(path: Path, name: str | None, sizes: dict[str, int]) -> int:
    name = name or path.stem
    if not FILE_NAME.fullmatch(name):
        raise UserError(f"--name {name}: a preset's name has 1 to 64 letters, digits, '.', '_' and '-'")
    target = user_presets() / "parallelism" / f"{name}.toml"
    if target.exists():
        raise UserError(f"{target} already exists: choose another --name, or remove it")
    found = read_maxtext(path, name, sizes)
    text = preset_text(found.preset)
    refuse(parse_preset(target, text).problems)
    write_preset(target, text)
    show(str(target))
    notes = {
        "mesh axes of size 1, left out": found.unused_axes,
        "rules of what no built-in model has, left out": found.left_out,
        "rules that differ here": found.differing,
    }
    for about, names in notes.items():
        if names:
            note(f"{len(names)} {about}: {', '.join(names)}")
    return FINE
