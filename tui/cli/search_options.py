"""The options of `shardtui plan` that are about a search."""

import argparse
from pathlib import Path

from ...engine.base.invalid import Invalid
from ...engine.spec.preset_files import FILE_NAME, user_presets
from ...engine.spec.preset_reader import is_file
from ...engine.spec.search import CHOSEN, SearchRequest
from .run_settings import settings_of_options

MINUTES = 10.0
"""How long a search takes at most, by default."""


def searched(options: argparse.Namespace) -> SearchRequest | None:
    """Returns what is searched; None without --search. Raises Invalid with every problem."""
    if not options.search:
        given = {"--goal": options.goal, "--minutes": options.minutes, "--save": options.save}
        problems = [f"{flag} {value}: applies to a search: add --search" for flag, value in given.items() if value]
        if problems:
            raise Invalid(*problems)
        return None
    kept = [key for key in (text.partition("=")[0] for text in settings_of_options(options)) if key in CHOSEN]
    request = SearchRequest(
        goal=options.goal or SearchRequest().goal, kept=sorted(set(kept)), minutes=options.minutes or MINUTES
    )
    if problems := [*_goal_problems(request), *_place_problems(options)]:
        raise Invalid(*problems)
    return request


def _goal_problems(request: SearchRequest) -> list[str]:
    if request.goal != "fits-largest-batch" or "batch_size" not in request.kept:
        return []
    return ["--goal fits-largest-batch: the search chooses the batch: omit --batch-size and --set batch_size"]


def _place_problems(options: argparse.Namespace) -> list[str]:
    if options.save is None:
        return []
    if len(set(options.topology)) > 1:
        return [f"--save {options.save}: each topology has a preset of its own: give one --topology"]
    path = place_of(options.save)
    if not FILE_NAME.fullmatch(path.stem) or path.suffix != ".toml":
        return [
            f"--save {options.save}: give a name of 1 to 64 letters, digits, '.', '_' and '-', or the path of a .toml"
        ]
    return [f"--save {options.save}: {path} already exists: choose another name, or remove it"] if path.exists() else []


def place_of(name: str) -> Path:
    """Returns the file of a preset to be saved: `name` is a path, or a name in the user's preset directory."""
    return Path(name).expanduser().absolute() if is_file(name) else user_presets() / "parallelism" / f"{name}.toml"
