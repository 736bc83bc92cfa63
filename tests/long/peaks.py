"""Compares rebuilt peaks of memory with the compiler's own: `python tests/long/peaks.py [--record]` (about 10 minutes).

Programs for simulated devices and, with the extras `tpu` and `gpu-compiler`, for TPUs and GPUs that nobody has to hold.
None of them runs.
"""

import cpu_devices
from shardtui.engine.base import formatting
from shardtui.engine.program.program import compile_program

from tests.bench.plain import config, placed

CPU = "8 × cpu"
CASES = (
    (CPU, "nano", "dp", "batch_size=64"),
    (CPU, "nano", "fsdp", "batch_size=256"),
    (CPU, "nano", "fsdp", "batch_size=64 remat=true"),
    (CPU, "nano", "fsdp-tp2", "batch_size=64"),
    (CPU, "nano", "sp2", "batch_size=64"),
    (CPU, "nano", "dp-tp2-pp2", "batch_size=64"),
    (CPU, "nano-moe", "ep2-tp2", "batch_size=64"),
    ("v5e:2x4", "gpt2", "dp", "batch_size=64"),
    ("v5e:2x4", "gpt2", "fsdp", "batch_size=64"),
    ("v5e:2x4", "gpt2", "dp-tp2-pp2", "batch_size=32 remat=true"),
    ("v5e:2x4", "gpt2-medium", "dp-tp4", "batch_size=32 remat=true"),
    ("v5e:4x4", "gpt2-xl", "fsdp", "batch_size=32 remat=true"),
    ("v5p:4x4x4", "gpt3-175b", "fsdp-tp8", "batch_size=64"),
    ("h100:1x8", "gpt2", "dp", "batch_size=64"),
    ("h100:1x8", "gpt2", "fsdp", "batch_size=64 remat=true"),
    ("h100:1x8", "gpt2", "dp-tp2-pp2", "batch_size=32 remat=true"),
    ("h100:4x8", "gpt2-medium", "fsdp-tp2", "batch_size=64"),
)
"""Devices, model, preset, settings."""
COLUMNS = {
    **dict.fromkeys(("devices", "model", "preset", "settings"), ""),
    **dict.fromkeys(("rebuilt", "by the compiler"), "bytes"),
    "off": "{:+.1%}",
    "largest buffer": "{}",
}


def main() -> None:
    with cpu_devices.table("long/peaks", COLUMNS) as table:
        for devices, model, preset, settings in CASES:
            wanted = config(*settings.split(), name=model, preset=preset)
            found = compile_program(placed(wanted, topology=devices.replace(CPU, ""))[1]).description
            assert found.memory and found.at_peak
            rebuilt, said, largest = found.at_peak.bytes, found.memory.peak, found.peak_buffers[0]
            words = f"{largest.name or formatting.op(largest.op_name)}, {formatting.size(largest.bytes)}"
            table.add(devices, model, preset, settings, rebuilt, said, rebuilt / said - 1, words)


if __name__ == "__main__":
    main()
