"""The GPT-2 decoder as a task trains it."""

import jax
import jax.numpy as jnp
from flax import nnx

from ..spec.config import ModelConfig, RunConfig
from .array import Batch, text_batch
from .decoder import BALANCE, Gpt, loss
from .sizes import compute_dtype, flops_per_token, parameter_count


class BuiltIn:
    def __init__(self, config: RunConfig, model: ModelConfig, platform: str) -> None:
        self._config = model
        self._training = config.training
        self._seed = config.seed
        self.dtype: str = compute_dtype(model, platform)
        self.batch = text_batch(config.training.batch_size, config.training.seq_len)

    @property
    def parameters(self) -> int:
        return parameter_count(self._config)

    @property
    def padding_parameters(self) -> int:
        return (self._config.vocab_rows - self._config.vocab) * self._config.embed

    @property
    def flops_per_step(self) -> float:
        return self._training.tokens_per_step * flops_per_token(self._config, self._training.seq_len)

    batches = None
    """Text."""

    def optimizer(self) -> None:
        """The usual one."""

    def module(self) -> Gpt:
        return Gpt(self._config, jnp.dtype(self.dtype), nnx.Rngs(self._seed))

    def objective(self, module: Gpt, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """What is minimised, and the mean cross-entropy in it, float32 []: with experts the first has `BALANCE` × their
        balance loss besides. Without a key there is no dropout."""
        logits, balance = module.logits_and_balance(batch.inputs, key if self._config.dropout else None)
        value = loss(logits, batch.targets)
        return value if balance is None else value + BALANCE * balance, value
