"""A loop that is timed with each part of its step removed in turn, against the account of the whole step:
`python -m tests.bench.parts` prints ratios as JSON.

There are two devices, one for each core: those that share a core wait in collectives for the core, not for each other.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"JAX_NUM_CPU_DEVICES": "2", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from shardtui.engine.profiling.breakdown import read_breakdown

from .plain import Plain, config

STEPS, ROUNDS = 4, 7
TIMES = 20
"""How often each part of the synthetic step does its operation."""
SWAP = [(0, 1), (1, 0)]
WORK: Mapping[str, tuple[Callable[[jax.Array], jax.Array], tuple[int, ...]]] = {
    "matrix products": (lambda a: a @ a, (2, 256, 256)),
    "other fusions": (lambda a: jnp.tanh(a) + 0.5, (2, 200_000)),
    "copies": (lambda a: jnp.roll(a, 1, axis=1), (2, 800_000)),
    "collectives": (lambda a: lax.ppermute(a, "x", SWAP), (2, 800_000)),
}
"""Part of a step to its operation and the shape of what that is applied to, split over the devices."""
Run = Callable[[], Any]


def synthetic(without: str) -> Run:
    """Returns a compiled step of all parts but one."""
    kept = [each for name, each in WORK.items() if name != without]

    def step(*arrays: jax.Array) -> list[jax.Array]:
        found = list(arrays)
        for at, (work, _) in enumerate(kept):
            for _ in range(TIMES):
                found[at] = lax.optimization_barrier(work(found[at]))  # so that operations stay apart
        return found

    mesh, spec = jax.make_mesh((2,), ("x",)), PartitionSpec("x")
    split = NamedSharding(mesh, spec)
    arrays = [jax.device_put(jnp.zeros(shape), split) for _, shape in kept]
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return partial(mapped.lower(*arrays).compile(), *arrays)


def trained(plain: Plain) -> Run:
    """Returns a step that trains."""
    state, batch = plain.state(), plain.batch(0)

    def run() -> Any:
        nonlocal state
        state, loss = plain.step(state, batch)
        return loss

    return run


def seconds(run: Run) -> float:
    """Returns the seconds of a step."""
    jax.block_until_ready(run())
    began = time.perf_counter()
    for _ in range(STEPS - 1):
        run()
    jax.block_until_ready(run())
    return (time.perf_counter() - began) / STEPS


def shares(run: Run) -> dict[str, float]:
    """Returns the parts of a traced step as fractions of it; all collectives are one."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 1
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            seconds(run)
        (path,) = Path(folder).rglob("*.xplane.pb")
        parts = {part.name: part.share for part in read_breakdown(path, {"x": 2}).parts}
    collectives = sum(share for name, share in parts.items() if " over " in name)
    return parts | {"collectives": collectives}


def ratios(whole: Run, without: Mapping[str, Run]) -> dict[str, list[float]]:
    """Returns for each part what the account leaves of the whole step without it ÷ the step without it."""
    found: dict[str, list[float]] = {name: [] for name in without}
    for _ in range(ROUNDS):
        parts, time_of_whole = shares(whole), seconds(whole)
        for name, run in without.items():
            found[name].append(time_of_whole * (1 - parts[name]) / seconds(run))
    return found


def main() -> None:
    made = ratios(synthetic(""), {name: synthetic(name) for name in WORK})
    preset = trained(Plain(config(preset="dp")))
    alone = [trained(Plain(config("batch_size=8", preset="dp"), [device])) for device in jax.devices()]
    found = ratios(preset, {"collectives": lambda: [run() for run in alone]})
    print(json.dumps(made | {"collectives of nano under dp": found["collectives"]}))


if __name__ == "__main__":
    main()
