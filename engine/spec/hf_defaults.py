"""What a field of `config.json` is if it is missing, by architecture: the defaults of transformers' config classes.

Source: transformers 5.24, `src/transformers/models/*/configuration_*.py`; tests compare them with `defaults.json`.

None follows from other fields; a field that its class lacks is off.
"""

from typing import Any

Defaults = dict[str, Any]

_LLAMA: Defaults = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "attention_dropout": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_MIXTRAL = _MISTRAL | {
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "num_experts": 8,
}
_QWEN2 = _LLAMA | {
    "vocab_size": 151_936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_QWEN3_MOE = {name: default for name, default in _QWEN2.items() if name != "max_window_layers"} | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "num_local_experts": 128,
    "norm_topk_prob": False,
}
_GEMMA = _LLAMA | {
    "vocab_size": 256_000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA2 = _GEMMA | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = _GEMMA2 | {
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_OLMO2 = _LLAMA | {"vocab_size": 50304, "rms_norm_eps": 1e-5}
_PHI3 = _LLAMA | {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
_GPT2: Defaults = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "attention_dropout": 0.0,
}
DEFAULTS: dict[str, Defaults] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "MixtralForCausalLM": _MIXTRAL,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN2 | {"head_dim": 128},
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Olmo2ForCausalLM": _OLMO2,
    "Phi3ForCausalLM": _PHI3,
    "GPT2LMHeadModel": _GPT2,
}
