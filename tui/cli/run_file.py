"""Run files: the options of `run` and `train` as TOML. Every run writes the one that starts it again."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ...engine.base.user_error import UserError, refuse, suggestion
from ...engine.spec.config import Destination, ScheduledSwitch
from ...engine.spec.model_choice import setting_value
from ...engine.spec.preset_files import read_toml
from ...engine.spec.preset_writer import toml_key, toml_value
from ...engine.wire import run_directory
from ...engine.wire.run_directory import RunDirectory
from .destinations import chosen
from .options import add_local_options, add_schedule_options, add_training_options
from .parser import Parser, actions
from .values import path

OF_ONE_START = ("run", "like", "resume", "from-step", "other-data", "help")
"""Options that no file has: a file starts a new run, under a name of its own."""
SETTINGS = "set"
"""The table with what `--set` changes."""


def add_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=path, metavar="FILE.toml", help="a run file with options; those given here win"
    )
    parser.add_argument("--like", metavar="RUN", help="the options of this run; those given here win")


def parse(parser: argparse.ArgumentParser, arguments: list[str], options: argparse.Namespace) -> argparse.Namespace:
    """Parses the arguments of `run` or `train`, with the options of a run file before them. Raises UserError."""
    found = parser.parse_args(arguments, argparse.Namespace(**vars(options)))
    if path := _path(found):
        found = parser.parse_args([arguments[0], *_words(path, parser), *arguments[1:]], options)
    found.run_file = _text(found)
    return found


def write(directory: RunDirectory, text: str) -> None:
    """Writes the run file of a new run. Raises UserError, and leaves no run, if it cannot be written."""
    try:
        directory.run_file.write_text(text, encoding="utf-8")
    except OSError as error:
        directory.discard()
        raise UserError(f"{directory.run_file}: cannot be written: {error.strerror}") from error


def known_options() -> dict[str, argparse.Action]:
    """Returns what a run file can have, by name."""
    parser = Parser(add_help=False)
    for add in (add_training_options, add_local_options, add_schedule_options):
        add(parser)
    return {_name(action): action for action in actions(parser) if _name(action) not in OF_ONE_START}


def _path(options: argparse.Namespace) -> Path | None:
    if options.file and options.like:
        raise UserError(f"{options.file} and --like {options.like}: give one of them")
    if options.file:
        return Path(options.file)
    if not options.like:
        return None
    path = run_directory.find(options.like).run_file
    if not path.exists():
        raise UserError(f"--like {options.like}: it has no {path.name}: `run` or `train` did not start it")
    return path


def _words(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """Returns what a run file has as arguments; without what `run` has no use for. Raises UserError."""
    values, known = read_toml(path), known_options()
    refuse(
        [
            f"{path}: {name}: a file starts a new run: give --{name} on the command line"
            if name in OF_ONE_START
            else f"{path}: unknown option {name!r}: {suggestion(name, known)}the options are those of `shardtui train`"
            for name in values
            if name not in known
        ]
    )
    here = {_name(action) for action in actions(parser)}
    return [word for name, value in values.items() if name in here for word in _option(path, known[name], value)]


def _option(path: Path, action: argparse.Action, value: object) -> Iterator[str]:
    name = _name(action)
    if name == SETTINGS and isinstance(value, dict):
        yield from (f"--set={key}={toml_value(each)}" for key, each in cast(dict[str, object], value).items())
        return
    is_switch, is_plain = action.nargs == 0, isinstance(value, str | int | float | list)
    if isinstance(value, bool) is not is_switch or not is_plain or name == SETTINGS:
        kind = "true or false" if is_switch else "a table" if name == SETTINGS else "a text or a number"
        raise UserError(f"{path}: {name} = {value}: must be {kind}")
    if value is not False:
        for each in cast(list[object], value) if isinstance(value, list) else [value]:
            yield f"--{name}" if each is True else f"--{name}={each}"


def _text(options: argparse.Namespace) -> str:
    """Returns the run file of these options."""
    known = known_options()
    del known[SETTINGS]
    given: dict[str, Any] = {name: getattr(options, action.dest, None) for name, action in known.items()}
    given["to"] = list(chosen(given["to"]) or [])
    lines = [
        f"{name} = {toml_value(_portable(value))}"
        for name, value in given.items()
        if value not in (None, [], known[name].default)
    ]
    if settings := {key: _setting(text) for key, _, text in (each.partition("=") for each in options.set)}:
        lines += ["", f"[{SETTINGS}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in settings.items())]
    return "\n".join(["# The options of this run: `shardtui run` or `train` starts one like it.", *lines, ""])


def _portable(value: object) -> object:
    """Returns a value of an option as a file has it."""
    match value:
        case Destination():
            return value.words
        case ScheduledSwitch():
            return f"{value.step}:{value.preset}"
        case tuple():
            return ",".join(cast(tuple[str, ...], value))
        case list():
            return list(map(_portable, cast(list[object], value)))
        case _:
            return value


def _setting(text: str) -> object:
    value = setting_value(text)
    return cast(object, value) if isinstance(value, str | int | float | list) else text


def _name(action: argparse.Action) -> str:
    """Returns an option's name without dashes; empty for an argument."""
    return action.option_strings[-1].lstrip("-") if action.option_strings else ""
