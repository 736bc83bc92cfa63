"""Planning for a pod of 1,024 chips: a trace, further meshes of the same axes, and one preset compared with a bare
script that only compiles the same program.

Needs the extra `tpu` but no TPU.
"""

import tempfile
from functools import partial

from shardtui.engine.base.encoding import encode_json

from ..suite import printed
from .figure import Figure, at_most, ratios, timed
from .plain import config

MODEL, TOPOLOGY, PRESET = "gpt3-175b", "v5p:8x8x16", "fsdp64-model16"
REPEATS = 2
TRACES = 5
MESHES = """
import sys, time
import msgspec
from shardtui.engine.planning.estimate import estimate_row
from shardtui.engine.planning.candidates import meshes, named
from shardtui.engine.program.setup import simulated_task
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.topology import load_topology

topology = load_topology(sys.argv[2])
task = simulated_task(msgspec.json.decode(sys.argv[1], type=RunConfig), "tpu")
presets = [named(mesh) for mesh in meshes(topology.devices, ["fsdp", "model"]) if len(mesh) == 2]
seconds = []
for preset in presets:
    began = time.perf_counter()
    if estimate_row(task, preset, topology.devices, topology).estimate:
        seconds.append(time.perf_counter() - began)
first, *others = seconds
print(first, sum(others) / len(others))
"""
BARE = """
import os, sys
os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
import msgspec
from jax.experimental import topologies
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import trace_step
from shardtui.engine.models.task import Task

task = Task(msgspec.json.decode(sys.argv[1], type=RunConfig), "tpu")
devices = topologies.get_topology_desc(platform="tpu", topology_name=sys.argv[2]).devices
compiled = trace_step(place(task, load_preset(sys.argv[3]), devices)).lower().compile()
print(compiled.memory_analysis().peak_memory_in_bytes)
"""


def run() -> list[Figure]:
    about = (_config(64), TOPOLOGY, PRESET)
    traces = [[*map(float, printed("-c", MESHES, _config(1024), TOPOLOGY).split())] for _ in range(TRACES)]
    ours, bare = [], []
    for _ in range(REPEATS):
        bare.append(_seconds("-c", BARE, *about))
        ours.append(_seconds("-P", "-m", "shardtui.engine", "compile", *about))
    name = f"plan of {MODEL} for {TOPOLOGY}, one preset ÷ a bare script that compiles it"
    return [
        at_most(2.0, f"a trace of {MODEL} for {TOPOLOGY}", [first for first, _ in traces], "s", ""),
        at_most(0.1, "a further mesh of the same axes", [each for _, each in traces], "s", ""),
        at_most(1.1, name, ratios(ours, bare), "×", f"bare: {min(bare):.1f} s"),
    ]


def _config(batch_size: int) -> str:
    return encode_json(config(f"batch_size={batch_size}", name=MODEL, preset=PRESET)).decode()


def _seconds(*arguments: str) -> float:
    """Returns the seconds of a Python process, with empty caches."""
    with tempfile.TemporaryDirectory() as cache:
        return timed(partial(printed, *arguments, XDG_CACHE_HOME=cache))
