"""The decoder's dtype, attention kernel and FLOPs, by its config and the platform.

Dims as in decoder.py, and K heads of keys.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import jax

from ..base.user_error import UserError
from ..spec.model_config import SPLASH_BLOCKS, AttentionKernel, ModelConfig
from .array import Array

LEAST_CAPABILITY = 8
"""The compute capability from which on a GPU has cuDNN's attention: Ampere's."""


@dataclass(frozen=True)
class AttentionKernels:
    """Attention kernels for sequences `whole` on a device, and `split` over devices."""

    whole: AttentionKernel
    split: AttentionKernel

    def of(self, seq_len: int, parts: int) -> AttentionKernel:
        """Returns the kernel for sequences of this length in `parts` parts. A ring needs parts of an even number of
        tokens, else attention is plain, and for splash of a multiple of 256."""
        if parts == 1:
            return self.whole
        if seq_len % (2 * parts):
            return "plain"
        fits = seq_len // parts % (2 * min(SPLASH_BLOCKS)) == 0
        return "ring" if self.split.startswith("ring") and not fits else self.split


PLAIN = AttentionKernels("plain", "plain")


def attention_kernels(config: ModelConfig, platform: str, seq_len: int, capability: str = "") -> AttentionKernels:
    """Resolves `ModelConfig.attention`. `capability`: of the GPUs, `9.0` or `gfx90a`. Raises UserError without a GPU
    for cuDNN."""
    asked, is_new_enough = config.attention, _generation(capability) >= LEAST_CAPABILITY
    fits_cudnn = is_new_enough and compute_dtype(config, platform) != "float32" and config.fits_cudnn
    whole: AttentionKernel = "plain"
    if asked == "cudnn":
        if not is_new_enough:
            raise UserError(
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
    # With interpreted kernels in a ring, XLA's CPU runtime takes one permutation for another, and aborts.
    split: AttentionKernel = "ring-splash" if platform == "tpu" else "ring"
    if asked == "plain" or (asked == "auto" and platform == "cpu") or not config.fits_ring:
        split = "plain"
    return AttentionKernels(whole, split)


def _generation(capability: str) -> int:
    """The major version of a compute capability; 0 for other GPUs', which starts with letters."""
    major = capability.partition(".")[0]
    return int(major) if major.isdecimal() else 0


def tile_block(tokens: int) -> int:
    """Returns the positions in a block of splash or ring attention; all, if no usual block divides them."""
    return next((size for size in SPLASH_BLOCKS if tokens % size == 0), tokens)


def query_block(seq_len: int) -> int:
    """Returns the queries in a block of plain attention: a quarter of a sequence of 2,048 tokens or more, else all."""
    return seq_len // 4 if seq_len >= 2048 and seq_len % 4 == 0 else seq_len


def computed_scores(config: ModelConfig, seq_len: int) -> float:
    """Returns the share of attention scores in the blocks that a splash kernel computes, as a mean over the layers: it
    leaves out blocks above the diagonal and before a window."""
    block, layers = tile_block(seq_len), range(config.layers if config.window else 1)
    windows = (config.window_of(layer) for layer in layers)
    return sum(_computed(window, seq_len, block) for window in windows) / len(layers)


def _computed(window: int, seq_len: int, block: int) -> float:
    if not 0 < window < seq_len:
        return (1 + block / seq_len) / 2
    ends = range(block, seq_len + 1, block)
    keys = (end - max(0, end - block - window + 1) // block * block for end in ends)
    return sum(keys) * block / seq_len**2


def expert_matmul(config: ModelConfig, platform: str) -> Literal["dense", "ragged"]:
    """Resolves `ModelConfig.expert_matmul`. On TPU, the compiler of jax 0.10 takes for the gradient of a ragged
    product's kernels the FLOPs of all rows with every expert; jax 0.12's has a kernel for it. On other platforms all
    ragged products are dense ones."""
    if config.expert_matmul != "auto":
        return config.expert_matmul
    has_kernels = platform == "tpu" and jax.__version_info__ >= (0, 12)
    return "ragged" if has_kernels and not config.capacity_factor and config.biases != "all" else "dense"


def compute_dtype(config: ModelConfig, platform: str) -> str:
    """Returns the dtype of activations: `auto` means float32 on CPU and bfloat16 elsewhere."""
    return ("float32" if platform == "cpu" else "bfloat16") if config.dtype == "auto" else config.dtype


def flops_per_token(config: ModelConfig, parameters: Iterable[Array], seq_len: int) -> float:
    """Returns the FLOPs of the matrix products of forward and backward pass: 6 per element of the kernels and of the
    output layer's table, and 12·N·H·T per layer for attention, masked or not (Chowdhery et al. 2022, "PaLM", appendix
    B). A token's experts count even if they have no capacity left. In layers with a window T is at most the window."""
    kernels = sum(_used_elements(config, array) for array in parameters if array.names[0].endswith(".kernel"))
    positions = sum(min(seq_len, config.window_of(layer) or seq_len) for layer in range(config.layers))
    return 6.0 * (kernels + config.embed * config.vocab) + 12.0 * config.heads * config.head_dim * positions


def _used_elements(config: ModelConfig, kernel: Array) -> int:
    """Returns the elements of a kernel that a token uses: of all experts' only those of its own."""
    elements = math.prod(kernel.shape)
    is_of_experts = "experts" in kernel.logical_axes
    return elements * config.experts_per_token // config.experts if is_of_experts else elements
