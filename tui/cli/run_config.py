"""Turns the options of a command into the configuration of a run, with every check that needs no jax."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...engine.base.user_error import UserError, noting, refuse, together
from ...engine.spec.attempt import RESTARTS, Supervision
from ...engine.spec.checks import problems_of
from ...engine.spec.config import (
    MOST_PROMPTED,
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
from .options import absolute

T = TypeVar("T")


def new_config(options: argparse.Namespace) -> RunConfig:
    """Returns the configuration of a new run. Raises UserError with every problem that is found without jax."""
    name = options.model or "nano"
    preset = absolute(options.preset or "dp")
    problems = _preset_problems(preset, options)
    with together(problems):
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
        problems += problems_of(config)
        problems += problems_of_destinations(RunDirectory(run_directory.state_home() / config.run), config)
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
    preset = absolute(options.preset) if options.preset else None
    problems += _preset_problems(preset, options)
    with together(problems):
        model, training = with_settings(config.model, config.training, settings_of_options(options))
        config = msgspec.structs.replace(config, model=model, training=training, **run_settings(options, config))
        problems += problems_of(config)
        problems += problems_of_destinations(directory, config)
    return restart_of(options, tokenized(config, options))


def restart_of(options: argparse.Namespace, config: RunConfig) -> Restart:
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
    problems = [f"{flag} {value}: must be at least 1" for flag, value in given.items() if value < 1]
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
    named = list(map(name_of, options.presets))
    problems = [] if options.measured >= 1 else [f"--steps {options.measured}: must be at least 1"]
    files = tuple(absolute(name) for name in options.presets if is_file(name))
    problems += _name_collisions(options.presets)
    with together(problems):
        config = new_config(options)
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


def load_or_note(problems: list[str], load: Callable[..., T], *arguments: object) -> T | None:
    """Returns what `load` returns; if it raises UserError, adds why to `problems` and returns None."""
    with noting(problems):
        return load(*arguments)
    return None


def _preset_problems(preset: str | None, options: argparse.Namespace) -> list[str]:
    switches: list[ScheduledSwitch] = getattr(options, "switch", [])
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


def _given(**values: object) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def set_words(settings: Iterable[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def run_settings(options: argparse.Namespace, before: RunConfig | None = None) -> dict[str, Any]:
    """Returns the fields that a resumed run may change; those not given keep their values of `before`."""
    option = vars(options).get
    same = set(RunConfig.__struct_fields__) - {"model", "preset", "seed", "data", "metrics_to"}
    changes = _given(
        data=options.data and str(Path(options.data).absolute()),
        sampling=_sampling(options, before.sampling if before else None),
        switches=tuple(option("switch", ())) or None,
        metrics_to=chosen(option("metrics_to")),
        evaluation=_evaluation(options, before.evaluation if before else None),
        anomalies=_anomalies(options, before.anomalies if before else AnomalyConfig()),
        checkpoints=_checkpoints(options, before.checkpoints if before else CheckpointConfig()),
        **{name: option(name) for name in same & vars(options).keys()},
    )
    stop = option("stop_timeout")
    return changes if stop is None else changes | {"stop_seconds": stop or None}


def _sampling(options: argparse.Namespace, before: Sampling | None) -> Sampling | None:
    """Returns what a run samples every so many steps. Raises UserError."""
    every, prompt = getattr(options, "sample_every", None), getattr(options, "sample_prompt", None)
    if every is None and prompt is None:
        return before
    if every is None and before is None:
        raise UserError(f"--sample-prompt {prompt}: add --sample-every N, the steps between samples")
    problems = [] if every is None or every >= 1 else [f"--sample-every {every}: must be at least 1"]
    if prompt and len(prompt) > MOST_PROMPTED:
        problems.append(f"--sample-prompt: {len(prompt):,} characters: at most {MOST_PROMPTED:,}")
    refuse(problems)
    return msgspec.structs.replace(before or Sampling(), **_given(every_steps=every, prompt=prompt))


def _evaluation(options: argparse.Namespace, before: EvaluationConfig | None) -> EvaluationConfig | None:
    """Returns what is held out; None if nothing is and no option about it is given."""
    data: str | None = getattr(options, "eval_data", None)
    changes = _given(
        data=data and str(Path(data).absolute()),
        share=getattr(options, "eval_share", None),
        every_steps=getattr(options, "eval_every", None),
        batches=getattr(options, "eval_batches", None),
    )
    if {"data", "share"} & changes.keys():  # they replace what was held out before
        changes = {"data": None, "share": None, **changes}
    return msgspec.structs.replace(before or EvaluationConfig(), **changes) if changes else before


def _anomalies(options: argparse.Namespace, before: AnomalyConfig) -> AnomalyConfig:
    given = {name: getattr(options, name, None) for name in AnomalyConfig.__struct_fields__}
    return msgspec.structs.replace(before, **_given(**given))


def _checkpoints(options: argparse.Namespace, before: CheckpointConfig) -> CheckpointConfig:
    if "resume" not in options:  # a command that does not train
        return before
    directory = options.checkpoint_dir
    changes = _given(
        every_steps=options.checkpoint_every,
        every_minutes=options.checkpoint_minutes,
        keep=options.keep,
        directory=directory and (directory if "://" in directory else str(Path(directory).absolute())),
    )
    if options.checkpoint_minutes == 0:
        changes["every_minutes"] = None
    return msgspec.structs.replace(before, **changes)
