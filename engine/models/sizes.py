"""How many parameters the decoder has, and how many operations a token takes."""

from ..spec.config import ModelConfig


def compute_dtype(config: ModelConfig, platform: str) -> str:
    return ("float32" if platform == "cpu" else "bfloat16") if config.dtype == "auto" else config.dtype


def parameter_count(config: ModelConfig) -> int:
    """Trainable elements, without the padding rows of the token table.

    (V + context)·D, per layer 4·D² + 4·D (attention), 2·D·F + F + D (MLP, or each expert), D·E (router of E experts),
    4·D (norms), and 2·D for the last norm.
    """
    d = config.embed
    layer = 4 * d * d + 4 * d + (config.experts or 1) * _mlp_parameters(config) + d * config.experts + 4 * d
    return (config.vocab + config.context) * d + config.layers * layer + 2 * d


def active_parameter_count(config: ModelConfig) -> int:
    """Those of `parameter_count` that a token passes through: of the experts as many as it is sent to."""
    idle = config.experts - config.experts_per_token if config.experts else 0
    return parameter_count(config) - config.layers * idle * _mlp_parameters(config)


def _mlp_parameters(config: ModelConfig) -> int:
    return 2 * config.embed * config.mlp + config.mlp + config.embed


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Forward and backward: 6 a parameter that multiplies, and 12·L·D·T for attention (PaLM, appendix B).

    The position table and the lookup of the token table multiply nothing; the tied output layer does. Of experts those
    count that a token is sent to, whether they have room for it or not.
    """
    multiplying = active_parameter_count(config) - config.context * config.embed
    return 6.0 * multiplying + 12.0 * config.layers * config.embed * seq_len
