"""A tiny model of every architecture: its `config.json`, its weights and a batch. Nothing here needs torch."""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from shardtui.engine.spec.hf_config import model_types, read_config
from shardtui.engine.spec.hf_tensors import Part, parts_of, tensor_shapes
from shardtui.engine.spec.model_config import ModelConfig

Tensors = dict[str, np.ndarray]

LLAMA: dict[str, Any] = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
LLAMA |= {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}
GEMMA = LLAMA | {"head_dim": 32, "tie_word_embeddings": True}
WINDOWS: dict[str, Any] = {"sliding_window": 5, "query_pre_attn_scalar": 24, "num_hidden_layers": 3}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}

CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": LLAMA | {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    "MistralForCausalLM": LLAMA | {"sliding_window": 5, "max_position_embeddings": 8, "rope_parameters": DYNAMIC},
    "MixtralForCausalLM": LLAMA
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1e6},
    "Qwen2ForCausalLM": LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "Qwen3ForCausalLM": LLAMA | {"head_dim": 32, "rope_parameters": YARN, "tie_word_embeddings": True},
    "Qwen3MoeForCausalLM": LLAMA
    | {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "GemmaForCausalLM": GEMMA | {"hidden_act": "gelu_pytorch_tanh"},
    "Gemma2ForCausalLM": GEMMA | WINDOWS | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "Gemma3ForCausalLM": GEMMA | WINDOWS | {"sliding_window_pattern": 2, "rope_scaling": LINEAR, "rope_theta": 1e6},
    "Olmo2ForCausalLM": LLAMA | {"num_key_value_heads": 4},
    "Phi3ForCausalLM": LLAMA | {"sliding_window": 6, "num_key_value_heads": 2},
    "GPT2LMHeadModel": {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
    | dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0),
}
TRAINED = ("LlamaForCausalLM", "Gemma3ForCausalLM", "Qwen3MoeForCausalLM")
"""Those whose gradients and training steps are compared, too."""
BATCH, SEQ, STEPS = 2, 16, 10
LEARNING_RATE, BETAS, DECAY = 1e-3, (0.9, 0.95), 0.1
SAMPLES = 16
"""Elements of each tensor's gradient that are compared."""


def write_config(architecture: str, directory: Path) -> ModelConfig:
    """Writes the `config.json` of an architecture, and returns it as it is read."""
    table = CONFIGS[architecture] | {"architectures": [architecture], "model_type": model_types()[architecture]}
    table |= {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
    (directory / "config.json").write_text(json.dumps(table, indent=1))
    return read_config(directory)


def tensors_of(config: ModelConfig, architecture: str) -> Tensors:
    """Returns random tensors under their names in files, the same on every machine."""
    shapes = tensor_shapes(parts_of(config, architecture))
    return {name: _random(name, shape, config.norm_offset) for name, shape in shapes.items()}


def _random(name: str, shape: list[int], norm_offset: bool) -> np.ndarray:
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    is_scale = len(shape) == 1 and name.endswith("weight")
    return noise * 0.1 + (0.0 if norm_offset else 1.0) if is_scale else noise * 0.1


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and their targets, int32 [B, T]."""
    tokens = np.random.RandomState(0).randint(0, 256, (BATCH, SEQ + 1)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def filled(params: Any, tensors: Tensors, parts: Iterable[Part]) -> Any:
    """Returns nested dicts of parameters, shaped like `params`, with the values of the tensors."""
    flat = {name: np.full(leaf.shape, np.nan, np.float32) for name, leaf in flatten_dict(params, sep=".").items()}
    for part in parts:
        flat[part.parameter][part.at] = part.from_file(tensors[part.tensor][part.rows])
    return unflatten_dict(flat, sep=".")


def in_files(params: Any, tensors: Tensors, parts: Iterable[Part]) -> Tensors:
    """Returns the tensors, shaped like `tensors`, with the values of nested dicts of parameters."""
    flat, found = flatten_dict(params, sep="."), {name: np.full_like(tensors[name], np.nan) for name in tensors}
    for part in parts:
        values = np.asarray(flat[part.parameter])[part.at]
        shape = part.file_shape[::-1] if part.is_transposed else part.file_shape
        values = values.reshape(shape)
        found[part.tensor][part.rows] = values.T if part.is_transposed else values
    return found


def sampled(gradient: np.ndarray) -> np.ndarray:
    """Returns a gradient's norm, and some of its elements."""
    flat = gradient.ravel().astype(np.float32)
    chosen = np.linspace(0, flat.size - 1, SAMPLES).astype(int)
    return np.concatenate([[np.linalg.norm(flat)], flat[chosen]]).astype(np.float32)
