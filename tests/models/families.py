"""Tiny models like those of three families, for tests."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from shardtui.engine.models.decoder import Decoder
from shardtui.engine.spec.model_config import ModelConfig, Rope

from ..conftest import tiny_model


def like(**changes: object) -> ModelConfig:
    """Returns a tiny model with what Llama has in common with later families, and with changes of its fields."""
    common = {"heads": 4, "kv_heads": 2, "norm": "rms", "rope": Rope(), "activation": "swiglu", "biases": "none"}
    return tiny_model(**common | {"tied": False, "context": 32} | changes)


def logits_of(config: ModelConfig) -> Callable[[np.ndarray], jax.Array]:
    """Returns what computes the logits of tokens [B, T]. Parameters are made by one program, as eager operations are
    compiled one by one."""
    with nnx.use_eager_sharding(False):
        model = nnx.jit(lambda: Decoder(config, jnp.float32, nnx.Rngs(0)))()
    return partial(nnx.jit(Decoder.__call__), model)


LLAMA = like(rope=Rope(theta=500_000.0, scaling="llama3", factor=8.0, original_context=16))
GEMMA3 = like(
    layers=3,
    head_width=16,
    norm_offset=True,
    norm_places="both",
    query_norm="head",
    window=5,
    global_every=2,
    local_rope=Rope(theta=100.0),
    score_width=24.0,
    activation="geglu",
    tied=True,
    embed_scaled=True,
)
QWEN3_MOE = like(head_width=16, query_norm="head", experts=8, experts_per_token=2, capacity_factor=0.0)
GEMMA2 = like(norm_places="both", window=5, global_every=2, score_cap=5.0, logit_cap=10.0, tied=True)
OLMO2 = like(kv_heads=0, norm_places="post", query_norm="full")
FAMILIES = {"llama": LLAMA, "gemma3": GEMMA3, "qwen3-moe": QWEN3_MOE, "gemma2": GEMMA2, "olmo2": OLMO2}
