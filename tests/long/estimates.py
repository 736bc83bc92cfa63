"""Plans against the compiler: `python tests/long/estimates.py [WORD …] [--of GROUP] [--record]`.

Needs the extra `tpu`, no TPU, and about a minute a case on two cores; what was compiled before is kept. A compilation
that takes longer than five minutes is given up. With words only the cases that have them all. Groups: `families` other
than GPT-2, some of them as a directory of `transformers`; `traced`, models of one's own, which are estimated from their
trace. `tests/long/boards.py` compares several slices, tpu7x and GPUs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.planning.ranking import Board, StepCost
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import HF, choose_model

from tests.suite import versions
from tests.table import Cell, Table, arguments

CASES = """
gpt2        v5e:2x4     dp          batch_size=64
gpt2        v5e:2x4     fsdp        batch_size=64
gpt2        v5e:2x4     pp2         batch_size=32 remat=true
gpt2        v5e:2x4     dp-tp2-pp2  batch_size=32 remat=true
gpt2-medium v5e:2x4     dp-tp4      batch_size=32 remat=true
gpt2-medium v6e:2x4     fsdp-tp2    batch_size=64
gpt2-medium v4:2x2x2    tp          batch_size=32 remat=true
gpt2-large  v4:2x2x2    fsdp        batch_size=16
gpt2-large  v6e:4x4     dp-tp4      batch_size=64
gpt2-xl     v5e:4x4     fsdp        batch_size=32 remat=true
gpt2-xl     v5p:2x2x4   dp          batch_size=64
gpt2-medium v4:4x4x4    dp-tp2      batch_size=256 remat=true
gpt3-175b   v4:4x4x4    fsdp-tp8    batch_size=64
gpt3-175b   v5p:4x4x4   fsdp        batch_size=64
gpt3-175b   v5p:4x4x4   fsdp-tp2    batch_size=64
gpt3-175b   v5p:4x4x4   fsdp-tp4    batch_size=64
gpt3-175b   v5p:4x4x4   fsdp-tp8    batch_size=64
gpt3-175b   v5p:4x4x4   fsdp-tp8    batch_size=512
gpt2        v6e:16x16   dp          batch_size=1024
gpt2-large  v5e:16x16   fsdp        batch_size=512 remat=true
gpt3-175b   v6e:16x16   fsdp-tp4    batch_size=256
gpt3-175b   v5e:16x16   fsdp-tp8    batch_size=128
gpt3-175b   v5p:8x8x16  fsdp64-model16 batch_size=64
gpt3-175b   v5p:8x8x16  fsdp-tp2    batch_size=512
gpt3-175b   v5p:8x8x16  fsdp-tp4    batch_size=512
gpt3-175b   v5p:8x8x16  fsdp-tp8    batch_size=512
gpt2-large  v4:4x4x4    hsdp        batch_size=128
gpt2-large  v6e:2x4     hsdp        batch_size=32 remat=true
"""

FAMILIES = """
qwen3-0.6b    v5e:2x4   fsdp     batch_size=16 seq_len=2048
qwen3-0.6b    v6e:2x4   fsdp-tp2 batch_size=32 seq_len=2048
qwen3-0.6b    v5p:2x2x2 fsdp     batch_size=16 seq_len=2048 remat=false
hf:llama-1b   v5e:2x4   fsdp     batch_size=16 seq_len=1024
hf:llama-1b   v5e:2x4   dp-tp4   batch_size=8 seq_len=2048 remat=true
mistral-7b    v5p:2x2x4 fsdp     batch_size=16
olmo2-7b      v5p:2x2x4 fsdp-tp2 batch_size=16
llama3-8b     v5p:4x4x4 fsdp-tp4 batch_size=64
llama3-70b    v5p:4x4x4 fsdp     batch_size=64
mixtral-8x7b  v5p:4x4x4 fsdp-tp2 batch_size=64 seq_len=2048 expert_matmul=dense
qwen3-30b-a3b v5p:4x4x4 fsdp     batch_size=64 seq_len=2048 expert_matmul=dense
gemma3-4b     v5p:2x2x2 fsdp     batch_size=16 seq_len=2048
qwen3-8b      v5p:2x2x4 fsdp     batch_size=32
mistral-7b    v6e:4x4   fsdp-tp2 batch_size=32 seq_len=2048
hf:llama-1b   v6e:2x4   fsdp-tp2 batch_size=16 seq_len=2048
"""
WIDE = "batch_size=64 seq_len=256 width=256"
TRACED = f"""
docs/examples/transformer.py:language_model v5e:2x4 dp       {WIDE}
docs/examples/transformer.py:language_model v5e:2x4 dp-tp4   {WIDE}
docs/examples/transformer.py:language_model v5e:2x4 fsdp     {WIDE}
docs/examples/transformer.py:language_model v5e:2x4 fsdp-tp2 {WIDE}
docs/examples/vision_transformer.py:VisionTransformer v5e:2x4 dp     batch_size=256
gpt2          v5e:2x4   fsdp       batch_size=64
gpt2          v5e:2x4   dp-tp2-pp2 batch_size=32 remat=true
gpt2-medium   v4:2x2x2  tp         batch_size=32 remat=true
gpt2-xl       v5p:2x2x4 dp         batch_size=64
qwen3-0.6b    v6e:2x4   fsdp-tp2   batch_size=32 seq_len=2048
mistral-7b    v5p:2x2x4 fsdp       batch_size=16
gemma3-4b     v5p:2x2x2 fsdp       batch_size=16 seq_len=2048
hf:llama-1b   v5e:2x4   dp-tp4     batch_size=8 seq_len=2048 remat=true
gpt3-175b     v5p:4x4x4 fsdp-tp8   batch_size=64
llama3-70b    v5p:4x4x4 fsdp       batch_size=64
qwen3-30b-a3b v5p:4x4x4 fsdp       batch_size=64 seq_len=2048
"""
TRACE = """
import sys
import jax, msgspec
from shardtui.engine.planning.step_trace import StepTrace
from shardtui.engine.program.setup import simulated_task
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology

slice_ = load_topology(sys.argv[2])
task = simulated_task(msgspec.json.decode(sys.argv[1], type=RunConfig), slice_.platform, slice_.devices)
cost = StepTrace(task, load_preset(sys.argv[3]), jax.devices()).cost(slice_)
print(msgspec.json.encode(cost).decode())
"""
"""Prints the `StepCost` of a step by its trace, also where there is a formula."""
LLAMA_1B = json.loads("""{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192}
}""")
"""Sizes of Llama 3.2 1B (Meta 2024), as `transformers` writes them."""

GROUPS = {"": CASES, "families": FAMILIES, "traced": TRACED}
LIMIT = 300
"""Seconds that a compilation may take."""
COLUMNS = {
    **dict.fromkeys(("model", "slice", "preset", "settings"), ""),
    **dict.fromkeys(("peak by formula", "peak by the compiler"), "bytes"),
    "off": "{:+.1%}",
    "fits": "{}",
    **dict.fromkeys(("sent by formula", "sent by the compiler"), "bytes"),
    "sent off": "{:+.1%}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--of", choices=GROUPS, default="", metavar="GROUP", help=", ".join(filter(None, GROUPS)))
    options = arguments(parser)
    suffix, is_traced = f"-{options.of}" if options.of else "", options.of == "traced"
    columns = {head.replace("formula", "trace") if is_traced else head: form for head, form in COLUMNS.items()}
    chosen = [
        line for line in GROUPS[options.of].split("\n") if line and all(word in line.split() for word in options.words)
    ]
    print(f"{versions()}\n")
    memory, traffic, wrong = [], [], 0
    with Table(f"long/estimates{suffix}", columns, options.record) as table:
        for line in chosen:
            began = time.perf_counter()
            name, topology, preset, *settings = line.split()
            config = config_of(name, tuple(settings), preset, LLAMA_1B)
            estimate, compiled = _costs(config, topology, is_traced)
            print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
            if compiled is None:
                nothing = [None] * 5
                table.add(name, topology, preset, " ".join(settings), estimate.peak_bytes, "not compiled", *nothing)
                continue
            error = estimate.peak_bytes / compiled.peak_bytes - 1
            memory.append(abs(error))
            wrong += estimate.fits != compiled.fits
            sent: tuple[Cell, Cell, Cell] = (None, None, None)
            if compiled.bytes_sent and estimate.bytes_sent:
                difference = estimate.bytes_sent / compiled.bytes_sent - 1
                traffic.append(abs(difference))
                sent = (estimate.bytes_sent, compiled.bytes_sent, difference)
            peaks = (estimate.peak_bytes, compiled.peak_bytes, error)
            table.add(name, topology, preset, " ".join(settings), *peaks, _verdict(estimate, compiled), *sent)
    print(f"\npeak: median {median(memory):.1%}, worst {max(memory):.1%}; verdicts wrong: {wrong} of {len(memory)}")
    if traffic:
        print(f"sent: median {median(traffic):.1%}, worst {max(traffic):.1%}, of {len(traffic)} that compile")


def _verdict(estimate: StepCost, compiled: StepCost) -> str:
    by_formula = "" if estimate.fits == compiled.fits else f" (formula: {'yes' if estimate.fits else 'no'})"
    return ("yes" if compiled.fits else "no") + by_formula


def config_of(name: str, settings: tuple[str, ...], preset: str, table: dict[str, Any]) -> RunConfig:
    """`table`: the config.json of a model `hf:…`."""
    with tempfile.TemporaryDirectory() as directory:
        if name.startswith(HF):
            (Path(directory) / "config.json").write_text(json.dumps(table))
            name = f"{HF}{directory}"
        model = choose_model(name, settings)
    return RunConfig(run="plan", model_name=name, model=model.model, training=model.training, preset=preset)


def _costs(config: RunConfig, topology: str, is_traced: bool) -> tuple[StepCost, StepCost | None]:
    """By formula or trace, and by the compiler; None if that takes longer than `LIMIT`."""
    estimate = (by_trace if is_traced else by_formula)(config, topology, config.preset)
    try:
        return estimate, msgspec.json.decode(ask("compile", config, topology, config.preset), type=StepCost)
    except subprocess.TimeoutExpired:
        return estimate, None


def by_formula(config: RunConfig, topology: str, preset: str) -> StepCost:
    (row,) = msgspec.json.decode(ask("plan", config, topology, preset), type=Board).rows
    assert row.estimate and row.estimate.basis == "formula", row.problems or row.no_estimate
    return row.estimate


def by_trace(config: RunConfig, topology: str, preset: str) -> StepCost:
    command = [sys.executable, "-P", "-c", TRACE, encode_json(config).decode(), topology, preset]
    return msgspec.json.decode(answer(command), type=StepCost)


def ask(question: str, config: RunConfig, *about: str, limit: float | None = LIMIT) -> bytes:
    engine = [sys.executable, "-P", "-m", "shardtui.engine", question]
    return answer([*engine, encode_json(config).decode(), *about], limit)


def answer(command: list[str], limit: float | None = LIMIT) -> bytes:
    found = subprocess.run(command, capture_output=True, env=os.environ, timeout=limit)
    if found.returncode:
        raise SystemExit(f"{' '.join(command[-2:])}: {found.stderr.decode()[-2000:]}")
    return found.stdout


if __name__ == "__main__":
    main()
