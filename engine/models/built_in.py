"""Adapts the built-in GPT-2 decoder to `Task`."""

import jax
import jax.numpy as jnp
import msgspec
from flax import nnx

from ..spec.config import ModelConfig, RunConfig
from .array import Batch, text_batch
from .decoder import Decoder, loss, z_loss
from .sizes import attention_kernels, compute_dtype, expert_matmul, flops_per_token, parameter_count


class BuiltIn:
    """The built-in decoder, with the same interface as `UserModule`."""

    def __init__(self, config: RunConfig, model: ModelConfig, platform: str) -> None:
        self._config = msgspec.structs.replace(model, expert_matmul=expert_matmul(model, platform))
        self._training = config.training
        self._seed = config.seed
        self.dtype: str = compute_dtype(model, platform)
        self.attention_kernels = attention_kernels(model, platform, config.training.seq_len, _capability(platform))
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
    """None: it trains on text."""

    def optimizer(self) -> None:
        return None

    def module(self) -> Decoder:
        return Decoder(self._config, jnp.dtype(self.dtype), nnx.Rngs(self._seed), self.attention_kernels)

    def objective(self, module: Decoder, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Returns the minimised value and the mean cross-entropy, each float32 []. The former adds `balance` × the
        experts' balance loss and `z_loss` × the z-loss. Without a key there is no dropout."""
        logits, balance = module.logits_and_balance(batch.inputs, key if self._config.dropout else None)
        minimised = value = loss(logits, batch.targets)
        if balance is not None:
            minimised += self._config.balance * balance
        if weight := self._training.z_loss:
            minimised += weight * z_loss(logits)
        return minimised, value

    def held_out_loss(self, module: Decoder, batch: Batch) -> jax.Array:
        return self.objective(module, batch, None)[1]


def _capability(platform: str) -> str:
    """Returns the compute capability of this process's GPUs, empty without one."""
    return getattr(jax.local_devices()[0], "compute_capability", "") if platform == "gpu" else ""
