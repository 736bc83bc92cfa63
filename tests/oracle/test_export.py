"""What `shardtui export` writes, in the form of `transformers`. That it is what was read: `test_weights.py`."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint.export import allocated
from shardtui.engine.program.weights import mapped
from shardtui.engine.spec.hf_config import read_config
from shardtui.engine.spec.hf_export import config_table, in_files
from shardtui.engine.spec.hf_tensors import parts_of, tensor_shapes, weight_problems
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_files import preset_files
from shardtui.engine.spec.safetensors import INDEX, stored_tensors

from ..command import answered
from ..conftest import tiny_model
from ..schemas import checked
from .test_weights import written
from .tiny import CONFIGS, write_config


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_config_is_read_back_as_the_same_model(architecture: str, tmp_path: Path) -> None:
    config = write_config(architecture, tmp_path)
    table = config_table(config)
    found = "MistralForCausalLM" if architecture == "Phi3ForCausalLM" else architecture  # which compute the same
    assert table["architectures"] == [found]
    (tmp_path / "config.json").write_text(json.dumps(table))
    assert in_files(read_config(tmp_path)) == in_files(config)


def test_every_model_but_one_with_a_capacity_is_a_model_of_transformers_without_padding() -> None:
    found: dict[str, Any] = {}
    for name in preset_files("models"):
        try:
            found[name] = config_table(load_model(name).model)["architectures"]
        except UserError as error:
            found[name] = error.problems
    assert found.pop("nano-moe") == (
        "no architecture of transformers computes what this model does: GPT2LMHeadModel is nearest, but this one has "
        "experts 8, not 0; experts_per_token 2, not 1",
    )
    assert {len(each) for each in found.values()} == {1}
    assert found["qwen3-30b-a3b"] == ["Qwen3MoeForCausalLM"]
    table = config_table(tiny_model(vocab=200, vocab_rows=256))
    assert (table["vocab_size"], table["architectures"]) == (200, ["GPT2LMHeadModel"])


def test_large_models_have_several_files_and_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtui.engine.checkpoint.export.MOST_BYTES", 50_000)
    config = write_config("LlamaForCausalLM", tmp_path)
    shapes = tensor_shapes(parts_of(config, "LlamaForCausalLM"))
    files = allocated(tmp_path, shapes, "BF16")
    assert {name: tensor.shape for name, tensor in files.items()} == shapes
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(names) > 2 and names[0] == f"model-00001-of-{len(names):05}.safetensors"
    assert all((tmp_path / name).stat().st_size < 60_000 for name in names)
    assert set(json.loads((tmp_path / INDEX).read_text())["weight_map"].values()) == set(names)
    assert weight_problems(files, config, "LlamaForCausalLM") == []


@pytest.mark.core
def test_a_run_is_exported_as_it_was_imported_and_trained(home: Path) -> None:
    source, out = home / "llama", home / "out"
    source.mkdir()
    tensors = written("LlamaForCausalLM", source, lambda found: {n: x.astype(jnp.bfloat16) for n, x in found.items()})
    (source / "tokenizer.json").write_text("{}")
    options = ("--model", f"hf:{source}", "--data", __file__, "--set=seq_len=16", "--set=batch_size=8", "--run=llama")
    still = answered("train", *options, "--steps=1", "--preset=fsdp-tp2", "--set=learning_rate=1e-30")
    assert not still.returncode, still.stderr
    answer = answered("export", "llama", str(out), "--json")
    found = checked("export", answer.stdout)
    assert (found["architecture"], found["dtype"], found["step"]) == ("LlamaForCausalLM", "bfloat16", 1)
    assert found["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert found["parameters"] == sum(tensor.size for tensor in tensors.values())
    for name, tensor in stored_tensors(out).items():
        assert mapped(tensor).tobytes() == tensors[name].tobytes(), name
    table = json.loads((source / "config.json").read_text())
    assert json.loads((out / "config.json").read_text()) == table | {"torch_dtype": "bfloat16"}

    again, says = answered("export", "llama", str(out)), "exists already: name a new directory, or remove it\n"
    assert (again.returncode, again.stderr) == (2, f"shardtui: {out}: {says}")
    other = answered("export", "llama", str(home / "other"), "--from-step=7")
    assert other.stderr == "shardtui: run llama: no checkpoint of step 7: there are 1\n"
    (damaged,) = home.glob("state/shardtui/runs/llama/checkpoints/1/arrays/state/d/*")
    damaged.write_bytes(b"")
    assert "checkpoint 1: " in answered("export", "llama", str(home / "other")).stderr
    assert sorted(path.name for path in home.iterdir()) == ["llama", "out", "state"]
