"""Checks of a training config, made before any device work."""

from .config import TrainingConfig


def training_checks(training: TrainingConfig, is_built_in: bool) -> list[tuple[bool, str]]:
    """Pairs of whether a condition holds and the problem to report if it does not.

    `is_built_in`: the model is the built-in decoder.
    """
    return [*_number_checks(training), *_schedule_checks(training), *_combination_checks(training, is_built_in)]


def _number_checks(training: TrainingConfig) -> list[tuple[bool, str]]:
    return [
        (training.batch_size >= 1, f"--batch-size {training.batch_size}: must be at least 1"),
        (training.seq_len >= 1, f"--seq-len {training.seq_len}: must be at least 1"),
        (training.learning_rate > 0, f"learning_rate {training.learning_rate}: must be above 0"),
        (training.warmup_steps >= 0, f"warmup_steps {training.warmup_steps}: must be 0 or more"),
        (training.grad_clip > 0, f"grad_clip {training.grad_clip}: must be above 0"),
        (training.stable_steps >= 0, f"stable_steps {training.stable_steps}: must be 0 or more"),
        (training.decay_steps >= 0, f"decay_steps {training.decay_steps}: must be 0 or more"),
        (0 <= training.final_share <= 1, f"final_share {training.final_share}: must be from 0 to 1"),
        (training.z_loss >= 0, f"z_loss {training.z_loss}: must be 0 or more"),
        (training.accumulate_steps >= 1, f"accumulate_steps {training.accumulate_steps}: must be at least 1"),
    ]


def _schedule_checks(training: TrainingConfig) -> list[tuple[bool, str]]:
    schedule = training.schedule
    return [
        (
            schedule == "constant" or training.decay_steps != 0,
            f"schedule {schedule}: decay_steps is missing: add --set decay_steps=N, over which the learning rate falls",
        ),
        (
            schedule != "constant" or training.decay_steps == 0,
            f"decay_steps {training.decay_steps}: a constant schedule has no decay: add --set schedule=cosine, linear "
            "or warmup-stable-decay",
        ),
        (
            schedule == "warmup-stable-decay" or training.stable_steps == 0,
            f"stable_steps {training.stable_steps}: schedule {schedule} has none: "
            "add --set schedule=warmup-stable-decay",
        ),
    ]


def _combination_checks(training: TrainingConfig, is_built_in: bool) -> list[tuple[bool, str]]:
    batch, count = training.batch_size, training.accumulate_steps
    return [
        (
            training.optimizer != "adafactor" or training.moment_dtype == "auto",
            f"moment_dtype {training.moment_dtype}: adafactor has no first moment: omit it, or take another optimizer",
        ),
        (
            is_built_in or training.z_loss == 0,
            f"z_loss {training.z_loss}: only the built-in model has it: add it to the loss in your file",
        ),
        (
            count < 1 or batch % count == 0,
            f"accumulate_steps {count}: --batch-size {batch} does not divide by it: "
            f"use a divisor of {batch}, or a batch of {-(-batch // max(count, 1)) * count}",
        ),
    ]
