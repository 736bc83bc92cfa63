"""What follows from the decoder's config: dtype, attention kernel, parameter count and FLOPs per token."""

from ..spec.config import SPLASH_BLOCKS, AttentionKernel, ModelConfig


def attention_kernel(config: ModelConfig, platform: str, seq_len: int) -> AttentionKernel:
    """Returns the kernel for sequences of this length: `auto` means splash on TPU if a block divides them."""
    if config.attention == "splash":
        return "splash" if platform == "tpu" else "splash-interpreted"
    fits = platform == "tpu" and seq_len % min(SPLASH_BLOCKS) == 0
    return "splash" if config.attention == "auto" and fits else "plain"


def splash_block(seq_len: int) -> int:
    """Returns the positions in a block of splash attention, for a multiple of 128 tokens."""
    return next(size for size in SPLASH_BLOCKS if seq_len % size == 0)


def query_block(seq_len: int) -> int:
    """Returns the queries in a block of plain attention: a quarter of a sequence of 2,048 tokens or more, else all."""
    return seq_len // 4 if seq_len >= 2048 and seq_len % 4 == 0 else seq_len


def compute_dtype(config: ModelConfig, platform: str) -> str:
    """Returns the dtype of activations: `auto` means float32 on CPU and bfloat16 elsewhere."""
    return ("float32" if platform == "cpu" else "bfloat16") if config.dtype == "auto" else config.dtype


def parameter_count(config: ModelConfig) -> int:
    """Returns the number of trainable elements, without the padding rows of the token table.

    (V + context)·D, per layer 4·D² + 4·D (attention), 2·D·F + F + D (MLP, or each expert), D·E (router of E experts),
    4·D (norms), and 2·D for the final norm.
    """
    d = config.embed
    layer = 4 * d * d + 4 * d + (config.experts or 1) * _mlp_parameters(config) + d * config.experts + 4 * d
    return (config.vocab + config.context) * d + config.layers * layer + 2 * d


def active_parameter_count(config: ModelConfig) -> int:
    """Returns the part of `parameter_count` that one token uses: only `experts_per_token` of the experts count."""
    idle = config.experts - config.experts_per_token if config.experts else 0
    return parameter_count(config) - config.layers * idle * _mlp_parameters(config)


def _mlp_parameters(config: ModelConfig) -> int:
    return 2 * config.embed * config.mlp + config.mlp + config.embed


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Returns the FLOPs of forward and backward pass: 6 per multiplying parameter + 12·L·D·T for attention.

    The formula is from PaLM, appendix B. The position table and the token lookup multiply nothing; the tied output
    layer does. The experts that a token is routed to count even if they have no capacity left for it.
    """
    multiplying = active_parameter_count(config) - config.context * config.embed
    return 6.0 * multiplying + 12.0 * config.layers * config.embed * seq_len
