"""One side of `maxtext`: compiles a step for a slice and writes its text and its peak of memory.

`python -m tests.bench.maxtext_step ours|theirs MODEL FSDP TENSOR SEQUENCES SEQ_LEN splash|plain FOLDER`
"""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardtui.engine.models.task import Task
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import trace_step
from shardtui.engine.spec.config import ModelConfig, RunConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology

TOPOLOGY, SAME_IN_MAXTEXT, CHIPS = "v5p:4x4x4", "v5p-128", 64


def ours(name: str, fsdp: int, tensor: int, sequences: int, seq_len: int, attention: str) -> Any:
    """Returns this engine's compiled step."""
    sizes = (f"batch_size={sequences}", f"seq_len={seq_len}", f"context={seq_len}")
    model = load_model(name, (*sizes, f"attention={attention}", "dropout=0"))  # MaxText's GPT-3 has no dropout
    assert isinstance(model.model, ModelConfig)
    preset = load_preset(f"fsdp{fsdp}-model{tensor}" if tensor > 1 else "fsdp")
    config = RunConfig(
        run="plan", model_name=name, model=model.model, training=model.training, preset=preset.name, devices=CHIPS
    )
    task = Task(config, "tpu")
    return trace_step(task, place(task, preset, find_slice(load_topology(TOPOLOGY)))).lower().compile()


def theirs(name: str, fsdp: int, tensor: int, sequences: int, seq_len: int, attention: str) -> Any:
    """Returns MaxText's compiled step, caught as its own command compiles it."""
    train_compile = importlib.import_module("maxtext.trainers.pre_train.train_compile")
    caught: list[Any] = []
    compile_step = train_compile.jit_and_compile
    train_compile.jit_and_compile = lambda *arguments: caught.append(compile_step(*arguments)) or caught[-1]
    with tempfile.TemporaryDirectory() as folder:
        train_compile.main(
            [
                "train_compile",
                f"compile_topology={SAME_IN_MAXTEXT}",
                "compile_topology_num_slices=1",
                f"model_name={name}",
                f"per_device_batch_size={sequences / CHIPS}",
                f"max_target_length={seq_len}",
                f"ici_fsdp_parallelism={fsdp}",
                f"ici_tensor_parallelism={tensor}",
                f"attention={'flash' if attention == 'splash' else 'dot_product'}",
                "remat_policy=full",
                "dataset_type=synthetic",
                f"base_output_directory={folder}",
            ]
        )
    return caught[0]


def main() -> None:
    """Compiles the side and writes `step.hlo` and `peak` into the folder."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    side, name, *sizes, attention, folder = sys.argv[1:]
    compiled = (ours if side == "ours" else theirs)(name, *map(int, sizes), attention)
    Path(folder, "step.hlo").write_text(compiled.as_text())
    Path(folder, "peak").write_text(str(compiled.memory_analysis().peak_memory_in_bytes))


if __name__ == "__main__":
    main()
