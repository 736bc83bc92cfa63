"""Turns the options of a command into the configuration of a run, with every check that needs no jax."""

import argparse
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from ...engine.base.user_error import UserError, noting, refuse, together
from ...engine.spec.attempt import RESTARTS, Supervision
from ...engine.spec.checks import problems_of
from ...engine.spec.config import (
    AnomalyConfig,
    CheckpointConfig,
    EvaluationConfig,
    Restart,
    RunConfig,
    Sampling,
    ScheduledSwitch,
)
from ...engine.spec.model_choice import choose_model, with_settings
from ...engine.spec.preset_reader import is_file, load_preset, name_of
from ...engine.wire import run_directory
from ...engine.wire.run_directory import RunDirectory
from .data import tokenized
from .destinations import chosen, problems_of_destinations

T = TypeVar("T")

PARTS: dict[str, tuple[msgspec.Struct, dict[str, str]]] = {
    "sampling": (Sampling(), {"sample_every": "every_steps", "sample_prompt": "prompt"}),
    "evaluation": (
        EvaluationConfig(),
        {"eval_data": "data", "eval_share": "share", "eval_every": "every_steps", "eval_batches": "batches"},
    ),
    "anomalies": (AnomalyConfig(), {name: name for name in AnomalyConfig.__struct_fields__}),
    "checkpoints": (
        CheckpointConfig(),
        {
            "checkpoint_every": "every_steps",
            "checkpoint_minutes": "every_minutes",
            "checkpoint_dir": "directory",
            "keep": "keep",
        },
    ),
}
"""Parts of a `RunConfig`: their defaults, and the field that each option sets."""


def new_config(options: argparse.Namespace) -> RunConfig:
    """Returns the configuration of a new run. Raises UserError with every problem that is found without jax."""
    name = options.model or "nano"
    preset = options.preset or "dp"
    problems = _preset_problems(preset, options)
    with together(problems):
        model = choose_model(name, settings_of_options(options))
        run = options.run_name or run_directory.free_name(model.run_name)
        config = model.config(run, preset, seed=options.seed or 0, **run_settings(options))
        problems += problems_of(config)
        directory = RunDirectory(run_directory.state_home() / run)
        problems += problems_of_destinations(directory, config.metrics_to)
    return tokenized(config, options)


def resumed(directory: RunDirectory, options: argparse.Namespace) -> Restart:
    """Returns how a run resumes. Raises UserError with every problem."""
    config = directory.config
    if (holder := directory.holder()) and holder.is_alive:
        raise UserError(
            f"run {directory.name}: {holder.description} is training it: `shardtui attach {directory.name}` shows it, "
            f"`shardtui stop {directory.name}` ends it"
        )
    if holder:
        raise UserError(
            f"run {directory.name}: {holder.description} holds {directory.lock}: find that process with `fuser` "
            "and end it"
        )
    given = {"--model": options.model, "--seed": options.seed, "--run": options.run_name}
    problems = [
        f"{flag} {value}: a resumed run keeps its own: omit {flag}, or start a new run"
        for flag, value in given.items()
        if value is not None
    ]
    problems += _preset_problems(options.preset, options)
    with together(problems):
        model, training = with_settings(config.model, config.training, settings_of_options(options))
        config = msgspec.structs.replace(config, model=model, training=training, **run_settings(options, config))
        problems += problems_of(config)
        problems += problems_of_destinations(directory, config.metrics_to)
    return restart_of(options, tokenized(config, options))


def restart_of(options: argparse.Namespace, config: RunConfig) -> Restart:
    return Restart(
        step=options.from_step,
        preset=options.preset,
        other_data=options.other_data,
        profile=options.profile,
        profile_every=options.profile_every,
        config=config,
    )


def supervision(options: argparse.Namespace) -> Supervision | None:
    """Returns how a run is supervised; None without --supervise. Raises UserError."""
    numbers = {
        "--restarts": options.restarts,
        "--min-processes": options.min_processes,
        "--wait-for-host": getattr(options, "wait_for_host", None),
    }
    given = {flag: value for flag, value in numbers.items() if value is not None}
    if not options.supervise:
        unused = given | ({"--fallback": ",".join(options.fallback)} if options.fallback else {})
        if unused:
            only = "only for a supervised run: add --supervise"
            raise UserError(*(f"{flag} {value}: {only}" for flag, value in unused.items()))
        return None
    problems = [
        f"{flag} {value}: must be {'finite' if value == math.inf else 'at least 1'}"
        for flag, value in given.items()
        if not 1 <= value < math.inf
    ]
    for preset in options.fallback:
        with noting(problems):
            load_preset(preset)
    refuse(problems)
    restarts, least, wait = numbers.values()
    return Supervision(
        restarts=RESTARTS if restarts is None else restarts,
        min_processes=least,
        wait_seconds=wait,
        fallback=options.fallback,
    )


def compared(options: argparse.Namespace) -> tuple[RunConfig, list[str]]:
    """Returns the run that measures presets, and their names; empty if none is named. Raises UserError."""
    options.preset, options.run_name = None, None
    presets: list[str] = options.presets
    named = list(map(name_of, presets))
    problems = [] if options.measured >= 1 else [f"--steps {options.measured}: must be at least 1"]
    files = tuple(filter(is_file, presets))
    places = dict(zip(named, presets, strict=True))  # a run could not distinguish presets of one name
    problems += [
        f"preset {name}: {places[name_of(name)]} has the same name: rename its file"
        for name in dict.fromkeys(presets)
        if name != places[name_of(name)]
    ]
    with together(problems):
        config = new_config(options)
    checkpoints = CheckpointConfig(every_minutes=None, at_end=False)
    config = msgspec.structs.replace(config, run="compare", checkpoints=checkpoints, preset_files=files)
    return config, named


def load_or_note(problems: list[str], load: Callable[..., T], *arguments: object) -> T | None:
    """Returns what `load` returns; if it raises UserError, adds why to `problems` and returns None."""
    with noting(problems):
        return load(*arguments)
    return None


def _preset_problems(preset: str | None, options: argparse.Namespace) -> list[str]:
    switches: list[ScheduledSwitch] = getattr(options, "switches", [])
    others: list[str] = getattr(options, "presets", [])
    named = dict.fromkeys((*filter(None, [preset]), *others), "")
    for switch in switches:
        named.setdefault(switch.preset, f"--switch {switch.step}:{switch.preset}: ")
    problems: list[str] = []
    for name, flag in named.items():
        found: list[str] = []
        with noting(found):
            load_preset(name)
        problems += (f"{flag}{problem}" for problem in found)
    return problems


def settings_of_options(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the settings of the model and the training that are given, as `--set` takes them."""
    given = {"batch_size": options.batch_size, "seq_len": options.seq_len}
    return (*(f"{key}={value}" for key, value in given.items() if value is not None), *options.set)


def set_words(settings: Iterable[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def run_settings(options: argparse.Namespace, before: RunConfig | None = None) -> dict[str, Any]:
    """Returns the fields that a resumed run may change; those not given keep their values of `before`."""
    given = {name: value for name, value in vars(options).items() if value not in (None, [])}
    given |= {name: None for name in ("checkpoint_minutes", "stop_seconds") if given.get(name) == 0}
    same = set(RunConfig.__struct_fields__) - {"model", "preset", "seed"}
    changes = {name: given[name] for name in same & given.keys()}
    if "switches" in changes:
        changes["switches"] = tuple(changes["switches"])
    if "metrics_to" in changes:
        changes["metrics_to"] = chosen(changes["metrics_to"])
    for part, (default, fields) in PARTS.items():
        values = {field: given[name] for name, field in fields.items() if name in given}
        if part == "evaluation" and {"data", "share"} & values.keys():  # they replace what was held out before
            values = {"data": None, "share": None, **values}
        if values:
            changes[part] = msgspec.structs.replace((before and getattr(before, part)) or default, **values)
    return changes
