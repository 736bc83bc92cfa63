"""What the built-in decoder computes for the tiny models, to be compared with the answers of `transformers`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from shardtui.engine.models.decoder import Decoder, loss
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.spec.config import TrainingConfig
from shardtui.engine.spec.hf_tensors import parts_of
from shardtui.engine.spec.model_config import ModelConfig

from ..conftest import tiny_config
from ..suite import loss_of
from .tiny import BATCH, DECAY, LEARNING_RATE, SEQ, STEPS, batch, filled, in_files, sampled, tensors_of, write_config

ANSWERS = Path(__file__).parent / "answers"
TRAINING = {"learning_rate": LEARNING_RATE, "warmup_steps": 1, "weight_decay": DECAY, "grad_clip": 1e9}
"""Without clipping."""


class Model:
    """A tiny model with the weights that the answers were computed with."""

    def __init__(self, architecture: str, folder: Path) -> None:
        """Writes its `config.json` to the folder."""
        self._answers = dict(np.load(ANSWERS / f"{architecture}.npz"))
        self.config = write_config(architecture, folder)
        self._parts = list(parts_of(self.config, architecture))
        self._tensors = tensors_of(self.config, architecture)
        training = TrainingConfig(batch_size=BATCH, seq_len=SEQ, **TRAINING)
        self._task = Task(tiny_config(model=self.config, training=training), "cpu")
        self._batch = Batch(*map(jnp.asarray, batch()))
        self.params = filled(self._task.abstract_state.params, self._tensors, self._parts)

    def forward(self) -> dict[str, float]:
        """Returns the largest absolute differences of logits and loss."""
        logits = _logits(self.config, self.params, self._batch.inputs)
        return self._furthest({"logits": logits, "loss": loss(logits, self._batch.targets)})

    def gradients(self) -> dict[str, float]:
        """Returns those of gradients, by tensor."""
        gradients = jax.jit(jax.grad(loss_of(self._task)))(self.params, self._batch, None)
        named = in_files(gradients, self._tensors, self._parts)
        return self._furthest({f"gradient {name}": sampled(gradient) for name, gradient in named.items()})

    def losses(self) -> dict[str, float]:
        """Returns that of the losses of ten steps."""
        return self._furthest({"losses": np.array(_losses(self._task, self.params, self._batch))})

    def _furthest(self, found: dict[str, Any]) -> dict[str, float]:
        return {name: float(np.abs(np.asarray(value) - self._answers[name]).max()) for name, value in found.items()}


def _logits(config: ModelConfig, params: Any, tokens: jax.Array) -> jax.Array:
    with nnx.use_eager_sharding(False):
        graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, jnp.float32, nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params)
        return jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens))(state, tokens)


def _losses(task: Task, params: Any, inputs: Batch) -> list[float]:
    state = jax.jit(task.initial_state)()._replace(params=jax.tree.map(jnp.asarray, params))
    step, losses = jax.jit(task.train_step), list[float]()
    for _ in range(STEPS + 1):
        state, scalars = step(state, inputs)
        losses.append(float(scalars["loss"]))
    return losses
