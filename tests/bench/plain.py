"""The plain training loop that benchmarks compare with: `jax.jit` with the same step, model and data, and nothing else.

`python -m tests.bench.plain` trains until it is killed, and prints the number of steps about ten times a second.
"""

import time
from collections.abc import Iterator

import jax
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.source import read_corpus
from shardtui.engine.models.task import Batch, Task, TrainState
from shardtui.engine.program.placement import Placement, place
from shardtui.engine.program.program import compile_initial_state, trace_step
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology


def config(*settings: str, name: str = "nano", preset: str = "dp", devices: int | None = None) -> RunConfig:
    """Returns the config of a model, with settings such as `layers=4`."""
    model = choose_model(name, settings)
    own = {"model_name": name, "model": model.model, "training": model.training}
    return RunConfig(run="plain", preset=preset, devices=devices, **own)


def placed(config: RunConfig, preset: Preset | None = None, topology: str = "") -> tuple[Task, Placement]:
    """Returns the task of a config, and its placement under its preset, or another one, on devices of this machine or
    of a slice."""
    if topology:
        from shardtui.engine.planning.ahead_of_time import find_slice  # not for those who time this program's start

        wanted = load_topology(topology)
        platform, devices = wanted.platform, find_slice(wanted)
    else:
        devices = jax.devices()[: config.devices]
        platform = devices[0].platform
    task = Task(config, platform)
    return task, place(task, preset or load_preset(config.preset), devices)


class Plain:
    """A task placed under a preset, with its compiled step and its data."""

    def __init__(self, config: RunConfig) -> None:
        self.task, self.placement = placed(config)
        training = config.training
        self.batches = Batches(read_corpus(config.data), training.batch_size, training.seq_len, config.seed)
        self.step = trace_step(self.placement).lower().compile()
        self._trained: tuple[TrainState, Batch] | None = None

    def state(self) -> TrainState:
        return compile_initial_state(self.placement)()

    def batch(self, number: int) -> Batch:
        return Batch(*map(jax.device_put, self.batches[number], self.placement.batch_shardings))

    def seconds(self, steps: int) -> float:
        """Trains on, on one batch. Returns the seconds of a step; all devices are idle before and after."""
        state, batch = self._trained or (self.state(), self.batch(0))
        jax.block_until_ready((state, batch))
        began = time.perf_counter()
        for number in range(steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                state, _ = self.step(state, batch)
        jax.block_until_ready(state)
        self._trained = state, batch
        return (time.perf_counter() - began) / steps

    def losses(self) -> Iterator[float]:
        """Trains and yields losses, each read after the next step is dispatched, since dispatch is asynchronous."""
        state, number, before = self.state(), 0, None
        while True:
            state, scalars = self.step(state, self.batch(number))
            if before is not None:
                yield float(before)
            before, number = scalars["loss"], number + 1


def main() -> None:
    plain = Plain(config())
    print("compiled", flush=True)
    printed = time.monotonic()
    for steps, _ in enumerate(plain.losses(), 1):
        if time.monotonic() - printed > 0.1:
            printed = time.monotonic()
            print(steps, flush=True)


if __name__ == "__main__":
    main()
