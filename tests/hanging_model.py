"""A model of the user's, whose `batch` is slow, hangs or ends one process if a file tells it to."""

from pathlib import Path

MODEL = """
import ctypes
import os
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

FOLDER = pathlib.Path(__file__).parent

class Lm(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(64, 64, rngs=rngs)

    def __call__(self, tokens):
        return self.table(tokens)

def lm(rngs: nnx.Rngs):
    return Lm(rngs)

def loss(model, batch):
    return -jnp.take_along_axis(jax.nn.log_softmax(model(batch)), batch[..., None], -1).mean()

def batch(step, batch_size):
    time.sleep(0.02)  # leaves the processor to others
    slow = FOLDER / f"slow-{jax.process_index()}-{step}"
    if slow.exists():
        time.sleep(float(slow.read_text()))
    for when in ("now", step):
        for how in FOLDER.glob(f"hang-*-{jax.process_index()}-{when}"):
            if when == "now":
                how.unlink()
            hang(how.name)
    return np.random.default_rng(step).integers(0, 64, (batch_size, 4))

def hang(how):
    if "exit" in how:
        os._exit(int(how.split("-")[1].removeprefix("exit")))
    if "native" in how:
        mutex, native = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # keeps the lock of the interpreter
        native.pthread_mutex_lock(mutex)
        native.pthread_mutex_lock(mutex)
    time.sleep(1000)
"""


class HangingModel:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lm.py").write_text(MODEL)

    @property
    def options(self) -> tuple[str, str]:
        return f"--model={self._folder / 'lm.py'}:lm", "--batch-size=8"

    def hang_once(self, process: int, how: str = "sleep") -> None:
        """Makes a process hang in its next batch. `how`: `sleep`, or `native`, which keeps Python from running."""
        (self._folder / f"hang-{how}-{process}-now").touch()

    def hang_always(self, process: int, step: int) -> None:
        (self._folder / f"hang-sleep-{process}-{step}").touch()

    def exit_once(self, process: int, status: int) -> None:
        (self._folder / f"hang-exit{status}-{process}-now").touch()

    def be_slow(self, process: int, step: int, seconds: float) -> None:
        (self._folder / f"slow-{process}-{step}").write_text(str(seconds))
