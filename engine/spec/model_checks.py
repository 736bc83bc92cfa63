"""Checks of the built-in decoder's config, made before any device work."""

import math

from .config import TrainingConfig
from .model_config import CUDNN_HEADS, CUDNN_WIDEST, SPLASH_BLOCKS, ModelConfig, Rope


def model_checks(model: ModelConfig, training: TrainingConfig) -> list[tuple[bool, str]]:
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
    """Those of what a family does differently from GPT-2."""
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
        (0 < rope.factor < math.inf, f"{name}: factor {rope.factor}: must be above 0"),
        (
            not needs_context or rope.original_context >= 1,
            f"{name}: original_context {rope.original_context}: scaling {rope.scaling} needs 1 or more",
        ),
        (
            0 < rope.low_frequency_factor < rope.high_frequency_factor,
            f"{name}: low_frequency_factor {rope.low_frequency_factor}: must be above 0 and below "
            f"high_frequency_factor {rope.high_frequency_factor}",
        ),
        (
            0 < rope.beta_slow < rope.beta_fast,
            f"{name}: beta_slow {rope.beta_slow}: must be above 0 and below beta_fast {rope.beta_fast}",
        ),
    ]
