"""The request and answer of `shardtui export`, and the decoder's `config.json` for `transformers`. No jax here."""

from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ..base.user_error import UserError
from .hf_config import ARCHITECTURES, fields_of, model_types
from .hf_fields import RopeTable, Table
from .model_config import ModelConfig, Rope

Dtype = Literal["float32", "bfloat16", "float16"]
SCALINGS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "original_context", "low_frequency_factor", "high_frequency_factor"),
    "yarn": ("factor", "original_context", "beta_fast", "beta_slow", "truncate", "attention_factor"),
}


class ExportRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A checkpoint to export, and the directory for it."""

    run: str
    out: str
    """A directory that does not exist yet or is empty."""
    step: int | None = None
    dtype: Dtype | None = None
    """None for the dtype of the run's initial weights, or float32."""


class Exported(Struct, frozen=True, kw_only=True):
    """A model that `transformers` loads."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    directory: str
    """The directory."""
    step: int
    """Steps that the model was trained."""
    architecture: str
    """The class of `transformers` that loads it."""
    dtype: Dtype
    """Dtype of the tensors; parameters are trained in float32."""
    parameters: int
    """Elements of all tensors."""
    bytes: int
    """Size of the tensors."""
    files: list[str]
    """The files, by name."""
    tokenizer: str | None
    """The tokenizer's file; null if the run read bytes, or its data do not have one."""


def config_table(config: ModelConfig) -> Table:
    """Returns the model's table, which `hf_config` reads back as the same model. Raises UserError, with the differences
    from the nearest architecture, if none computes this model."""
    wanted, table = in_files(config), _every_field(config)
    nearest: tuple[str, list[str]] | None = None
    for architecture, read in ARCHITECTURES.items():
        fields = fields_of(table, architecture)
        found = in_files(ModelConfig(**read(fields)))
        differing = [name for name in ModelConfig.__struct_fields__ if getattr(found, name) != getattr(wanted, name)]
        if not differing and not fields.problems:
            pdrop = {"embd_pdrop": config.dropout, "resid_pdrop": config.dropout, "attn_pdrop": 0.0}
            return {
                "architectures": [architecture],
                "model_type": model_types()[architecture],
                **fields.read(),
                **(pdrop if architecture == "GPT2LMHeadModel" else {}),
                "bos_token_id": None,
                "eos_token_id": None,
            }
        if differing and (nearest is None or len(differing) < len(nearest[1])):
            nearest = architecture, [f"{name} {_said(wanted, name)}, not {_said(found, name)}" for name in differing]
    assert nearest is not None
    raise UserError(
        f"no architecture of transformers computes what this model does: {nearest[0]} is nearest, but this one has "
        f"{'; '.join(nearest[1])}"
    )


def in_files(config: ModelConfig) -> ModelConfig:
    """Returns the model as files describe it: without the settings of training and layout."""
    return replace(
        config,
        vocab_rows=config.vocab,
        kv_heads=config.key_heads if config.is_grouped else 0,
        head_width=0 if config.head_dim * config.heads == config.embed else config.head_dim,
        dropout=0.0,
        remat=False,
        dtype="auto",
        attention="auto",
        balance=0.0,
    )


def _said(config: ModelConfig, name: str) -> str:
    value = getattr(config, name)
    return f"with scaling {value.scaling}" if isinstance(value, Rope) else str(value)


def _every_field(config: ModelConfig) -> Table:
    """The fields of all architectures at once: each reads its own."""
    rope = config.rope or Rope()
    activation = {"swiglu": "silu", "geglu": "gelu_pytorch_tanh", "gelu": "gelu_pytorch_tanh"}[config.activation]
    width = config.score_width or config.head_dim
    windows = [bool(config.window_of(layer)) for layer in range(config.layers)]
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.embed,
        "intermediate_size": config.mlp,
        "moe_intermediate_size": config.mlp,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": rope.theta,
        "rope_scaling": _scaling(rope),
        "rope_local_base_freq": (config.local_rope or rope).theta,
        "hidden_act": activation,
        "hidden_activation": activation,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.biases in ("all", "attention"),
        "mlp_bias": config.biases == "all",
        "sliding_window": config.window or None,
        "use_sliding_window": bool(config.window),
        "layer_types": ["sliding_attention" if local else "full_attention" for local in windows],
        "query_pre_attn_scalar": int(width) if width == int(width) else width,
        "attn_logit_softcapping": config.score_cap or None,
        "final_logit_softcapping": config.logit_cap or None,
        "num_experts": config.experts or None,
        "num_local_experts": config.experts or None,
        "num_experts_per_tok": config.experts_per_token,
        "norm_topk_prob": True,
        "n_embd": config.embed,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.mlp,
        "n_positions": config.context,
        "layer_norm_epsilon": config.norm_epsilon,
        "activation_function": "gelu_new",
    }


def _scaling(rope: Rope) -> Table | None:
    if rope.scaling == "none":
        return None
    return to_builtins(RopeTable(rope.scaling, **{name: getattr(rope, name) for name in SCALINGS[rope.scaling]}))
