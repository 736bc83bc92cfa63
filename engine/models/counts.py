"""The decoder's parameters and FLOPs by formula, from its config. Dims as in decoder.py, and K heads of keys."""

from ..spec.model_config import ModelConfig


def parameter_count(config: ModelConfig) -> int:
    """Returns the number of trainable elements, without the padding rows of the token tables.

    V·D for each token table and context·D for learned positions; per layer attention, MLP (or each expert, and D·E for
    the router) and norms; and the final norm.
    """
    d, norms = config.embed, 4 if config.norm_places == "both" else 2
    layer = _attention_parameters(config) + norms * _norm_parameters(config)
    layer += (config.experts or 1) * _mlp_parameters(config) + d * config.experts
    tables = config.vocab * (1 if config.tied else 2) + (0 if config.rope else config.context)
    return tables * d + config.layers * layer + _norm_parameters(config)


def active_parameter_count(config: ModelConfig) -> int:
    """Returns the part of `parameter_count` that one token uses: only `experts_per_token` of the experts count."""
    idle = config.experts - config.experts_per_token if config.experts else 0
    return parameter_count(config) - config.layers * idle * _mlp_parameters(config)


def _attention_parameters(config: ModelConfig) -> int:
    """2·D·H·(N + K) for the projections of query, result, key and value, their biases, and norms of query and key."""
    query, key = config.heads * config.head_dim, config.key_heads * config.head_dim
    bias = {"all": query + 2 * key + config.embed, "attention": query + 2 * key + config.embed, "qkv": query + 2 * key}
    norms = {"none": 0, "head": 2 * config.head_dim, "full": query + key}[config.query_norm]
    return 2 * config.embed * (query + key) + bias.get(config.biases, 0) + norms


def _mlp_parameters(config: ModelConfig) -> int:
    """2·D·F, or 3·D·F with a gate, and the biases."""
    inner = 2 if config.is_gated else 1
    biases = inner * config.mlp + config.embed if config.biases == "all" else 0
    return (inner + 1) * config.embed * config.mlp + biases


def _norm_parameters(config: ModelConfig) -> int:
    return config.embed * (2 if config.norm == "layer" else 1)


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Returns the FLOPs of forward and backward pass: 6 per multiplying parameter + 12·N·H·T per layer for attention.

    The formula is from PaLM, appendix B. The position table and the token lookup multiply nothing; the output layer
    does. The experts that a token is routed to count even if they have no capacity left for it, and only they count. In
    layers with a window T is at most the window.
    """
    idle = (0 if config.rope else config.context) + (0 if config.tied else config.vocab)
    multiplying = active_parameter_count(config) - idle * config.embed
    positions = sum(min(seq_len, config.window_of(layer) or seq_len) for layer in range(config.layers))
    return 6.0 * multiplying + 12.0 * config.heads * config.head_dim * positions
