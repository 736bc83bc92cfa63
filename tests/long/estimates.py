"""Traced costs against the compiler's: `python tests/long/estimates.py [WORD …] [--kept] [--record]`.

Needs the extras `tpu` and `gpu-compiler`, no TPU or GPU, and about a minute a case on two cores. With words only the
cases that have them all. A compilation that takes longer than five minutes is given up. `--kept` takes the compiler's
figures from what was recorded on this package set, where programs are the same as then.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.explain.explanation import ProgramRequest
from shardtui.engine.hlo.step_cost import StepCost
from shardtui.engine.planning.ranking import Board
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import HF, choose_model

from docs.tables import DATA
from tests.suite import versions
from tests.table import Cell, Table, arguments, python

CASES = """
gpt2          v5e:2x4     dp,fsdp,fsdp4-model2 batch_size=64
gpt2          v5e:2x4     pp2,dp-tp2-pp2     batch_size=32 remat=true
gpt2-medium   v5e:2x4     dp-tp4             batch_size=32 remat=true
gpt2-medium   v6e:2x4     fsdp-tp2           batch_size=64
gpt2-medium   v4:2x2x2    tp                 batch_size=32 remat=true
gpt2-large    v4:2x2x2    fsdp               batch_size=16
gpt2-large    v6e:4x4     dp-tp4             batch_size=64
gpt2-xl       v5e:4x4     fsdp               batch_size=32 remat=true
gpt2-xl       v5p:2x2x4   dp                 batch_size=64
gpt2-medium   v4:4x4x4    dp-tp2             batch_size=256 remat=true
gpt3-175b     v4:4x4x4    fsdp-tp8           batch_size=64
gpt3-175b     v5p:4x4x4   fsdp,fsdp-tp2,fsdp-tp4,fsdp-tp8 batch_size=64
gpt3-175b     v5p:4x4x4   fsdp-tp8           batch_size=512
gpt2          v6e:16x16   dp                 batch_size=1024
gpt2-large    v5e:16x16   fsdp               batch_size=512 remat=true
gpt3-175b     v6e:16x16   fsdp-tp4           batch_size=256
gpt3-175b     v5e:16x16   fsdp-tp8           batch_size=128
gpt3-175b     v5p:8x8x16  fsdp64-model16     batch_size=64
gpt3-175b     v5p:8x8x16  fsdp-tp2,fsdp-tp4,fsdp-tp8 batch_size=512
gpt2-large    v4:4x4x4    hsdp               batch_size=128
gpt2-large    v6e:2x4     hsdp               batch_size=32 remat=true
qwen3-0.6b    v5e:2x4     fsdp               batch_size=16 seq_len=2048
qwen3-0.6b    v6e:2x4     fsdp-tp2           batch_size=32 seq_len=2048
qwen3-0.6b    v5p:2x2x2   fsdp               batch_size=16 seq_len=2048 remat=false
hf:llama-1b   v5e:2x4     fsdp               batch_size=16 seq_len=1024
hf:llama-1b   v5e:2x4     dp-tp4             batch_size=8 seq_len=2048 remat=true
mistral-7b    v5p:2x2x4   fsdp               batch_size=16
olmo2-7b      v5p:2x2x4   fsdp-tp2           batch_size=16
llama3-8b     v5p:4x4x4   fsdp-tp4           batch_size=64
llama3-70b    v5p:4x4x4   fsdp               batch_size=64
mixtral-8x7b  v5p:4x4x4   fsdp-tp2           batch_size=64 seq_len=2048 expert_matmul=dense
qwen3-30b-a3b v5p:4x4x4   fsdp               batch_size=64 seq_len=2048 expert_matmul=dense
gemma3-4b     v5p:2x2x2   fsdp               batch_size=16 seq_len=2048
qwen3-8b      v5p:2x2x4   fsdp               batch_size=32
mistral-7b    v6e:4x4     fsdp-tp2           batch_size=32 seq_len=2048
hf:llama-1b   v6e:2x4     fsdp-tp2           batch_size=16 seq_len=2048
qwen3-30b-a3b v5p:4x4x4   fsdp               batch_size=64 seq_len=2048
gpt2          v6e:4x4     data2-fsdp4-model2 batch_size=64 remat=true
gpt2-medium   v5p:2x2x4   fsdp8-model2       batch_size=64 remat=true
gpt2-large    v5e:4x4     data4-model4       batch_size=32 remat=true
gpt2          h100:1x8    fsdp               batch_size=64
gpt2-medium   h100:4x8    fsdp-tp2           batch_size=64
gpt2-medium   v5e:2x4     fsdp               batch_size=64 accumulate_steps=4
qwen3-0.6b    v5p:2x2x4   fsdp               batch_size=32 seq_len=2048
qwen3-0.6b    v5e:4x4     data4-fsdp4        batch_size=32 seq_len=2048
qwen3-0.6b    v6e:2x4     fsdp               batch_size=32 seq_len=4096
qwen3-0.6b    v5e:2x4     fsdp-tp2           batch_size=64 seq_len=1024 accumulate_steps=4
hf:llama-1b   v5p:2x2x2   fsdp4-model2       batch_size=16 seq_len=4096 remat=true
hf:llama-1b   v6e:4x4     data2-fsdp8        batch_size=32 seq_len=2048 remat=true
hf:llama-1b   v4:2x2x4    fsdp8-seq2         batch_size=16 seq_len=4096 remat=true
llama3-8b     v5p:2x2x4   fsdp               batch_size=32 seq_len=4096
llama3-8b     v6e:4x8     fsdp8-model4       batch_size=32
mistral-7b    v5p:2x4x4   fsdp16-model2      batch_size=32
olmo2-7b      v6e:4x4     fsdp               batch_size=16
gemma3-4b     v5e:4x4     fsdp8-model2       batch_size=16 seq_len=2048
qwen3-8b      tpu7x:2x2x2 fsdp               batch_size=32
llama3-70b    tpu7x:4x4x4 fsdp-tp4           batch_size=128
gpt3-175b     tpu7x:4x4x4 fsdp-tp4           batch_size=128
gpt3-175b     2*v5p:4x4x4 hsdp               batch_size=128
llama3-70b    2*v5p:4x4x4 hsdp               batch_size=128
llama3-70b    h100:8x8    fsdp,fsdp-tp8      batch_size=64 seq_len=2048
docs/examples/transformer.py:language_model v5e:2x4 dp,dp-tp4,fsdp,fsdp-tp2 batch_size=64 seq_len=256 width=256
docs/examples/vision_transformer.py:VisionTransformer v5e:2x4 dp batch_size=256
"""
"""Model, slice, presets and settings."""
LLAMA_1B = json.loads("""{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192}
}""")
"""Sizes of Llama 3.2 1B (Meta 2024), as `transformers` writes them."""

LIMIT = 300
"""Seconds that a compilation may take."""
NAME = "long/estimates"
COLUMNS = {
    **dict.fromkeys(("model", "slice", "preset", "settings"), ""),
    **dict.fromkeys(("traced peak", "compiled peak"), "bytes"),
    "traced off": "{:+.1%}",
    "fits": "{}",
    **dict.fromkeys(("traced sent", "compiled sent"), "bytes"),
    "traced sent off": "{:+.1%}",
}
Key = tuple[str, ...]
"""Model, slice, preset and settings."""


class Compiled(NamedTuple):
    peak: int
    sent: int | None
    fits: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--kept", action="store_true", help="do not compile what is recorded")
    options = arguments(parser)
    cases = [case for line in CASES.strip().split("\n") for case in cases_of(line) if {*options.words} <= {*case}]
    kept = _kept() if options.kept else {}
    print(f"{versions()}\n")
    with Table(NAME, COLUMNS, options.record) as table:
        for name, topology, preset, *settings in cases:
            began = time.perf_counter()
            key = name, topology, preset, " ".join(settings)
            config = config_of(name, tuple(settings), preset, LLAMA_1B)
            traced = _traced(config, topology)
            compiled = kept[key] if key in kept else _compiled(config, topology)
            print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
            table.add(*key, *_cells(traced, compiled))
    for what, head in (("peak", "traced off"), ("sent", "traced sent off")):
        column = list(COLUMNS).index(head)
        errors = [abs(error) for row in table.rows if isinstance(error := row[column], float)]
        if errors:
            print(f"{what}: median {median(errors):.1%}, worst {max(errors):.1%} of {len(errors)}")


def cases_of(line: str) -> list[list[str]]:
    """Returns one for each preset of the line."""
    model, topology, presets, *settings = line.split()
    return [[model, topology, preset, *settings] for preset in presets.split(",")]


def _cells(traced: StepCost, compiled: Compiled | None) -> list[Cell]:
    def off(found: int | None, real: int | None) -> float | None:
        return found / real - 1 if found and real else None

    peaks = traced.peak_bytes, compiled and compiled.peak
    sent = traced.bytes_sent, compiled and compiled.sent
    fits = None
    if compiled:
        fits = ("yes" if compiled.fits else "no") + ("" if traced.fits == compiled.fits else " (not traced)")
    return [*peaks, off(*peaks), fits, *sent, off(*sent)]


def _kept() -> dict[Key, Compiled | None]:
    """What is recorded; None for a compilation that was given up."""
    recorded = json.loads((DATA / f"{NAME}.json").read_text()).get(python(), {"columns": {}, "rows": []})
    at = {head: index for index, head in enumerate(recorded["columns"])}
    found: dict[Key, Compiled | None] = {}
    for row in recorded["rows"]:
        peak, sent, fits = (row[at[head]] for head in ("compiled peak", "compiled sent", "fits"))
        found[tuple(row[:4])] = Compiled(peak, sent, fits.startswith("yes")) if peak else None
    return found


def config_of(name: str, settings: tuple[str, ...], preset: str, table: dict[str, Any]) -> RunConfig:
    """`table`: the config.json of a model `hf:…`."""
    with tempfile.TemporaryDirectory() as directory:
        if name.startswith(HF):
            (Path(directory) / "config.json").write_text(json.dumps(table))
            name = f"{HF}{directory}"
        model = choose_model(name, settings)
    return RunConfig(run="plan", model_name=name, model=model.model, training=model.training, preset=preset)


def _compiled(config: RunConfig, topology: str) -> Compiled | None:
    """None if it takes longer than `LIMIT`."""
    try:
        cost = msgspec.json.decode(ask("compile", config, topology, config.preset), type=StepCost)
    except subprocess.TimeoutExpired:
        return None
    return Compiled(cost.peak_bytes, cost.bytes_sent or None, cost.fits)


def _traced(config: RunConfig, topology: str) -> StepCost:
    (row,) = msgspec.json.decode(ask("plan", config, topology, config.preset).splitlines()[-1], type=Board).rows
    assert row.estimate, (row.problems, row.no_estimate)
    return row.estimate


def ask(question: str, config: RunConfig | ProgramRequest, *about: str, limit: float | None = LIMIT) -> bytes:
    command = [sys.executable, "-P", "-m", "shardtui.engine", question, encode_json(config).decode(), *about]
    found = subprocess.run(command, capture_output=True, timeout=limit)
    if found.returncode:
        raise SystemExit(f"{' '.join(command[-2:])}: {found.stderr.decode()[-2000:]}")
    return found.stdout


if __name__ == "__main__":
    main()
