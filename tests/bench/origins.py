"""How long Shardy's passes take to explain a step, beyond tracing and lowering it, and their memory."""

import resource
import time
from functools import partial

import jax
from shardtui.engine.explain import step
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.programs import lowered
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import describe_preset, place
from shardtui.engine.spec.preset_reader import load_presets

from ..explain.programs import nnx_decoder
from ..suite import printed
from .figure import Figure, at_most, timed
from .plain import config

REPEATS = 3
QWEN3_8B = {"T": 4096, "V": 151_936, "D": 4096, "N": 32, "K": 8, "H": 128, "F": 12_288, "LAYERS": 36}
"""Sizes of the decoder, whose layers are not scanned: the largest program of its kind."""


def run() -> list[Figure]:
    """Measures nano under every preset, and a decoder of the sizes of Qwen3-8B in a process of its own."""
    script = "from tests.bench.origins import large; print(*large())"
    seconds, more_bytes, values = map(float, printed("-c", script).split())
    size = f"{values:,.0f} values explained"
    return [
        at_most(1.0, "explaining a step of nano, each preset, beyond lowering", nano(), "s", "nothing"),
        at_most(5.0, "explaining a step of a decoder of 36 layers, 8 B parameters", [seconds], "s", size),
        at_most(2.0, "memory that this takes", [more_bytes / 1e9], "GB", "after lowering"),
    ]


def nano() -> list[float]:
    """Returns the seconds of each preset that fits, the least of three times: other programs only add to them."""
    task = Task(config(), "cpu")
    fitting = [each for each in load_presets()[0] if describe_preset(task, each, jax.devices()).fits]
    placements = [place(task, preset, jax.devices()) for preset in fitting]
    step.explained(placements[0])  # loads the passes
    return [
        min(timed(partial(explain, with_results=False), *lowered_step) for _ in range(REPEATS))
        for lowered_step in (step.lowered(placement) for placement in placements)
    ]


def large() -> tuple[float, float, int]:
    """Returns the seconds, bytes and explained values of a decoder's step, loss and gradients, on 4 × 2 devices."""
    for name, size in QWEN3_8B.items():
        setattr(nnx_decoder, name, size)
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        module = lowered(nnx_decoder.program(), "decoder").compiler_ir("stablehlo")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    found = explain(module, "decoder")
    seconds = time.perf_counter() - began
    return seconds, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before), len(found.values)
