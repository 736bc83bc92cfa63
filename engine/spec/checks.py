"""Checks of a run's config, made before any device work."""

from .config import EvaluationConfig, RunConfig
from .model_checks import model_checks
from .model_config import ModelConfig
from .training_checks import training_checks


def problems_of(config: RunConfig) -> list[str]:
    """Returns what is wrong with the numbers in `config`, one line each. Needs no device."""
    model, training, memory = config.model, config.training, config.device_memory
    every, minutes = config.checkpoints.every_steps, config.checkpoints.every_minutes
    between = config.check_devices
    checks = model_checks(model, training) if isinstance(model, ModelConfig) else []
    checks += training_checks(training, is_built_in=isinstance(model, ModelConfig))
    checks += _evaluation_checks(config.evaluation) if config.evaluation else []
    checks += [
        (0 <= config.seed < 2**32, f"--seed {config.seed}: must be from 0 to {2**32 - 1}"),
        (config.devices is None or config.devices >= 1, f"--devices {config.devices}: must be at least 1"),
        (config.processes >= 1, f"--processes {config.processes}: must be at least 1"),
        (config.steps is None or config.steps >= 1, f"--steps {config.steps}: must be at least 1"),
        (every is None or every >= 1, f"--checkpoint-every {every}: must be at least 1"),
        (minutes is None or minutes > 0, f"--checkpoint-minutes {minutes}: must be above 0, or 0 for never"),
        (config.checkpoints.keep >= 1, f"--keep {config.checkpoints.keep}: must be at least 1"),
        (between is None or between >= 1, f"--check-devices {between}: must be at least 1"),
        (memory is None or memory >= 1, f"--device-memory {memory}: must be at least 1 byte"),
        (config.keep_programs >= 0, f"--keep-programs {config.keep_programs}: must be 0 bytes or more"),
        (
            config.stop_seconds is None or config.stop_seconds > 0,
            f"--stop-timeout {config.stop_seconds}: must be above 0, or 0 for no limit",
        ),
    ]
    problems = [text for holds, text in checks if not holds]
    steps = [switch.step for switch in config.switches]
    for switch in config.switches:
        if steps.count(switch.step) > 1:
            problems.append(
                f"--switch {switch.step}:{switch.preset}: another switch is scheduled after that step: keep only one"
            )
        if problem := _switch_problem(switch.step, config.steps):
            problems.append(f"--switch {switch.step}:{switch.preset}: {problem}")
    return problems


def _switch_problem(step: int, steps: int | None) -> str | None:
    """Why a run of `steps` steps cannot switch after `step`."""
    if step < 1:
        return "the earliest switch is after step 1: give 1 or more"
    if steps is None or step < steps:
        return None
    earlier = f", or switch after step {'1' if steps == 2 else f'1 to {steps - 1}'}" if steps > 1 else ""
    return f"step {step} is not before the last one, {steps}: give --steps {step + 1} or more{earlier}"


def _evaluation_checks(evaluation: EvaluationConfig) -> list[tuple[bool, str]]:
    data, share = evaluation.data, evaluation.share
    return [
        (
            data is not None or share is not None,
            "--eval-every and --eval-batches: nothing is held out: add --eval-data PATH or --eval-share F",
        ),
        (data is None or share is None, f"--eval-data {data}: --eval-share {share} holds data out, too: omit one"),
        (share is None or 0 < share < 1, f"--eval-share {share}: must be above 0 and below 1, such as 0.01"),
        (evaluation.every_steps >= 1, f"--eval-every {evaluation.every_steps}: must be at least 1"),
        (evaluation.batches >= 1, f"--eval-batches {evaluation.batches}: must be at least 1"),
    ]
