"""What cannot be in the config of a run, found before any device work."""

import math

from .config import ModelConfig, RunConfig, TrainingConfig


def problems_of(config: RunConfig) -> list[str]:
    """What is wrong with the numbers of `config`, one line each with a way out. Needs no device."""
    model, training, memory = config.model, config.training, config.device_memory
    every, minutes = config.checkpoints.every_steps, config.checkpoints.every_minutes
    checks = _model_checks(model, training) if isinstance(model, ModelConfig) else []
    checks += [
        (training.batch_size >= 1, f"--batch-size {training.batch_size}: at least 1"),
        (training.seq_len >= 1, f"--seq-len {training.seq_len}: at least 1"),
        (training.learning_rate > 0, f"learning_rate {training.learning_rate}: above 0"),
        (training.warmup_steps >= 0, f"warmup_steps {training.warmup_steps}: 0 or more"),
        (training.grad_clip > 0, f"grad_clip {training.grad_clip}: above 0"),
        (0 <= config.seed < 2**32, f"--seed {config.seed}: from 0 to {2**32 - 1}"),
        (config.devices is None or config.devices >= 1, f"--devices {config.devices}: at least 1"),
        (config.processes >= 1, f"--processes {config.processes}: at least 1"),
        (config.steps is None or config.steps >= 1, f"--steps {config.steps}: at least 1"),
        (every is None or every >= 1, f"--checkpoint-every {every}: at least 1"),
        (minutes is None or minutes > 0, f"--checkpoint-minutes {minutes}: above 0, or 0 for never"),
        (config.checkpoints.keep >= 1, f"--keep {config.checkpoints.keep}: at least 1"),
        (memory is None or memory >= 1, f"--device-memory {memory}: at least 1 byte"),
        (config.keep_programs >= 0, f"--keep-programs {config.keep_programs}: 0 or more bytes"),
        (
            config.stop_seconds is None or config.stop_seconds > 0,
            f"--stop-timeout {config.stop_seconds}: above 0, or 0 for no limit",
        ),
    ]
    problems = [text for holds, text in checks if not holds]
    steps = [switch.step for switch in config.switches]
    for switch in config.switches:
        if steps.count(switch.step) > 1:
            problems.append(f"--switch {switch.step}:{switch.preset}: another switch falls on that step: choose one")
        if problem := _switch_problem(switch.step, config.steps):
            problems.append(f"--switch {switch.step}:{switch.preset}: {problem}")
    return problems


def _switch_problem(step: int, steps: int | None) -> str | None:
    """Why a run of so many steps has no switch there."""
    if step < 1:
        return "a switch falls after the first step or later: give 1 or more"
    if steps is None or step < steps:
        return None
    earlier = f", or switch after step {'1' if steps == 2 else f'1 to {steps - 1}'}" if steps > 1 else ""
    return f"step {step} is not before the last one, {steps}: give --steps {step + 1} or more{earlier}"


def _model_checks(model: ModelConfig, training: TrainingConfig) -> list[tuple[bool, str]]:
    """What has to hold, and what to say where it does not."""
    return [
        (model.layers >= 1, f"layers {model.layers}: at least 1"),
        (model.heads >= 1, f"heads {model.heads}: at least 1"),
        (model.embed >= 1, f"embed {model.embed}: at least 1"),
        (model.mlp >= 1, f"mlp {model.mlp}: at least 1"),
        (model.vocab >= 256, f"vocab {model.vocab}: the tokens are bytes: at least 256"),
        (model.vocab_rows >= model.vocab, f"vocab_rows {model.vocab_rows}: at least vocab, {model.vocab}"),
        (0 <= model.dropout < 1, f"dropout {model.dropout}: from 0 to below 1"),
        (model.experts >= 0, f"experts {model.experts}: 1 or more, or 0 for a dense MLP"),
        (
            model.experts < 1 or 1 <= model.experts_per_token <= model.experts,
            f"experts_per_token {model.experts_per_token}: from 1 to experts, {model.experts}",
        ),
        (0 < model.capacity_factor < math.inf, f"capacity_factor {model.capacity_factor}: above 0"),
        (
            model.heads < 1 or model.embed % model.heads == 0,
            f"embed {model.embed} does not divide by heads {model.heads}: set one of them",
        ),
        (
            training.seq_len <= model.context,
            f"--seq-len {training.seq_len} is longer than the model's context of {model.context}: "
            f"add --set context={training.seq_len}",
        ),
    ]
