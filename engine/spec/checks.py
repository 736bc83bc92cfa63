"""Checks of a run's config, made before any device work."""

import math

from .config import CUDNN_HEADS, CUDNN_WIDEST, SPLASH_BLOCKS, ModelConfig, RunConfig, TrainingConfig


def problems_of(config: RunConfig) -> list[str]:
    """Returns what is wrong with the numbers in `config`, one line each. Needs no device."""
    model, training, memory = config.model, config.training, config.device_memory
    every, minutes = config.checkpoints.every_steps, config.checkpoints.every_minutes
    checks = _model_checks(model, training) if isinstance(model, ModelConfig) else []
    checks += [
        (training.batch_size >= 1, f"--batch-size {training.batch_size}: must be at least 1"),
        (training.seq_len >= 1, f"--seq-len {training.seq_len}: must be at least 1"),
        (training.learning_rate > 0, f"learning_rate {training.learning_rate}: must be above 0"),
        (training.warmup_steps >= 0, f"warmup_steps {training.warmup_steps}: must be 0 or more"),
        (training.grad_clip > 0, f"grad_clip {training.grad_clip}: must be above 0"),
        (0 <= config.seed < 2**32, f"--seed {config.seed}: must be from 0 to {2**32 - 1}"),
        (config.devices is None or config.devices >= 1, f"--devices {config.devices}: must be at least 1"),
        (config.processes >= 1, f"--processes {config.processes}: must be at least 1"),
        (config.steps is None or config.steps >= 1, f"--steps {config.steps}: must be at least 1"),
        (every is None or every >= 1, f"--checkpoint-every {every}: must be at least 1"),
        (minutes is None or minutes > 0, f"--checkpoint-minutes {minutes}: must be above 0, or 0 for never"),
        (config.checkpoints.keep >= 1, f"--keep {config.checkpoints.keep}: must be at least 1"),
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


def _model_checks(model: ModelConfig, training: TrainingConfig) -> list[tuple[bool, str]]:
    """Pairs of whether a condition holds and the problem to report if it does not."""
    return [
        (model.layers >= 1, f"layers {model.layers}: must be at least 1"),
        (model.heads >= 1, f"heads {model.heads}: must be at least 1"),
        (model.embed >= 1, f"embed {model.embed}: must be at least 1"),
        (model.mlp >= 1, f"mlp {model.mlp}: must be at least 1"),
        (model.vocab >= 256, f"vocab {model.vocab}: must be at least 256, since the tokens are bytes"),
        (model.vocab_rows >= model.vocab, f"vocab_rows {model.vocab_rows}: must be at least vocab, {model.vocab}"),
        (0 <= model.dropout < 1, f"dropout {model.dropout}: must be at least 0 and below 1"),
        (model.experts >= 0, f"experts {model.experts}: must be 1 or more, or 0 for a dense MLP"),
        (
            model.experts < 1 or 1 <= model.experts_per_token <= model.experts,
            f"experts_per_token {model.experts_per_token}: must be from 1 to experts, {model.experts}",
        ),
        (0 < model.capacity_factor < math.inf, f"capacity_factor {model.capacity_factor}: must be above 0"),
        (
            model.heads < 1 or model.embed % model.heads == 0,
            f"embed {model.embed} does not divide by heads {model.heads}: change one of them",
        ),
        (
            model.attention != "splash" or training.seq_len % min(SPLASH_BLOCKS) == 0,
            f"--seq-len {training.seq_len}: splash attention takes multiples of {min(SPLASH_BLOCKS)}: "
            "change it, or add --set attention=plain",
        ),
        (
            model.attention != "cudnn" or model.heads < 1 or model.fits_cudnn,
            f"embed {model.embed} ÷ heads {model.heads}: cuDNN's attention takes heads of a multiple "
            f"of {CUDNN_HEADS} up to {CUDNN_WIDEST}: change heads, or add --set attention=plain",
        ),
        (
            model.attention != "cudnn" or model.dtype != "float32",
            "dtype float32: cuDNN's attention takes bfloat16: add --set dtype=bfloat16 or --set attention=plain",
        ),
        (
            training.seq_len <= model.context,
            f"--seq-len {training.seq_len} is longer than the model's context of {model.context}: "
            f"add --set context={training.seq_len}",
        ),
    ]
