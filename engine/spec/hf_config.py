"""Reads the `config.json` of a model of Hugging Face's `transformers` as the config of the built-in decoder."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from ..base.untrusted import read_struct, refusing
from ..base.user_error import UserError
from .hf_fields import Fields, Table, rope, rope_table
from .model_config import ModelConfig
from .preset_files import PRESETS

T = TypeVar("T")
NAME = "config.json"
MAX_BYTES, MAX_LAYERS, MAX_EXPERTS = 2**24, 10_000, 10_000


class _Named(Struct):
    architectures: list[str] | None = None
    model_type: str | None = None


class _ConfigClasses(Struct):
    defaults: dict[str, Table]


@cache
def defaults() -> dict[str, Table]:
    """Returns, by architecture, what a field is if it is missing: the defaults of transformers' config classes."""
    return read_struct(PRESETS / "transformers.json", _ConfigClasses).defaults


def model_types() -> dict[str, str]:
    return {architecture: fields["model_type"] for architecture, fields in defaults().items()}


def read_config(directory: Path, dropout: float | None = None) -> ModelConfig:
    """Reads `config.json`, with `dropout` in place of its own. Raises UserError with every problem."""
    architecture = architecture_of(directory)
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"--model hf:{directory}: {NAME}: architectures {architecture or None!r}: not supported: choose a model of "
            f"{', '.join(ARCHITECTURES)}"
        )
    fields = fields_of(_read(directory, Table), architecture)
    with refusing(f"--model hf:{directory}: {NAME}"):  # a message may show a table that is nested too deeply
        values: Table = ARCHITECTURES[architecture](fields) | {"dropout": _dropout(fields, dropout)}
        problems = dict.fromkeys(fields.problems + fields.unread())
    if problems:
        raise UserError(*(f"--model hf:{directory}: {NAME}: {problem}" for problem in problems))
    return ModelConfig(**values)


def fields_of(table: Table, architecture: str) -> Fields:
    return Fields(table, defaults()[architecture])


def architecture_of(directory: Path) -> str:
    """Returns the architecture that the file names, or the one of its `model_type`; empty if it is unknown. Raises
    UserError if they differ: transformers goes by `model_type`."""
    named = _read(directory, _Named)
    by_type = next((name for name, kind in model_types().items() if kind == named.model_type), "")
    if not named.architectures:
        return by_type
    found = named.architectures[0]
    if found in ARCHITECTURES and named.model_type and found != by_type:
        raise UserError(
            f"--model hf:{directory}: {NAME}: architectures {found}, but model_type {named.model_type}: give the "
            f"architecture of that type, or model_type {model_types()[found]}"
        )
    return found


def names_architecture(directory: Path) -> bool:
    return bool(_read(directory, _Named).architectures)


def _read(directory: Path, kind: type[T]) -> T:
    path = directory / NAME
    if not os.path.lexists(path):
        raise UserError(f"--model hf:{directory}: there is no {path}: name a directory with a {NAME}")
    return read_struct(path, kind, MAX_BYTES, f"--model hf:{directory}: {path}")


def _dropout(fields: Fields, given: float | None) -> float:
    names = ("embd_pdrop", "resid_pdrop", "attn_pdrop", "attention_dropout")
    rates = {name: fields.number(name) for name in names}
    embedding, branches, *scores = rates.values()
    if given is None and (embedding != branches or any(scores)):
        found = {name: rate for name, rate in rates.items() if rate}
        fields.problems.append(
            f"{', '.join(f'{name} {value}' for name, value in found.items())}: there is one dropout, of the embedding "
            "and of the branches, and none of attention scores: add --set dropout=0, or another number"
        )
    return branches if given is None else given


def _common(fields: Fields) -> Table:
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
        "norm_epsilon": fields.number("rms_norm_eps"),
        "rope": rope(fields, rope_table(fields), fields.number("rope_theta"), context),
        "biases": "none",
        "tied": fields.flag("tie_word_embeddings"),
    }


def _swiglu(fields: Fields) -> Table:
    fields.one_of("hidden_act", "silu")
    return _common(fields) | {"activation": "swiglu"}


def _llama(fields: Fields) -> Table:
    has_bias = fields.flag("attention_bias")
    if (in_mlp := fields.flag("mlp_bias")) and not has_bias:
        fields.problems.append("mlp_bias true: not supported without attention_bias")
    return _swiglu(fields) | {"biases": "all" if in_mlp else "attention" if has_bias else "none"}


def _mistral(fields: Fields) -> Table:
    return _swiglu(fields) | {"window": _window(fields)}


def _mixtral(fields: Fields) -> Table:
    return _swiglu(fields) | _experts(fields) | {"window": _window(fields)}


def _experts(fields: Fields) -> Table:
    """Experts as Mixtral and Qwen3 route them: without a limit, with normalised weights, and no balance loss."""
    if (chosen := fields.size("num_experts_per_tok")) < 2:
        fields.problems.append(f"num_experts_per_tok {chosen}: weights are normalised over 2 or more")
    names = [name for name in ("num_experts", "num_local_experts") if fields.has(name)] or ["num_experts"]
    (experts, *others) = [fields.size(name, most=MAX_EXPERTS) for name in names]
    if any(number != experts for number in others):
        fields.problems.append(f"num_experts {experts}: num_local_experts is another number")
    return {"experts": experts, "experts_per_token": chosen, "capacity_factor": 0.0, "balance": 0.0}


def _qwen2(fields: Fields) -> Table:
    return _swiglu(fields) | _patterned(fields) | {"biases": "qkv"}


def _qwen3(fields: Fields) -> Table:
    return _llama(fields) | _patterned(fields) | {"query_norm": "head"}


def _qwen3_moe(fields: Fields) -> Table:
    if not fields.flag("norm_topk_prob"):
        fields.problems.append("norm_topk_prob false: not supported: weights of experts are normalised")
    values: Table = _llama(fields) | _unwindowed(fields) | _experts(fields)
    return values | {"query_norm": "head", "mlp": fields.size("moe_intermediate_size")}


def _gemma(fields: Fields) -> Table:
    """Gemma 1: its `hidden_act` of the first releases, gelu, meant the tanh form, as the library reads it."""
    fields.one_of("hidden_act", "gelu_pytorch_tanh", "gelu")
    fields.one_of("hidden_activation", "gelu_pytorch_tanh")
    return _common(fields) | {
        "norm_offset": True,
        "activation": "geglu",
        "embed_scaled": True,
        "biases": "attention" if fields.flag("attention_bias") else "none",
    }


def _gemma2(fields: Fields, every: int = 2) -> Table:
    return (_gemma(fields) | _patterned(fields, every)) | {
        "norm_places": "both",
        "score_width": fields.number("query_pre_attn_scalar"),
        "score_cap": fields.number("attn_logit_softcapping", 0.0),
        "logit_cap": fields.number("final_logit_softcapping", 0.0),
    }


def _gemma3(fields: Fields) -> Table:
    """The text model; a config of the one for images has `text_config`, which is refused as unknown."""
    values: Table = _gemma2(fields, fields.size("sliding_window_pattern")) | {"query_norm": "head"}
    local, context = rope_table(fields, "sliding_attention"), values["context"]
    scaled = rope_table(fields, "full_attention")
    if not fields.table("rope_parameters"):
        scaled = fields.table("rope_scaling")
    return values | {
        "rope": rope(fields, scaled, fields.number("rope_theta"), context),
        "local_rope": rope(fields, local, fields.number("rope_local_base_freq"), context),
    }


def _olmo2(fields: Fields) -> Table:
    return _llama(fields) | {"norm_places": "post", "query_norm": "full"}


def _phi3(fields: Fields) -> Table:
    fields.skip("original_max_position_embeddings")
    values: Table = _swiglu(fields) | {"window": _window(fields)}
    if values["rope"].scaling != "none":
        fields.problems.append(f"rope type {values['rope'].scaling}: not supported: Phi-3 reads it as longrope")
    return values


def _gpt2(fields: Fields) -> Table:
    embed, vocab = fields.size("n_embd"), fields.size("vocab_size")
    fields.one_of("activation_function", "gelu_new", "gelu_pytorch_tanh")
    if not fields.flag("tie_word_embeddings"):
        fields.problems.append("tie_word_embeddings false: not supported: GPT-2 ties them")
    return {
        "layers": fields.size("n_layer", most=MAX_LAYERS),
        "embed": embed,
        "heads": fields.size("n_head"),
        "mlp": fields.size("n_inner", 4 * embed),
        "vocab": vocab,
        "vocab_rows": vocab,
        "context": fields.size("n_positions"),
        "norm_epsilon": fields.number("layer_norm_epsilon"),
    }


def _window(fields: Fields) -> int:
    """Returns the window; null is none."""
    return fields.size("sliding_window") if fields.number("sliding_window", 0.0) else 0


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
        first = fields.number("max_window_layers")
        types = ["full_attention" if layer < first else "sliding_attention" for layer in range(layers)]
    types = types or ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    local = [kind == "sliding_attention" for kind in types]
    window, known = _window(fields), {"sliding_attention", "full_attention"}
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
