"""Turns the options of a command into the configuration of a run, with every check that needs no jax."""

import argparse
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from ...engine.base.invalid import Invalid
from ...engine.origins.explanation import ProgramRequest
from ...engine.spec.attempt import RESTARTS, Supervision
from ...engine.spec.checks import problems_of
from ...engine.spec.config import (
    MOST_PROMPTED,
    MOST_SAMPLED,
    CheckpointConfig,
    ModelConfig,
    Restart,
    RunConfig,
    Sampling,
    ScheduledSwitch,
    TrainingConfig,
    UserModel,
)
from ...engine.spec.model_choice import choose_model, user_model, with_settings, with_user_settings
from ...engine.spec.preset_reader import is_file, load_preset, name_of
from ...engine.spec.slices import spans
from ...engine.spec.topology import load_topology
from ...engine.wire import run_directory
from ...engine.wire.run_directory import RunDirectory
from .data import tokenized
from .run_settings import run_settings, settings_of_options

T = TypeVar("T")


def new_config(options: argparse.Namespace) -> RunConfig:
    """Returns the configuration of a new run. Raises Invalid with every problem that is found without jax."""
    name = options.model or "nano"
    preset = absolute(options.preset or "dp")
    problems = _preset_problems(preset, options)
    try:
        model = choose_model(name, settings_of_options(options))
        config = RunConfig(
            run=options.run_name or run_directory.free_name(model.run_name),
            model_name=model.name,
            model=model.model,
            training=model.training,
            weights=model.weights,
            preset=preset,
            seed=options.seed or 0,
            **run_settings(options),
        )
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    problems += problems_of(config)
    if problems:
        raise Invalid(*problems)
    return tokenized(config, options)


def resumed(directory: RunDirectory, options: argparse.Namespace) -> Restart:
    """Returns how a run resumes. Raises Invalid with every problem."""
    config = directory.config
    if (holder := directory.holder()) and holder.is_alive:
        raise Invalid(
            f"run {directory.name}: {holder.description} is training it: `shardtui attach {directory.name}` shows it, "
            f"`shardtui stop {directory.name}` ends it"
        )
    if holder:
        raise Invalid(
            f"run {directory.name}: {holder.description} holds {directory.lock}: find that process with `fuser` "
            "and end it"
        )
    given = {"--model": options.model, "--seed": options.seed, "--run": options.run_name}
    problems = [
        f"{flag} {value}: a resumed run keeps its own: omit {flag}, or start a new run"
        for flag, value in given.items()
        if value is not None
    ]
    preset = absolute(options.preset) if options.preset else None
    problems += _preset_problems(preset, options)
    try:
        model, training = _with_new_settings(config, settings_of_options(options))
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    config = msgspec.structs.replace(config, model=model, training=training, **run_settings(options, config))
    problems += problems_of(config)
    if problems:
        raise Invalid(*problems)
    return restart_of(options, tokenized(config, options))


def restart_of(options: argparse.Namespace, config: RunConfig) -> Restart:
    """Returns how a run resumes with this configuration."""
    preset = absolute(options.preset) if options.preset else None
    return Restart(
        step=options.from_step,
        preset=preset,
        other_data=options.other_data,
        profile=options.profile,
        profile_every=options.profile_every,
        config=config,
    )


def supervision(options: argparse.Namespace) -> Supervision | None:
    """Returns how a run is supervised; None without --supervise. Raises Invalid."""
    numbers = {
        "--restarts": options.restarts,
        "--min-processes": options.min_processes,
        "--wait-for-host": getattr(options, "wait_for_host", None),
    }
    given = {flag: value for flag, value in numbers.items() if value is not None}
    if not options.supervise:
        unused = {**given, **({"--fallback": ",".join(options.fallback)} if options.fallback else {})}
        if unused:
            raise Invalid(
                *(f"{flag} {value}: only for a supervised run: add --supervise" for flag, value in unused.items())
            )
        return None
    problems = [f"{flag} {value}: must be at least 1" for flag, value in given.items() if value < 1]
    for preset in options.fallback:
        _load_or_note(problems, load_preset, preset)
    if problems:
        raise Invalid(*problems)
    restarts, least, wait = numbers.values()
    return Supervision(
        restarts=RESTARTS if restarts is None else restarts,
        min_processes=least,
        wait_seconds=wait,
        fallback=options.fallback,
    )


def planned(options: argparse.Namespace) -> tuple[RunConfig, list[str], list[str]]:
    """Returns what to plan, each topology, such as `2*v5p:4x4x4`, and the presets by name or file; none for all.

    A named preset must fill the slices; the board reports why a model cannot be laid out. Raises Invalid with every
    problem.
    """
    problems: list[str] = []
    name, presets = options.model or "nano", list(dict.fromkeys(map(absolute, options.preset)))
    model = _load_or_note(problems, choose_model, name, settings_of_options(options))
    slices = 1 if options.slices is None else options.slices
    problems += [] if slices >= 1 else [f"--slices {slices}: must be at least 1"]
    targets = [f"{slices}*{name}" if slices > 1 else name for name in dict.fromkeys(options.topology)]
    topologies = list(filter(None, [_load_or_note(problems, load_topology, target) for target in targets]))
    found = list(filter(None, [_load_or_note(problems, load_preset, preset) for preset in presets]))
    names = [preset.name for preset in found]
    problems += [
        f"--preset {name}: {names.count(name)} presets have this name: rename one" for name in _duplicates(names)
    ]
    for preset in found:
        problems += preset.problems
        for topology in topologies:
            if misfit := preset.size_problem(topology.devices):
                problems.append(misfit)
            else:
                _load_or_note(problems, spans, preset.sizes(topology.devices), topology.domains)
    config = (
        RunConfig(run="plan", model_name=model.name, model=model.model, training=model.training, preset="dp")
        if model
        else None
    )
    problems += problems_of(config) if config else []
    if problems or config is None:
        raise Invalid(*problems)
    return config, targets, presets


def sampling(options: argparse.Namespace) -> Sampling:
    """Returns what to sample. Raises Invalid with every problem."""
    found = Sampling(prompt=options.prompt, tokens=options.tokens, temperature=options.temperature, seed=options.seed)
    checks = [
        (1 <= found.tokens <= MOST_SAMPLED, f"--tokens {found.tokens}: must be from 1 to {MOST_SAMPLED:,}"),
        (0 <= found.temperature < math.inf, f"--temperature {found.temperature}: must be 0 or more"),
        (0 <= found.seed < 2**32, f"--seed {found.seed}: must be from 0 to {2**32 - 1}"),
        (len(found.prompt) <= MOST_PROMPTED, f"--prompt: {len(found.prompt):,} characters: at most {MOST_PROMPTED:,}"),
    ]
    if problems := [text for holds, text in checks if not holds]:
        raise Invalid(*problems)
    return found


def explained(options: argparse.Namespace) -> ProgramRequest:
    """Returns the program to explain. Raises Invalid with every problem."""
    function, _ = user_model(options.program, option="explain")
    return ProgramRequest(function=function, mesh=options.mesh or {}, compiles=options.compile)


def compared(options: argparse.Namespace) -> tuple[RunConfig, list[str]]:
    """Returns the run that measures presets, and their names; empty if none is named. Raises Invalid."""
    options.preset, options.run_name = None, None
    named = list(map(name_of, options.presets))
    problems = [] if options.measured >= 1 else [f"--steps {options.measured}: must be at least 1"]
    files = tuple(absolute(name) for name in options.presets if is_file(name))
    problems += _name_collisions(options.presets)
    try:
        config = new_config(options)
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    if problems:
        raise Invalid(*problems)
    checkpoints = CheckpointConfig(every_minutes=None, at_end=False)
    config = msgspec.structs.replace(config, run="compare", checkpoints=checkpoints, preset_files=files)
    return config, named


def _name_collisions(presets: list[str]) -> list[str]:
    """Returns the problems of different presets with the same name, which a run could not distinguish."""
    places = {name_of(name): name for name in presets}
    return [
        f"preset {name}: {places[name_of(name)]} has the same name: rename its file"
        for name in dict.fromkeys(presets)
        if name != places[name_of(name)]
    ]


def _duplicates(names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _load_or_note(problems: list[str], load: Callable[..., T], *arguments: object) -> T | None:
    """Returns what `load` returns; if it raises Invalid, adds why to `problems` and returns None."""
    try:
        return load(*arguments)
    except Invalid as error:
        problems.extend(error.problems)
        return None


def _with_new_settings(config: RunConfig, settings: tuple[str, ...]) -> tuple[ModelConfig | UserModel, TrainingConfig]:
    """Returns model and training of a resumed run, changed by `settings`. Raises Invalid."""
    if isinstance(config.model, UserModel):
        return with_user_settings(config.model, config.training, settings)
    tables = {"summary": "", "model": msgspec.to_builtins(config.model)}
    tables["training"] = msgspec.to_builtins(config.training)
    preset = with_settings(tables, settings, f"--set {' '.join(settings)}")
    return preset.model, preset.training


def _preset_problems(preset: str | None, options: argparse.Namespace) -> list[str]:
    switches: list[ScheduledSwitch] = getattr(options, "switch", [])
    others: list[str] = getattr(options, "presets", [])
    named = dict.fromkeys((*filter(None, [preset]), *others), "")
    for switch in switches:
        named.setdefault(switch.preset, f"--switch {switch.step}:{switch.preset}: ")
    problems: list[str] = []
    for name, flag in named.items():
        try:
            load_preset(name)
        except Invalid as error:
            problems += (f"{flag}{problem}" for problem in error.problems)
    return problems


def absolute(preset: str) -> str:
    """Returns a preset file's absolute path, so that a run can resume from another directory; a name is unchanged."""
    with contextlib.suppress(RuntimeError):  # an unknown ~user is reported when the file is read
        return str(Path(preset).expanduser().absolute()) if is_file(preset) else preset
    return preset
