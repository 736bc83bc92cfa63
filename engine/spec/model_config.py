"""The config of the built-in decoder: its sizes, and its family's differences from GPT-2. No jax here."""

import math
from typing import Literal

from msgspec import Struct

AttentionKernel = Literal[
    "plain", "splash", "splash-interpreted", "cudnn", "ring", "ring-splash", "ring-splash-interpreted"
]
"""`ring-splash` is a ring whose devices use the TPU's kernel; `interpreted`: run slowly on other platforms."""
SPLASH_BLOCKS = (512, 256, 128)
"""Positions in a block of splash attention: the largest that divides the sequence. MaxText 0.2.5 uses 512."""
CUDNN_HEADS, CUDNN_WIDEST = 8, 128
"""`head_dim` for cuDNN's attention: a multiple of the first, at most the second on all GPUs that have it."""
RematPolicy = Literal[
    "full",
    "save_out_proj",
    "save_qkv_proj",
    "save_dot_except_mlp",
    "save_dot_with_context_except_mlp",
    "save_dot_except_mlpwi",
    "minimal",
    "minimal_with_context",
]
"""The activations of a block kept for its backward pass, by MaxText's names, roughly from least to most memory."""
PROJECTIONS = ("qkv_proj", "out_proj")
KEPT: dict[str, tuple[str, ...]] = {
    "full": (),
    "save_out_proj": ("out_proj",),
    "save_qkv_proj": ("qkv_proj",),
    "save_dot_except_mlp": PROJECTIONS,
    "save_dot_with_context_except_mlp": (*PROJECTIONS, "context"),
    "save_dot_except_mlpwi": (*PROJECTIONS, "mlpwo"),
    "minimal": (*PROJECTIONS, "mlpwi", "mlpwo"),
    "minimal_with_context": (*PROJECTIONS, "mlpwi", "mlpwo", "context"),
}
"""A policy's named activations besides the input: `context` is attention's result, `mlpwi` and `mlpwo` are the MLP's.
"""
POLICIES = tuple(policy for policy in KEPT if policy != "full")
"""The policies that keep more than a block's input."""
BALANCE = 0.01
"""Default weight of the experts' balance loss: α of Fedus et al. 2021, "Switch Transformers", section 2.2."""


class Rope(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rotary positions (Su et al. 2021, "RoFormer"), and how they are scaled for a longer context than was trained."""

    theta: float = 10_000.0
    """The base of the frequencies."""
    scaling: Literal["none", "linear", "dynamic", "llama3", "yarn"] = "none"
    """`linear` divides all frequencies by `factor`; `dynamic` (NTK) raises `theta` for sequences longer than
    `original_context`; `llama3` divides the low frequencies; `yarn` does so by Peng et al. 2023, "YaRN"."""
    factor: float = 1.0
    """How much longer the context becomes."""
    original_context: int = 0
    """The context before scaling, in tokens."""
    low_frequency_factor: float = 1.0
    """`llama3`: waves longer than `original_context` ÷ this are divided by `factor`."""
    high_frequency_factor: float = 4.0
    """`llama3`: waves shorter than `original_context` ÷ this stay as they are."""
    beta_fast: float = 32.0
    """`yarn`: waves with more rotations than this in `original_context` stay as they are."""
    beta_slow: float = 1.0
    """`yarn`: waves with fewer rotations than this are divided by `factor`."""
    truncate: bool = True
    """`yarn`: round the first and the last dim between these two outwards."""
    attention_factor: float | None = None
    """`yarn`: the factor of both sine and cosine; None for 0.1 · ln(`factor`) + 1."""


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="gpt"):
    """A decoder: GPT-2's, unless fields after `capacity_factor` say what another family does differently.

    Sizes are numbers of elements along the dim of that name.
    """

    layers: int
    """Blocks."""
    embed: int
    """Width of the residual stream."""
    heads: int
    """Attention heads in a block; `embed` is a multiple of it, unless `head_width` is given."""
    mlp: int
    """Hidden width of the MLP, or of each expert."""
    vocab: int
    """Distinct tokens."""
    vocab_rows: int
    """Rows of the token embedding, `vocab` or more. Padding rows make it divisible; their logits are masked."""
    context: int
    """The longest sequence that the model can read; with learned positions, the rows of their embedding."""
    dropout: float = 0.1
    """Probability that an element is dropped in training."""
    remat: bool | RematPolicy | Literal["auto"] = False
    """Recompute each block's activations in the backward pass instead of keeping them: `true` is `full`, all but the
    block's input. The other policies, by MaxText's names, also keep results of matmuls. `auto`: in training, for each
    preset the policy that recomputes least and fits the devices' memory; elsewhere `full`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The dtype of the computation; parameters are float32. `auto`: bfloat16 on accelerators, float32 on CPU."""
    attention: Literal["auto", "plain", "splash", "cudnn", "ring"] = "auto"
    """`plain` holds all attention scores; `splash`, a kernel for TPU, and `cudnn`, one for NVIDIA's GPUs, a block of
    them. `ring` does so for a sequence that is split over devices, and is `auto` for others. `auto`: splash on TPU if
    the sequence is a multiple of 128 tokens, cudnn on a GPU of compute capability 8.0 or more in bfloat16 if `head_dim`
    is a multiple of 8 and at most 128, plain otherwise. If the sequence is split, all but `plain` are ring, except that
    `auto` is plain on CPU; and plain, if the shards have an odd number of tokens."""
    experts: int = 0
    """Expert MLPs in each block, to which tokens are routed; 0 for a dense MLP."""
    experts_per_token: int = 1
    """Experts that each token is routed to."""
    capacity_factor: float = 1.25
    """Tokens that an expert accepts, relative to its share if tokens were routed evenly. 0: it accepts all."""
    expert_matmul: Literal["auto", "dense", "ragged"] = "auto"
    """How experts that accept all tokens compute them. `ragged`: only those that are routed to them. `dense`: every
    token, and those that were not routed to an expert get no weight. `auto`: ragged on TPU from jax 0.12 on."""
    balance: float = BALANCE
    """Weight of the experts' balance loss in what is minimised."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019), which has neither mean nor bias."""
    norm_epsilon: float = 1e-5
    """Added to the variance, or to the mean square, by norms."""
    norm_offset: bool = False
    """The scale of an RMSNorm is 1 + its parameter, as in Gemma."""
    norm_places: Literal["pre", "post", "both"] = "pre"
    """Norms before each branch of a block, after it (OLMo 2), or both (Gemma 2 and 3)."""
    rope: Rope | None = None
    """Rotary positions; None for learned ones."""
    local_rope: Rope | None = None
    """Rotary positions of layers with a window; None for the same as the other layers."""
    kv_heads: int = 0
    """Heads of keys and values, each for `heads` ÷ `kv_heads` heads of queries (Ainslie et al. 2023, "GQA"); 0 for as
    many as `heads`."""
    head_width: int = 0
    """Width of a head; 0 for `embed` ÷ `heads`."""
    query_norm: Literal["none", "head", "full"] = "none"
    """RMSNorm of queries and keys: over each head (Qwen3, Gemma 3), or over all heads together (OLMo 2)."""
    score_width: float = 0.0
    """Attention scores are divided by the square root of this; 0 for the width of a head."""
    window: int = 0
    """Positions, with its own, that a token sees in layers with a window; 0 for no windows."""
    global_every: int = 0
    """One in this many layers has no window; 0 for a window in all."""
    score_cap: float = 0.0
    """Attention scores s become cap · tanh(s ÷ cap) (Gemma 2); 0 for no cap."""
    logit_cap: float = 0.0
    """The same for logits."""
    activation: Literal["gelu", "geglu", "swiglu"] = "gelu"
    """The MLP: GELU in its tanh form, or a product with a gate of GELU or SiLU (Shazeer 2020, "GLU Variants")."""
    biases: Literal["all", "qkv", "attention", "none"] = "all"
    """Linear maps that add a bias: all but the router, query, key and value (Qwen2), or all of attention."""
    tied: bool = True
    """The output layer uses the token embedding; else it has a table of its own."""
    embed_scaled: bool = False
    """Token embeddings are multiplied by √`embed` (Gemma)."""

    @property
    def head_dim(self) -> int:
        return self.head_width or self.embed // max(1, self.heads)

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def is_grouped(self) -> bool:
        return self.key_heads != self.heads

    @property
    def is_gated(self) -> bool:
        return self.activation != "gelu"

    @property
    def local_layers(self) -> tuple[bool, ...]:
        """Whether the layers of one period have a window: the pattern repeats from layer to layer."""
        if not self.window or not self.global_every:
            return (bool(self.window),)
        return (*[True] * (self.global_every - 1), False)

    def window_of(self, layer: int) -> int:
        return self.window if self.local_layers[layer % len(self.local_layers)] else 0

    @property
    def fits_cudnn(self) -> bool:
        """Whether cuDNN's attention takes heads of this width, without windows and capped scores."""
        return self.head_dim % CUDNN_HEADS == 0 and self.head_dim <= CUDNN_WIDEST and self.fits_ring

    @property
    def fits_ring(self) -> bool:
        """Whether a ring computes these scores: it has no windows and no caps."""
        return not self.window and not self.score_cap

    def capacity(self, seq_len: int) -> int:
        """Tokens of a sequence that an expert accepts (Fedus et al. 2021, "Switch Transformers", equation 3)."""
        if not self.capacity_factor:
            return seq_len
        return min(seq_len, math.ceil(seq_len * self.experts_per_token * self.capacity_factor / self.experts))
