"""`shardtui plan`: its options, and the plan that they request."""

import argparse
import math
from pathlib import Path
from typing import get_args

from ...engine.base.directories import expanded
from ...engine.base.user_error import UserError, noting, refuse
from ...engine.planning.finalists import MOST_PROGRAMS
from ...engine.planning.goal import CHOSEN, Goal, SearchRequest
from ...engine.spec.checks import problems_of
from ...engine.spec.config import RunConfig
from ...engine.spec.model_choice import choose_model
from ...engine.spec.preset_files import FILE_NAME, user_presets
from ...engine.spec.preset_reader import is_file, load_preset
from ...engine.spec.topology import load_topology, spans
from . import values
from .options import add_json_option, add_model_options
from .plan import Asked, plan
from .run_config import load_or_note, set_words, settings_of_options


def plan_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--topology",
        action="append",
        required=True,
        metavar="T",
        help="TPU chips, such as v5p:4x4x4, or hosts × GPUs: h100:4x8; repeatable, to compare",
    )
    add("--slices", type=int, metavar="N", help="so many of these slices, connected by DCN; default 1")
    add("--price", type=_price, action="append", default=[], metavar="CHIP=USD", help="of a chip-hour; repeatable")
    add(
        "--preset",
        type=values.preset,
        action="append",
        default=[],
        metavar="P",
        help="name or .toml file; repeatable; default: all except the pitfalls; see `shardtui presets`",
    )
    add(
        "--search",
        action="store_true",
        help="choose: estimate meshes, rules, batch, remat and micro-batches, and compile the best; settings that are "
        "given are kept",
    )
    add("--goal", choices=get_args(Goal), help="of a search; default tokens-per-second")
    add("--minutes", type=values.minutes, metavar="M", help="of a search: end with the best so far; default 10")
    add("--save", metavar="NAME|FILE", help="of a search: save the preset that it chose, also as one of yours by NAME")
    add("--estimate", action="store_true", help="compile nothing: trace each preset, about a second each")
    add("--memory", action="store_true", dest="shows_memory", help="also show what fills the memory at the peak")
    add("--fit", action="store_true", help="search settings that make each --preset fit that is too large")
    add(
        "--profile",
        action="store_true",
        dest="breakdowns",
        help="also predict where the time of a step goes, by the compiler's schedule and its estimates",
    )
    add_model_options(parser)
    add_json_option(parser)


def plan_command(options: argparse.Namespace) -> int:
    shown = options.breakdowns, options.shows_memory, dict(options.price), options.json
    search, place = _searched(options), _place_of(options.save) if options.save else None
    train = ["shardtui", "train", "--model", options.model or "nano", *set_words(settings_of_options(options))]
    return plan(*_planned(options), Asked(not options.estimate, search, place, train, *shown))


def _planned(options: argparse.Namespace) -> tuple[RunConfig, list[str], list[str]]:
    """Returns the config, topologies such as `2*v5p:4x4x4`, and the named presets, which must fill the slices.

    Raises UserError with every problem, but if the model cannot be laid out: the board says so."""
    problems: list[str] = []
    name, presets = options.model or "nano", list(dict.fromkeys(options.preset))
    model = load_or_note(problems, choose_model, name, settings_of_options(options))
    slices = 1 if options.slices is None else options.slices
    problems += [] if slices >= 1 else [f"--slices {slices}: must be at least 1"]
    targets = [f"{slices}*{name}" if slices > 1 else name for name in dict.fromkeys(options.topology)]
    topologies = list(filter(None, [load_or_note(problems, load_topology, target) for target in targets]))
    found = list(filter(None, [load_or_note(problems, load_preset, preset) for preset in presets]))
    names = [preset.name for preset in found]
    problems += [
        f"--preset {name}: {names.count(name)} presets have this name: rename one"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    for preset in found:
        problems += preset.problems
        for topology in topologies:
            if misfit := preset.size_problem(topology.devices):
                problems.append(misfit)
            else:
                with noting(problems):
                    spans(preset.sizes(topology.devices), topology.domains)
    if model is None:
        raise UserError(*problems)
    config = model.config("plan")
    refuse([*problems, *problems_of(config)])
    return config, targets, presets


def _searched(options: argparse.Namespace) -> SearchRequest | None:
    """Returns what is searched; None without --search or --fit. Raises UserError with every problem."""
    if not options.search and not options.fit:
        given = {"--goal": options.goal, "--minutes": options.minutes, "--save": options.save}
        problems = [
            f"{flag} {value}: applies to a search: add --search or --fit" for flag, value in given.items() if value
        ]
        refuse(problems)
        return None
    kept = [key for key in (text.partition("=")[0] for text in settings_of_options(options)) if key in CHOSEN]
    request = SearchRequest(
        goal=options.goal or SearchRequest().goal,
        kept=[] if options.fit else sorted(set(kept)),
        is_mesh_fixed=options.fit,
        minutes=options.minutes or 10.0,
    )
    chosen = "--goal fits-largest-batch: the search chooses the batch: omit --batch-size and --set batch_size"
    both = "--fit: searches settings of the presets alone: leave out --search"
    nameless = f"--fit compiles up to {MOST_PROGRAMS} programs for a preset: name one with --preset"
    problems = [chosen] if request.goal == "fits-largest-batch" and "batch_size" in request.kept else []
    problems += [both] if options.fit and options.search else []
    problems += [nameless] if options.fit and not options.preset else []
    refuse([*problems, *_place_problems(options)])
    return request


def _place_problems(options: argparse.Namespace) -> list[str]:
    if options.save is None:
        return []
    if len(set(options.topology)) > 1:
        return [f"--save {options.save}: each topology has a preset of its own: give one --topology"]
    path = _place_of(options.save)
    if not FILE_NAME.fullmatch(path.stem) or path.suffix != ".toml":
        return [
            f"--save {options.save}: give a name of 1 to 64 letters, digits, '.', '_' and '-', or the path of a .toml"
        ]
    return [f"--save {options.save}: {path} already exists: choose another name, or remove it"] if path.exists() else []


def _place_of(name: str) -> Path:
    """Returns the file of a preset to be saved: `name` is a path, or a name in the user's preset directory."""
    return expanded(name).absolute() if is_file(name) else user_presets() / "parallelism" / f"{name}.toml"


def _price(text: str) -> tuple[str, float]:
    chip, _, dollars = text.partition("=")
    found = values.number(dollars)
    if not chip or not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not CHIP=USD, the price of an hour, such as v5p=4.20")
    return chip, found
