"""What the options of a command set in the configuration of a run."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ...engine.base.invalid import Invalid
from ...engine.spec.config import MOST_PROMPTED, CheckpointConfig, EvaluationConfig, RunConfig, Sampling


def settings_of_options(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the settings of the model and the training that are given, as `--set` takes them."""
    given = {"batch_size": options.batch_size, "seq_len": options.seq_len}
    return (*(f"{key}={value}" for key, value in given.items() if value is not None), *options.set)


def set_words(settings: Iterable[str]) -> list[str]:
    """Returns settings as words of a command."""
    return [word for setting in settings for word in ("--set", setting)]


def run_settings(options: argparse.Namespace, before: RunConfig | None = None) -> dict[str, Any]:
    """Returns the fields that a resumed run may change; those not given keep their values of `before`."""
    given = {
        "data": options.data and str(Path(options.data).absolute()),
        "devices": options.devices,
        "platform": options.platform,
        "processes": getattr(options, "processes", None),
        "device_memory": options.device_memory,
        "check_devices": getattr(options, "check_devices", None),
        "low_memory": getattr(options, "low_memory", None),
        "keep_programs": getattr(options, "keep_programs", None),
        "steps": getattr(options, "steps", None),
        "sampling": _sampling(options, before.sampling if before else None),
        "switches": tuple(getattr(options, "switch", ())) or None,
        "evaluation": _evaluation(options, before.evaluation if before else None),
        "checkpoints": _checkpoints(options, before.checkpoints if before else CheckpointConfig()),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    stop = getattr(options, "stop_timeout", None)
    return changes if stop is None else changes | {"stop_seconds": stop or None}


def _sampling(options: argparse.Namespace, before: Sampling | None) -> Sampling | None:
    """Returns what a run samples every so many steps. Raises Invalid."""
    every, prompt = getattr(options, "sample_every", None), getattr(options, "sample_prompt", None)
    if every is None and prompt is None:
        return before
    if every is None and before is None:
        raise Invalid(f"--sample-prompt {prompt}: add --sample-every N, the steps between samples")
    problems = [] if every is None or every >= 1 else [f"--sample-every {every}: must be at least 1"]
    if prompt and len(prompt) > MOST_PROMPTED:
        problems.append(f"--sample-prompt: {len(prompt):,} characters: at most {MOST_PROMPTED:,}")
    if problems:
        raise Invalid(*problems)
    given = {key: value for key, value in {"every_steps": every, "prompt": prompt}.items() if value is not None}
    return msgspec.structs.replace(before or Sampling(), **given)


def _evaluation(options: argparse.Namespace, before: EvaluationConfig | None) -> EvaluationConfig | None:
    """Returns what is held out; None if nothing is and no option about it is given."""
    data: str | None = getattr(options, "eval_data", None)
    given = {
        "data": data and str(Path(data).absolute()),
        "share": getattr(options, "eval_share", None),
        "every_steps": getattr(options, "eval_every", None),
        "batches": getattr(options, "eval_batches", None),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if {"data", "share"} & changes.keys():  # they replace what was held out before
        changes = {"data": None, "share": None, **changes}
    return msgspec.structs.replace(before or EvaluationConfig(), **changes) if changes else before


def _checkpoints(options: argparse.Namespace, before: CheckpointConfig) -> CheckpointConfig:
    if "resume" not in options:  # a command that does not train
        return before
    directory = options.checkpoint_dir
    given = {
        "every_steps": options.checkpoint_every,
        "every_minutes": options.checkpoint_minutes,
        "keep": options.keep,
        "directory": directory and (directory if "://" in directory else str(Path(directory).absolute())),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if options.checkpoint_minutes == 0:
        changes["every_minutes"] = None
    return msgspec.structs.replace(before, **changes)
