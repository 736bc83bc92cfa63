"""`config.json` of transformers: what is read, and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.spec.hf_config import read_config
from shardtui.engine.spec.model_choice import choose_model, load_model
from shardtui.engine.spec.model_config import ModelConfig

from ..conftest import tiny_config
from ..oracle.tiny import CONFIGS, write_config

QWEN3 = json.loads("""{
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936
}""")
"""As the hub has it."""


def read(folder: Path, **table: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(table))
    return read_config(folder)


def problems(folder: Path, **table: Any) -> list[str]:
    with pytest.raises(UserError) as found:
        read(folder, **table)
    start = f"--model hf:{folder}: "
    assert all(problem.startswith(start) for problem in found.value.problems)
    return [problem.removeprefix(start) for problem in found.value.problems]


def test_a_file_of_the_hub_is_the_built_in_model_and_settings_apply(tmp_path: Path) -> None:
    found, built_in = read(tmp_path, **QWEN3), load_model("qwen3-0.6b").model
    assert found == msgspec.structs.replace(built_in, remat=False)
    folder = tmp_path / "Tiny Llama"
    folder.mkdir()
    write_config("LlamaForCausalLM", folder)
    choice = choose_model(f"hf:{folder}", ("layers=3", "seq_len=32", "batch_size=4"))
    assert isinstance(choice.model, ModelConfig)
    assert (choice.name, choice.run_name) == ("hf:Tiny Llama", "tiny-llama")
    assert (choice.model.layers, choice.training.seq_len, choice.training.batch_size) == (3, 32, 4)


def test_a_missing_field_is_the_default_of_its_family_and_null_follows_from_others(tmp_path: Path) -> None:
    table = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    table |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "model_type": "gemma3_text"}
    found = read(tmp_path, architectures=["Gemma3ForCausalLM"], **table)
    assert (found.heads, found.key_heads, found.head_dim, found.vocab, found.tied) == (8, 4, 256, 262208, True)
    assert Task(tiny_config(model=found), "cpu").parameters == 3_880_263_168
    small = {"hidden_size": 64, "num_attention_heads": 16}
    assert read(tmp_path, architectures=["MistralForCausalLM"], **small).key_heads == 8
    assert read(tmp_path, architectures=["MistralForCausalLM"], num_key_value_heads=None, **small).key_heads == 16
    assert read(tmp_path, architectures=["LlamaForCausalLM"], **small).key_heads == 16
    assert read(tmp_path, architectures=["Gemma2ForCausalLM"], final_logit_softcapping=None).logit_cap == 0.0
    assert read(tmp_path, architectures=["Gemma2ForCausalLM"]).logit_cap == 30.0


@pytest.mark.parametrize("architectures", [{}, {"architectures": None}, {"architectures": []}])
def test_without_architectures_the_model_type_says(
    architectures: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(tmp_path, model_type="mistral", **architectures).window == 4096
    choose_model(f"hf:{tmp_path}")
    says = "config.json names no architectures: MistralForCausalLM has its model_type\n"
    assert capsys.readouterr().err == f"--model hf:{tmp_path}: {says}"
    (problem,) = problems(tmp_path, model_type="llama", architectures=["MistralForCausalLM"])
    assert problem.startswith("config.json: architectures MistralForCausalLM, but model_type llama: give")
    (problem,) = problems(tmp_path, architectures=["MambaForCausalLM"])
    assert problem.startswith("config.json: architectures 'MambaForCausalLM': not supported: choose a model of Llama")
    (problem,) = problems(tmp_path, hidden_size=64)
    assert problem.startswith("config.json: architectures None: not supported")


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    table = QWEN3 | {"hidden_act": "relu", "num_hidden_layers": "many", "clip_qkv": 8.0, "decoder_sparse_step": 2}
    found = problems(tmp_path, **table)
    assert [problem.removeprefix("config.json: ") for problem in found] == [
        'hidden_act "relu": not supported: it must be silu',
        'num_hidden_layers "many": must be a number',
        "decoder_sparse_step 2: not supported: it must be 1",
        "clip_qkv 8.0: unknown to shardtui, and it may change what is computed: remove it if it does not",
    ]


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    for content in (b"{", b"[]", b"\xff", b""):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(UserError, match=r"config\.json: cannot be read: "):
            pytest.fail(f"{content!r} was taken: {read_config(tmp_path)}")
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"there is no .*config\.json: name a directory with a config\.json"):
        choose_model(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("architecture", "change", "problem"),
    [
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "longrope"}}, "rope type longrope: not supported"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_theta": 1e4, "mscale": 1.0}}, "rope mscale: unknown"),
        ("LlamaForCausalLM", {"rope_parameters": {"factor": "two", "rope_type": "linear"}}, "rope: Expected `float |"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": ["yarn"]}}, "rope: Expected `str | null`, got `array`"),
        ("LlamaForCausalLM", {"rope_parameters": None, "rope_scaling": 3}, "rope_scaling 3: must be an object"),
        ("LlamaForCausalLM", {"tie_word_embeddings": "no"}, 'tie_word_embeddings "no": must be true or false'),
        ("LlamaForCausalLM", {"vocab_size": 10**400}, "vocab_size 1000000000"),
        ("Gemma2ForCausalLM", {"num_hidden_layers": 2**31}, "num_hidden_layers 2.14748e+09: must be a whole number"),
        (
            "Gemma3ForCausalLM",
            {"rope_parameters": {"sliding_attention": 1}, "rope_scaling": None},
            "rope_parameters: sliding_attention 1: must be an object",
        ),
        ("LlamaForCausalLM", {"attention_bias": False}, "mlp_bias true: not supported without attention_bias"),
        ("LlamaForCausalLM", {"attention_dropout": 0.1}, "attention_dropout 0.1: there is one dropout"),
        ("LlamaForCausalLM", {"quantization_config": {"bits": 4}}, 'quantization_config {"bits": 4}: not supported'),
        ("MixtralForCausalLM", {"router_jitter_noise": 0.1}, "router_jitter_noise 0.1: not supported"),
        ("MixtralForCausalLM", {"output_router_logits": True}, "output_router_logits true: not supported"),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}, "norm_topk_prob false: not supported"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0]}, "mlp_only_layers [0]: not supported"),
        ("Gemma2ForCausalLM", {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types: not 3 of"),
        ("Gemma2ForCausalLM", {"layer_types": 3}, "layer_types 3: must be a list"),
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention true: not supported"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 1}, "layer_types: not supported"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type linear: not supported"),
        ("GPT2LMHeadModel", {"attn_pdrop": None}, "attn_pdrop 0.1: there is one dropout"),
        ("GPT2LMHeadModel", {"activation_function": "gelu"}, 'activation_function "gelu": not supported'),
    ],
)
def test_other_arithmetic_is_refused(architecture: str, change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    table = CONFIGS[architecture] | {"architectures": [architecture]} | change
    (found,) = problems(tmp_path, **table)
    assert found.startswith(f"config.json: {problem}"), found


def test_a_window_may_be_null_or_missing_and_gpt_2_takes_a_dropout_that_is_given(tmp_path: Path) -> None:
    table = CONFIGS["MistralForCausalLM"] | {"architectures": ["MistralForCausalLM"]}
    assert read(tmp_path, **table | {"sliding_window": None}).window == 0
    del table["sliding_window"]
    assert read(tmp_path, **table).window == 4096
    table = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
    (tmp_path / "config.json").write_text(json.dumps(table | {"n_positions": 1024, "attn_pdrop": 0.1}))
    choice = choose_model(f"hf:{tmp_path}", ("dropout=0.1",))
    assert choice.model == load_model("gpt2", ("vocab_rows=50257",)).model
