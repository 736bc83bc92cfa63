"""Steps with and without windowed products: `python tests/long/windows.py [--record]`.

Needs the extra `tpu`, no TPU, and two minutes a case on two cores. The step's time is predicted, by the compiler's
estimates and schedule.
"""

from itertools import chain
from unittest.mock import patch

import cpu_devices
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.profiling.predicted import predicted_breakdown
from shardtui.engine.program import program
from shardtui.engine.spec.topology import load_topology

from tests.bench.plain import config, placed

CASES = """
gpt2-medium v5e:4x4   fsdp     batch_size=32 dropout=0
gpt2-medium v5p:2x2x4 fsdp     batch_size=32 dropout=0
gpt2-medium v5e:4x4   fsdp-tp2 batch_size=32 dropout=0
gpt2-large  v4:2x2x2  fsdp     batch_size=16 dropout=0
gpt2-xl     v5e:4x4   fsdp     batch_size=32 dropout=0 remat=true
mistral-7b  v5p:2x2x4 fsdp     batch_size=16
olmo2-7b    v5p:2x2x4 fsdp-tp2 batch_size=16
llama3-8b   v5p:2x2x2 fsdp     batch_size=16 remat=true
"""
COLUMNS = {
    **dict.fromkeys(("model", "slice", "preset", "settings"), ""),
    "step, windowed": "{:.3g} s",
    "step, as trained": "{:.3g} s",
    "change": "{:+.1%}",
    **dict.fromkeys(("sent, windowed", "sent, as trained", "peak, windowed", "peak, as trained"), "bytes"),
}


def main() -> None:
    with cpu_devices.table("long/windows", COLUMNS) as table:
        for line in CASES.strip().split("\n"):
            name, topology, preset, *settings = line.split()
            with patch.object(program, "COMPILER_OPTIONS", {}):
                windowed = compiled(name, topology, preset, settings)
            ours = compiled(name, topology, preset, settings)
            (before, after), *sizes = zip(windowed, ours, strict=True)
            case = name, topology, preset, " ".join(settings)
            table.add(*case, before, after, after / before - 1, *chain(*sizes))


def compiled(name: str, topology: str, preset: str, settings: list[str]) -> tuple[float, int, int]:
    """Returns the seconds of a step, the bytes that it sends, and its peak of memory."""
    _, placement = placed(config(*settings, name=name, preset=preset), topology=topology)
    step = program.trace_step(placement).lower().compile()
    module, mesh = parse(step.as_text() or ""), dict(placement.mesh.shape)
    sent = sum(flow.bytes_sent for flow in flows(inventory(module, mesh)))
    seconds = predicted_breakdown(module, mesh, load_topology(topology)).step_seconds
    return seconds, sent, step.memory_analysis().peak_memory_in_bytes


if __name__ == "__main__":
    main()
