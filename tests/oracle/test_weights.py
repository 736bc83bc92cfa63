"""Weights of transformers, read into the shards of a new state; and what is wrong with files."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from etils import epath
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint.arrays import save_arrays
from shardtui.engine.checkpoint.export import allocated, fill
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.program.compiler import Compiler
from shardtui.engine.program.placement import place
from shardtui.engine.program.weights import mapped, with_weights
from shardtui.engine.spec.hf_tensors import parts_of, tensor_shapes
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_reader import load_preset

from ..conftest import tiny_config
from .files import write_file, write_files
from .tiny import CONFIGS, Tensors, filled, tensors_of, write_config


def written(architecture: str, folder: Path, change: Callable[[Tensors], Tensors] = dict) -> Tensors:
    """Writes a model, and returns its tensors."""
    tensors = change(tensors_of(write_config(architecture, folder), architecture))
    write_file(folder / "model.safetensors", tensors)
    return tensors


def loaded(folder: Path, preset: str = "fsdp-tp2") -> tuple[Task, TrainState]:
    """Returns the state of a run with these weights, on eight devices."""
    choice = choose_model(f"hf:{folder}")
    task = Task(tiny_config(model=choice.model), "cpu")
    shardings = place(task, load_preset(preset), jax.devices()).state_shardings
    state = jax.tree.map(lambda a, s: jax.device_put(np.zeros(a.shape, a.dtype), s), task.abstract_state, shardings)
    return task, with_weights(state, msgspec.structs.replace(task.config, weights=choice.weights))


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_element_is_read_and_written_back_bit_by_bit(architecture: str, tmp_path: Path) -> None:
    tensors = written(architecture, tmp_path)
    task, state = loaded(tmp_path)
    parts = list(parts_of(task.config.model, architecture))  # type: ignore[arg-type]
    expected = filled(task.abstract_state.params, tensors, parts)
    jax.tree.map(np.testing.assert_array_equal, state.params, expected)
    kernel = state.params["blocks"]["attention"]["out"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (kernel.shape[0], kernel.shape[1] // 2, kernel.shape[2], 16)
    save_arrays(epath.Path(tmp_path), TrainState(state.params, (), (), ())).result()
    (tmp_path / "out").mkdir()
    files = allocated(tmp_path / "out", tensor_shapes(parts), "F32")
    fill(files, parts, epath.Path(tmp_path) / "arrays")
    assert files.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(mapped(files[name]), tensor, name)


def test_several_files_half_precision_and_old_names(tmp_path: Path) -> None:
    config = write_config("GPT2LMHeadModel", tmp_path)
    tensors = {name: x.astype(jnp.bfloat16) for name, x in tensors_of(config, "GPT2LMHeadModel").items()}
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old["h.0.attn.bias"] = np.zeros((1, 1, 32, 32), np.int64)  # a mask
    write_files(tmp_path, old)
    task, state = loaded(tmp_path, "dp")
    wide = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    expected = filled(task.abstract_state.params, wide, parts_of(config, "GPT2LMHeadModel"))
    jax.tree.map(np.testing.assert_array_equal, state.params, expected)


def problems(folder: Path, *settings: str) -> list[str]:
    with pytest.raises(UserError) as found:
        choose_model(f"hf:{folder}", settings)
    return [problem.removeprefix(f"--model hf:{folder}: ") for problem in found.value.problems]


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "GPT2LMHeadModel"])
def test_tied_tables_are_one_and_different_ones_are_refused(architecture: str, tmp_path: Path) -> None:
    """transformers 5 fills the token table from the output's if it is alone, and does not tie tables that differ."""
    name = "transformer.wte.weight" if architecture == "GPT2LMHeadModel" else "model.embed_tokens.weight"
    tensors = written(architecture, tmp_path)
    table = tensors.pop(name)
    for tables in ({"lm_head.weight": table}, {"lm_head.weight": table, name: table}):
        write_file(tmp_path / "model.safetensors", tensors | tables)
        np.testing.assert_array_equal(loaded(tmp_path)[1].params["token"]["embedding"], table)
    write_file(tmp_path / "model.safetensors", tensors | {"lm_head.weight": table + 1, name: table})
    (problem,) = problems(tmp_path)
    assert problem.startswith(f"{name} and lm_head.weight differ, but tie_word_embeddings is true")


def test_missing_left_over_and_misshapen_tensors_are_named_also_those_of_other_settings(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> Tensors:
        del tensors["model.norm.weight"]
        tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((95, 64), np.float32)
        return tensors | {"model.layers.2.mlp.up_proj.weight": np.zeros((96, 64), np.float32)}

    written("LlamaForCausalLM", tmp_path, change)
    assert problems(tmp_path) == [
        "model.norm.weight: missing in the files",
        "model.layers.2.mlp.up_proj.weight: not a parameter of this model: remove it, or give its config.json",
        "model.layers.0.mlp.up_proj.weight: has shape [95, 64], and the model needs [96, 64]: give the config.json of "
        "these files, without --set for sizes",
    ]
    written("LlamaForCausalLM", tmp_path)
    (problem,) = problems(tmp_path, "layers=1")
    assert problem.startswith("model.layers.1.input_layernorm.weight, ")
    assert "and 11 more: not a parameter" in problem


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    written("LlamaForCausalLM", tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    for size in (0, 4, 100, -1):
        (tmp_path / "model.safetensors").write_bytes(whole[:size])
        assert all("truncated" in problem for problem in problems(tmp_path)), size


def test_an_index_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, tensors_of(write_config("LlamaForCausalLM", tmp_path), "LlamaForCausalLM"))
    (tmp_path / "model-2.safetensors").unlink()
    (problem,) = problems(tmp_path)
    assert problem.endswith("names model-2.safetensors, and there is no such file: download it again")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weights": {}}))
    (problem,) = problems(tmp_path)
    assert "index.json: cannot be read: Object missing required field `weight_map`" in problem


@pytest.mark.core
def test_a_run_starts_from_the_weights(tmp_path: Path) -> None:
    tensors = written("LlamaForCausalLM", tmp_path)
    choice = choose_model(f"hf:{tmp_path}")
    task = Task(tiny_config(model=choice.model, weights=choice.weights), "cpu")
    with closing(Compiler(task, {}, jax.devices(), tmp_path)) as compiler:
        state = compiler.initial_state("dp").result()()
    np.testing.assert_array_equal(state.params["token"]["embedding"], tensors["model.embed_tokens.weight"])
