"""What follows from the decoder's config: dtype, attention kernel, parameter count and FLOPs per token."""

from dataclasses import dataclass

from ..base.invalid import Invalid
from ..spec.config import SPLASH_BLOCKS, AttentionKernel, ModelConfig

LEAST_CAPABILITY = 8
"""The compute capability from which on a GPU has cuDNN's attention: Ampere's."""


@dataclass(frozen=True)
class AttentionKernels:
    """How attention is computed, by whether devices share a sequence."""

    whole: AttentionKernel
    """Where a device holds whole sequences."""
    split: AttentionKernel
    """Where the sequence is split over devices."""

    def of(self, seq_len: int, parts: int) -> AttentionKernel:
        """Returns the one for sequences of this length in `parts` parts.

        A ring needs parts of an even number of tokens, else attention is plain, and for splash of a multiple of 256.
        """
        if parts == 1:
            return self.whole
        if seq_len % (2 * parts):
            return "plain"
        fits = seq_len // parts % (2 * min(SPLASH_BLOCKS)) == 0
        return "ring" if self.split.startswith("ring") and not fits else self.split


PLAIN = AttentionKernels("plain", "plain")


def attention_kernels(config: ModelConfig, platform: str, seq_len: int, capability: str = "") -> AttentionKernels:
    """Returns how attention is computed, as `ModelConfig.attention` says.

    `capability` is the compute capability of the GPUs, `9.0` or `gfx90a`. Raises Invalid without a GPU for cuDNN.
    """
    asked, is_new_enough = config.attention, _generation(capability) >= LEAST_CAPABILITY
    fits_cudnn = is_new_enough and compute_dtype(config, platform) != "float32" and config.fits_cudnn
    whole: AttentionKernel = "plain"
    if asked == "cudnn":
        if not is_new_enough:
            raise Invalid(
                f"--set attention=cudnn: it needs a GPU of NVIDIA with compute capability {LEAST_CAPABILITY}.0 or "
                f"more, and the platform is {platform}{f' with {capability}' if capability else ''}: "
                "add --set attention=auto"
            )
        whole = "cudnn"
    elif asked == "splash":
        whole = "splash" if platform == "tpu" else "splash-interpreted"
    elif asked != "plain" and platform == "tpu" and seq_len % min(SPLASH_BLOCKS) == 0:
        whole = "splash"
    elif asked != "plain" and fits_cudnn:
        whole = "cudnn"
    split: AttentionKernel = "ring-splash" if platform == "tpu" else "ring"
    if asked == "plain" or (asked == "auto" and platform == "cpu"):
        split = "plain"
    elif whole == "splash-interpreted":
        split = "ring-splash-interpreted"
    return AttentionKernels(whole, split)


def _generation(capability: str) -> int:
    """The major version of a compute capability; 0 for that of other GPUs, which starts with letters."""
    major = capability.partition(".")[0]
    return int(major) if major.isdecimal() else 0


def tile_block(tokens: int) -> int:
    """Returns the positions in a block of scores of splash or ring attention; all, if no usual block divides them."""
    return next((size for size in SPLASH_BLOCKS if tokens % size == 0), tokens)


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
