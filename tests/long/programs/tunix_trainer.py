"""A small language model that Tunix trains: `PeftTrainer.train` is the loop, with its arrays fully sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig, TrainingInput

VOCABULARY, WIDTH, HIDDEN = 64, 32, 128


class LanguageModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        init = nnx.with_partitioning(nnx.initializers.normal(0.02), ("fsdp", None))
        self.embed = nnx.Embed(VOCABULARY, WIDTH, embedding_init=init, rngs=rngs)
        self.up = nnx.Linear(WIDTH, HIDDEN, kernel_init=init, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, kernel_init=init, rngs=rngs)

    def __call__(self, tokens, positions, cache, attention_mask):
        x = self.embed(tokens)
        return self.embed.attend(x + self.down(nnx.gelu(self.up(x)))), cache


def model_input(batch):
    positions = jnp.arange(batch.input_tokens.shape[1])
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": positions,
        "attention_mask": None,
    }


class Printing(PeftTrainer):
    def _log_metrics(self, loss, *args, **kwargs):
        print(float(loss).hex())
        super()._log_metrics(loss, *args, **kwargs)


def batches(count):
    generator = np.random.default_rng(0)
    for _ in range(count):
        tokens = np.cumsum(generator.integers(1, 3, (16, 24)), axis=1) % VOCABULARY
        yield TrainingInput(input_tokens=tokens, input_mask=np.ones_like(tokens, bool))


mesh = Mesh(np.array(jax.devices()), ("fsdp",), axis_types=(AxisType.Auto,))
with jax.set_mesh(mesh), mesh:
    model = nnx.jit(lambda: LanguageModel(nnx.Rngs(0)))()
    nnx.update(model, jax.device_put(nnx.state(model), nnx.get_named_sharding(nnx.state(model), mesh)))
    trainer = Printing(model, optax.adamw(1e-2), TrainingConfig(eval_every_n_steps=1000, max_steps=20))
    trainer.with_gen_model_input_fn(model_input).train(batches(20))
