"""Reads the `config.json` of a model of Hugging Face's `transformers` as the config of the built-in decoder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from ..base.untrusted import read_struct, refusing
from ..base.user_error import UserError
from .hf_fields import Fields, Table, rope, rope_table
from .model_config import ModelConfig

T = TypeVar("T")
NAME = "config.json"
MAX_BYTES, MAX_LAYERS, MAX_EXPERTS = 2**24, 10_000, 10_000


class _Named(Struct):
    architectures: list[str] | None = None


def read_config(directory: Path, dropout: float | None = None) -> ModelConfig:
    """Reads `config.json`, with `dropout` in place of its own. Raises UserError with every problem."""
    architecture = architecture_of(directory)
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"--model hf:{directory}: {NAME}: architectures {architecture or None!r}: not supported: choose a model of "
            f"{', '.join(ARCHITECTURES)}"
        )
    fields = Fields(_read(directory, Table), has_nested_rope=architecture == "Gemma3ForCausalLM")
    with refusing(f"--model hf:{directory}: {NAME}"):  # a message may show a table that is nested too deeply
        usual = 0.1 if architecture == "GPT2LMHeadModel" else 0.0
        values: Table = ARCHITECTURES[architecture](fields) | {"dropout": _dropout(fields, dropout, usual)}
        problems = dict.fromkeys(fields.problems + fields.unread())
    if problems:
        raise UserError(*(f"--model hf:{directory}: {NAME}: {problem}" for problem in problems))
    return ModelConfig(**values)


def architecture_of(directory: Path) -> str:
    return next(iter(_read(directory, _Named).architectures or ()), "")


def _read(directory: Path, kind: type[T]) -> T:
    path = directory / NAME
    if not os.path.lexists(path):
        raise UserError(f"--model hf:{directory}: there is no {path}: name a directory with a {NAME}")
    return read_struct(path, kind, MAX_BYTES, f"--model hf:{directory}: {path}")


def _dropout(fields: Fields, given: float | None, usual: float) -> float:
    names = ("embd_pdrop", "resid_pdrop", "attn_pdrop", "attention_dropout")
    rates = {name: fields.number(name, usual if name.endswith("pdrop") else 0.0) for name in names}
    embedding, branches, *scores = rates.values()
    if given is None and (embedding != branches or any(scores)):
        found = {name: rate for name, rate in rates.items() if rate}
        fields.problems.append(
            f"{', '.join(f'{name} {value}' for name, value in found.items())}: there is one dropout, of the embedding "
            "and of the branches, and none of attention scores: add --set dropout=0, or another number"
        )
    return branches if given is None else given


def _common(fields: Fields, theta: float = 10_000.0) -> Table:
    heads, embed, vocab = fields.size("num_attention_heads"), fields.size("hidden_size"), fields.size("vocab_size")
    kv_heads, context = fields.size("num_key_value_heads", heads), fields.size("max_position_embeddings")
    head_width = fields.size("head_dim", embed // heads or 1)
    return {
        "layers": fields.size("num_hidden_layers", most=MAX_LAYERS),
        "embed": embed,
        "heads": heads,
        "kv_heads": 0 if kv_heads == heads else kv_heads,
        "head_width": 0 if head_width * heads == embed else head_width,
        "mlp": fields.size("intermediate_size"),
        "vocab": vocab,
        "vocab_rows": vocab,
        "context": context,
        "norm": "rms",
        "norm_epsilon": fields.number("rms_norm_eps", 1e-6),
        "rope": rope(fields, rope_table(fields), fields.number("rope_theta", theta), context),
        "biases": "none",
        "tied": fields.flag("tie_word_embeddings"),
    }


def _swiglu(fields: Fields, theta: float = 10_000.0) -> Table:
    fields.one_of("hidden_act", "silu", "silu")
    return _common(fields, theta) | {"activation": "swiglu"}


def _llama(fields: Fields) -> Table:
    has_bias = fields.flag("attention_bias")
    if (in_mlp := fields.flag("mlp_bias")) and not has_bias:
        fields.problems.append("mlp_bias true: not supported without attention_bias")
    return _swiglu(fields) | {"biases": "all" if in_mlp else "attention" if has_bias else "none"}


def _mistral(fields: Fields) -> Table:
    return _swiglu(fields) | {"window": _window(fields, 4096)}


def _mixtral(fields: Fields) -> Table:
    values: Table = _swiglu(fields, 1_000_000.0) | _experts(fields)
    return values | {"window": _window(fields), "norm_epsilon": fields.number("rms_norm_eps", 1e-5)}


def _experts(fields: Fields) -> Table:
    """Experts as Mixtral and Qwen3 route them: without a limit, with normalised weights, and no balance loss."""
    if (chosen := fields.size("num_experts_per_tok")) < 2:
        fields.problems.append(f"num_experts_per_tok {chosen}: weights are normalised over 2 or more")
    experts = fields.size("num_experts", fields("num_local_experts", int, 0) or None, MAX_EXPERTS)
    return {"experts": experts, "experts_per_token": chosen, "capacity_factor": 0.0, "balance": 0.0}


def _qwen2(fields: Fields) -> Table:
    return _swiglu(fields) | _patterned(fields) | {"biases": "qkv"}


def _qwen3(fields: Fields) -> Table:
    return _with_head_width(fields, _llama(fields) | _patterned(fields) | {"query_norm": "head"}, 128)


def _qwen3_moe(fields: Fields) -> Table:
    if not fields.flag("norm_topk_prob"):
        fields.problems.append("norm_topk_prob false: not supported: weights of experts are normalised")
    values: Table = _llama(fields) | _unwindowed(fields) | _experts(fields)
    return values | {"query_norm": "head", "mlp": fields.size("moe_intermediate_size")}


def _gemma(fields: Fields) -> Table:
    """Gemma 1: its `hidden_act` of the first releases, gelu, meant the tanh form, as the library reads it."""
    fields.one_of("hidden_act", "gelu_pytorch_tanh", "gelu_pytorch_tanh", "gelu")
    fields.one_of("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    values: Table = _common(fields) | {
        "norm_offset": True,
        "activation": "geglu",
        "embed_scaled": True,
        "tied": fields.flag("tie_word_embeddings", True),
        "biases": "attention" if fields.flag("attention_bias") else "none",
    }
    return _with_head_width(fields, values, 256)


def _gemma2(fields: Fields, caps: tuple[float, float] = (50.0, 30.0), every: int = 2) -> Table:
    return (_gemma(fields) | _patterned(fields, every)) | {
        "norm_places": "both",
        "score_width": fields.number("query_pre_attn_scalar", 256),
        "score_cap": _cap(fields, "attn_logit_softcapping", caps[0]),
        "logit_cap": _cap(fields, "final_logit_softcapping", caps[1]),
    }


def _gemma3(fields: Fields) -> Table:
    """The text model; a config of the one for images has `text_config`, which is refused as unknown."""
    every = fields.size("sliding_window_pattern", 6)
    values: Table = _gemma2(fields, (0.0, 0.0), every) | {"query_norm": "head"}
    local, context = rope_table(fields, "sliding_attention"), values["context"]
    scaled = rope_table(fields, "full_attention")
    if not fields.table("rope_parameters"):
        scaled = fields.table("rope_scaling")
    return values | {
        "rope": rope(fields, scaled, fields.number("rope_theta", 1_000_000.0), context),
        "local_rope": rope(fields, local, fields.number("rope_local_base_freq", 10_000.0), context),
    }


def _olmo2(fields: Fields) -> Table:
    changes: Table = {"norm_places": "post", "query_norm": "full", "norm_epsilon": fields.number("rms_norm_eps", 1e-5)}
    return _llama(fields) | changes


def _phi3(fields: Fields) -> Table:
    fields.skip("original_max_position_embeddings")
    values: Table = _swiglu(fields) | {"window": _window(fields), "norm_epsilon": fields.number("rms_norm_eps", 1e-5)}
    if values["rope"].scaling != "none":
        fields.problems.append(f"rope type {values['rope'].scaling}: not supported: Phi-3 reads it as longrope")
    return values


def _gpt2(fields: Fields) -> Table:
    embed, vocab = fields.size("n_embd"), fields.size("vocab_size")
    fields.one_of("activation_function", "gelu_new", "gelu_new", "gelu_pytorch_tanh")
    if not fields.flag("tie_word_embeddings", True):
        fields.problems.append("tie_word_embeddings false: not supported: GPT-2 ties them")
    return {
        "layers": fields.size("n_layer", most=MAX_LAYERS),
        "embed": embed,
        "heads": fields.size("n_head"),
        "mlp": fields.size("n_inner", 4 * embed),
        "vocab": vocab,
        "vocab_rows": vocab,
        "context": fields.size("n_positions", 1024),
        "norm_epsilon": fields.number("layer_norm_epsilon", 1e-5),
    }


def _with_head_width(fields: Fields, values: Table, default: int) -> Table:
    width = fields.size("head_dim", default)
    return values | {"head_width": 0 if width * values["heads"] == values["embed"] else width}


def _cap(fields: Fields, name: str, default: float) -> float:
    return fields.number(name, 0.0) if fields.has(name) else default


def _window(fields: Fields, default: int = 0) -> int:
    """Returns the window; null is none, a missing one is the default."""
    found = fields("sliding_window", float, 0.0) if fields.has("sliding_window") else default
    return fields.size("sliding_window", default) if found else 0


def _unwindowed(fields: Fields) -> Table:
    """A family that has windows only if its config asks for them."""
    fields.skip("sliding_window")
    if fields.flag("use_sliding_window"):
        fields.problems.append("use_sliding_window true: not supported for this architecture")
    return {}


def _patterned(fields: Fields, every: int = 0) -> Table:
    """Windows in a pattern of layers: one in `every` has none, unless `layer_types` says otherwise."""
    layers, types = fields.size("num_hidden_layers", most=MAX_LAYERS), fields("layer_types", list[str], [])
    if not every and not fields.flag("use_sliding_window"):
        fields.skip("sliding_window")
        if "sliding_attention" in types:
            fields.problems.append("layer_types: sliding_attention without use_sliding_window")
        return {}
    if not every and not types:
        first = fields.number("max_window_layers", 28)
        types = ["full_attention" if layer < first else "sliding_attention" for layer in range(layers)]
    types = types or ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    local = [kind == "sliding_attention" for kind in types]
    window, known = _window(fields, 4096), {"sliding_attention", "full_attention"}
    if len(local) != layers or not set(types) <= known:
        fields.problems.append(f"layer_types: not {layers} of {' and '.join(sorted(known))}")
        return {}
    if not any(local) or not window:
        return {}
    period = local.index(False) + 1 if False in local else 0
    if local != [not period or bool((layer + 1) % period) for layer in range(layers)]:
        fields.problems.append("layer_types: not supported: every n-th layer must have no window, and the others one")
    return {"window": window, "global_every": period}


ARCHITECTURES: dict[str, Callable[[Fields], Table]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "GemmaForCausalLM": _gemma,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Olmo2ForCausalLM": _olmo2,
    "Phi3ForCausalLM": _phi3,
    "GPT2LMHeadModel": _gpt2,
}
