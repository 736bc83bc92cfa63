"""Checks of a run's config, its training and its model, made before any device work."""

import math

from msgspec.structs import asdict

from .config import MOST_PROMPTED, EvaluationConfig, RunConfig, Sampling, TrainingConfig
from .model_config import CUDNN_HEADS, CUDNN_WIDEST, SPLASH_BLOCKS, ModelConfig, Rope

MOST = 2**31 - 1
"""The largest number of steps, layers and the like: jax counts in int32."""


def problems_of(config: RunConfig) -> list[str]:
    """Returns the problems of the numbers in `config`, one line each."""
    model, training, memory = config.model, config.training, config.device_memory
    every, minutes = config.checkpoints.every_steps, config.checkpoints.every_minutes
    between, numbers = config.check_devices, config.anomalies.numbers_every
    checks = _model_checks(model, training) if isinstance(model, ModelConfig) else []
    checks += [*_number_checks(training), *_schedule_checks(training)]
    checks += _combination_checks(training, is_built_in=isinstance(model, ModelConfig))
    checks += _evaluation_checks(config.evaluation) if config.evaluation else []
    checks += _sampling_checks(config.sampling) if config.sampling else []
    checks += [
        (0 <= config.seed < 2**32, f"--seed {config.seed}: must be from 0 to {2**32 - 1}"),
        (config.devices is None or config.devices >= 1, f"--devices {config.devices}: must be at least 1"),
        (config.processes >= 1, f"--processes {config.processes}: must be at least 1"),
        (config.steps is None or config.steps >= 1, f"--steps {config.steps}: must be at least 1"),
        (every is None or every >= 1, f"--checkpoint-every {every}: must be at least 1"),
        (
            minutes is None or 0 < minutes < math.inf,
            f"--checkpoint-minutes {minutes}: must be above 0 and finite, or 0 for never",
        ),
        (config.checkpoints.keep >= 1, f"--keep {config.checkpoints.keep}: must be at least 1"),
        (between is None or between >= 1, f"--check-devices {between}: must be at least 1"),
        (numbers is None or numbers >= 0, f"--numbers-every {numbers}: must be at least 1, or 0 for never"),
        (memory is None or memory >= 1, f"--device-memory {memory}: must be at least 1 byte"),
        (0 <= config.margin < 1, f"--margin {config.margin:g}: must be from 0 to below 1, such as 0.05"),
        (config.keep_programs >= 0, f"--keep-programs {config.keep_programs}: must be 0 bytes or more"),
        (
            config.stop_seconds is None or 0 < config.stop_seconds < math.inf,
            f"--stop-timeout {config.stop_seconds}: must be above 0 and finite, or 0 for no limit",
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


def _sampling_checks(sampling: Sampling) -> list[tuple[bool, str]]:
    every, prompt = sampling.every_steps, sampling.prompt
    return [
        (every is not None, f"--sample-prompt {prompt}: add --sample-every N, the steps between samples"),
        (every is None or every >= 1, f"--sample-every {every}: must be at least 1"),
        (len(prompt) <= MOST_PROMPTED, f"--sample-prompt: {len(prompt):,} characters: at most {MOST_PROMPTED:,}"),
    ]


def _number_checks(training: TrainingConfig) -> list[tuple[bool, str]]:
    return [
        (training.batch_size >= 1, f"--batch-size {training.batch_size}: must be at least 1"),
        (training.seq_len >= 1, f"--seq-len {training.seq_len}: must be at least 1"),
        (0 < training.learning_rate < math.inf, f"learning_rate {training.learning_rate}: must be above 0, and finite"),
        (0 < training.grad_clip < math.inf, f"grad_clip {training.grad_clip}: must be above 0, and finite"),
        *_least(training, 0, "warmup_steps", "stable_steps", "decay_steps", "weight_decay", "z_loss"),
        (0 <= training.final_share <= 1, f"final_share {training.final_share}: must be from 0 to 1"),
        *_least(training, 1, "accumulate_steps"),
    ]


def _least(config: TrainingConfig | ModelConfig, least: int, *names: str) -> list[tuple[bool, str]]:
    values = [(name, getattr(config, name)) for name in names]
    must = "at least 1" if least else "0 or more"
    return [
        (least <= value <= MOST, f"{name} {value}: must be {f'at most {MOST:,}' if value > MOST else must}")
        for name, value in values
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


def _model_checks(model: ModelConfig, training: TrainingConfig) -> list[tuple[bool, str]]:
    """Pairs of whether a condition holds and the problem to report if it does not."""
    return [
        *_least(model, 1, "layers", "heads", "embed", "mlp"),
        (model.vocab >= 256, f"vocab {model.vocab}: must be at least 256, since the tokens are bytes"),
        (model.vocab_rows >= model.vocab, f"vocab_rows {model.vocab_rows}: must be at least vocab, {model.vocab}"),
        (0 <= model.dropout < 1, f"dropout {model.dropout}: must be at least 0 and below 1"),
        (model.experts >= 0, f"experts {model.experts}: must be 1 or more, or 0 for a dense MLP"),
        (
            model.experts < 1 or 1 <= model.experts_per_token <= model.experts,
            f"experts_per_token {model.experts_per_token}: must be from 1 to experts, {model.experts}",
        ),
        (
            0 <= model.capacity_factor < math.inf,
            f"capacity_factor {model.capacity_factor}: must be above 0, or 0 for no limit",
        ),
        (
            model.expert_matmul != "ragged" or model.capacity_factor == 0,
            f"expert_matmul ragged: with capacity_factor {model.capacity_factor} experts compute the slots of their "
            "capacity: add --set capacity_factor=0 or --set expert_matmul=auto",
        ),
        (
            model.expert_matmul != "ragged" or model.biases != "all",
            "expert_matmul ragged: experts add no biases: add --set biases=none or --set expert_matmul=auto",
        ),
        (
            model.heads < 1 or model.head_width > 0 or model.embed % model.heads == 0,
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
            f"of {CUDNN_HEADS} up to {CUDNN_WIDEST}: change heads, or add --set attention=plain"
            if model.fits_ring
            else _no_kernel("cudnn"),
        ),
        (
            model.attention != "cudnn" or model.dtype != "float32",
            "dtype float32: cuDNN's attention takes bfloat16: add --set dtype=bfloat16 or --set attention=plain",
        ),
        (model.attention != "ring" or model.fits_ring, _no_kernel("ring")),
        (
            training.seq_len <= model.context or (model.rope is not None and model.rope.scaling == "dynamic"),
            f"--seq-len {training.seq_len} is longer than the model's context of {model.context}: "
            f"add --set context={training.seq_len}",
        ),
        *_family_checks(model),
    ]


def _no_kernel(kernel: str) -> str:
    return f"attention {kernel}: it computes no windows and no capped scores: add --set attention=auto"


def _family_checks(model: ModelConfig) -> list[tuple[bool, str]]:
    least_0 = ("norm_epsilon", "kv_heads", "head_width", "score_width", "window", "global_every", "score_cap")
    values = {name: getattr(model, name) for name in (*least_0, "logit_cap", "balance")}
    ropes = {name: rope for name in ("rope", "local_rope") if (rope := getattr(model, name))}
    has_rope = model.rope is not None or model.local_rope is None
    return [
        *((0 <= value < math.inf, f"{name} {value}: must be 0 or more") for name, value in values.items()),
        (
            model.heads < 1 or model.kv_heads < 0 or model.heads % model.key_heads == 0,
            f"heads {model.heads} does not divide by kv_heads {model.kv_heads}: change one of them",
        ),
        (
            not ropes or model.heads < 1 or model.head_dim % 2 == 0,
            f"heads of width {model.head_dim}: rotary positions need an even width: change head_width",
        ),
        (has_rope, "local_rope: the other layers have learned positions: give rope, too"),
        (not model.global_every or model.window > 0, f"global_every {model.global_every}: give window, too"),
        (not model.norm_offset or model.norm == "rms", 'norm_offset: LayerNorm has none: set norm = "rms"'),
        *(check for name, rope in ropes.items() for check in _rope_checks(name, rope)),
    ]


def _rope_checks(name: str, rope: Rope) -> list[tuple[bool, str]]:
    needs_context = rope.scaling in ("dynamic", "llama3", "yarn")
    return [
        (1 < rope.theta < math.inf, f"{name}: theta {rope.theta}: must be above 1"),
        *(
            (value is None or 0 < value < math.inf, f"{name}: {field} {value}: must be above 0, and finite")
            for field, value in asdict(rope).items()
            if field.endswith("factor") or field.startswith("beta")
        ),
        (
            not needs_context or rope.original_context >= 1,
            f"{name}: original_context {rope.original_context}: scaling {rope.scaling} needs 1 or more",
        ),
        (
            rope.low_frequency_factor < rope.high_frequency_factor,
            f"{name}: low_frequency_factor {rope.low_frequency_factor}: must be below "
            f"high_frequency_factor {rope.high_frequency_factor}",
        ),
        (
            rope.beta_slow < rope.beta_fast,
            f"{name}: beta_slow {rope.beta_slow}: must be below beta_fast {rope.beta_fast}",
        ),
    ]
