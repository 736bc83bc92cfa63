"""This engine's side of `gpu`: prints the card, and then tokens/s for every line on stdin."""

import sys
import time

import jax
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import load_model

from .gpu import SETTINGS
from .plain import Plain

STEPS = 20


def main() -> None:
    """Compiles and warms up, and then times steps on request; prints nothing without a GPU."""
    if jax.default_backend() != "gpu":
        return
    model = load_model("gpt2", SETTINGS)
    plain = Plain(
        RunConfig(run="gpu", model_name="gpt2", model=model.model, training=model.training, preset="dp", devices=1)
    )
    state, batch = plain.state(), plain.batch(0)
    for _ in range(3):
        state, loss = plain.step(state, batch)
    loss.block_until_ready()
    print(jax.devices()[0].device_kind, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for number in range(STEPS):
            state, loss = plain.step(state, plain.batch(number))
        loss.block_until_ready()
        print(STEPS * model.training.tokens_per_step / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()
