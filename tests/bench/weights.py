"""The memory that reading a model's weights takes, beyond that of the parameters it fills."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import msgspec
import numpy as np
from shardtui.engine.models.task import TrainState
from shardtui.engine.program.weights import with_weights
from shardtui.engine.spec.hf_config import read_config

from ..oracle.files import write_file
from ..oracle.tiny import LLAMA, tensors_of
from ..suite import memory
from .figure import Figure, at_most
from .memory import bytes_of, measured_alone
from .plain import config, placed

PRESETS = ("dp", "fsdp", "fsdp-tp2")
SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "vocab_size": 16384}
"""A Llama of 0.2 B parameters."""


def run() -> list[Figure]:
    with TemporaryDirectory() as folder:
        largest = _write(Path(folder))
        return [_figure(folder, preset, largest) for preset in PRESETS]


def _write(folder: Path) -> int:
    """Writes the model. Returns the bytes of its largest tensor."""
    table = {**LLAMA, **SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(table))
    tensors = tensors_of(read_config(folder), "LlamaForCausalLM")
    write_file(folder / "model.safetensors", tensors)
    return max(tensor.nbytes for tensor in tensors.values())


def _figure(folder: str, preset: str, largest: int) -> Figure:
    ((shards, peak),) = measured_alone("weights", folder, preset)
    against = f"{shards / 1e6:,.0f} MB of shards, largest tensor {largest / 1e6:,.0f} MB"
    return at_most(1.0, f"reading weights, {preset}", [(peak - shards) / largest], "×", against)


def _measure(folder: str, preset: str) -> None:
    """Prints the bytes of all shards, and the peak of resident memory while they are read."""
    task, placement = placed(config(name=f"hf:{folder}", preset=preset))
    zeros = jax.tree.map(lambda array: np.zeros(array.shape, array.dtype), task.abstract_state.params)
    state = TrainState(jax.device_put(zeros, placement.state_shardings.params), (), (), ())
    jax.block_until_ready(state)
    shards = bytes_of(state)
    resident = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    filled = with_weights(state, msgspec.structs.replace(task.config, weights=folder))
    jax.block_until_ready(filled)
    print(shards, memory("VmHWM") - resident + shards)


if __name__ == "__main__":
    _measure(*sys.argv[1:])
