"""The plain loop that our speed is measured against: `jax.jit`, the same step, model and data, and nothing around it.

`python -m tests.bench.plain`: prints a line for each step that it has done, until it is ended.
"""

import time
from collections.abc import Iterator

import jax
from shardtui.engine.models.task import Batch, Task, TrainState
from shardtui.engine.program.program import Placement, compile_initial_state, place, trace_step
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.data import Batches, read_corpus


def config(*settings: str, preset: str = "dp", devices: int | None = None) -> RunConfig:
    """Of nano, with changes."""
    model = load_model("nano", settings)
    return RunConfig(
        run="plain", model_name="nano", model=model.model, training=model.training, preset=preset, devices=devices
    )


class Plain:
    """A task placed under a preset, and what a loop over it needs."""

    def __init__(self, config: RunConfig) -> None:
        devices = jax.devices()[: config.devices]
        self.task = Task(config, devices[0].platform)
        self.placement: Placement = place(self.task, load_preset(config.preset), devices)
        self.batches = Batches(
            read_corpus(config.data), config.training.batch_size, config.training.seq_len, config.seed
        )
        self.step = trace_step(self.task, self.placement).lower().compile()

    def state(self) -> TrainState:
        return compile_initial_state(self.task, self.placement)()

    def batch(self, number: int) -> Batch:
        return Batch(*map(jax.device_put, self.batches[number], self.placement.batch_shardings))

    def losses(self) -> Iterator[float]:
        """Each is read when the next step has been dispatched, as anyone would who knows that dispatch is
        asynchronous."""
        state, number, before = self.state(), 0, None
        while True:
            state, loss = self.step(state, self.batch(number))
            if before is not None:
                yield float(before)
            before, number = loss, number + 1


def main() -> None:
    plain = Plain(config())
    print("compiled", flush=True)
    told = time.monotonic()
    for steps, _ in enumerate(plain.losses(), 1):
        if time.monotonic() - told > 0.1:
            told = time.monotonic()
            print(steps, flush=True)


if __name__ == "__main__":
    main()
