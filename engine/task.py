"""What is trained: the state, one step of it, and a description of every array before it exists."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .config import RunConfig, TrainingConfig
from .model import BALANCE, Gpt, compute_dtype, loss
from .sharding import LogicalAxes, look

Tree = Any


class TrainState(NamedTuple):
    """All that a step reads and writes. A field may also hold shardings or descriptions in the place of its arrays."""

    params: Tree
    """Nested dict by module path, as `nnx.to_pure_dict` gives it."""
    opt_state: Tree
    step: Tree
    """int32 []: steps done."""
    seed: Tree
    """uint32 []: the key of step n is `fold_in(key(seed), n)`."""


class Batch(NamedTuple):
    inputs: Tree
    """int32 [B, T]"""
    targets: Tree
    """int32 [B, T]"""


@dataclass(frozen=True)
class Array:
    """The description of one array, made before the array: no device is touched for it."""

    names: tuple[str, ...]
    """Its own; a moment's is followed by its parameter's, whose layout it takes where no override names it."""
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    logical_axes: LogicalAxes


def optimizer(config: TrainingConfig) -> optax.GradientTransformation:
    schedule = optax.linear_schedule(0.0, config.learning_rate, max(1, config.warmup_steps))
    return optax.chain(
        optax.clip_by_global_norm(config.grad_clip),
        optax.adamw(lambda step: schedule(step + 1), b2=0.95, weight_decay=config.weight_decay),
    )


class Task:
    """What is trained, apart from where: initial state, step function, and a description of every array."""

    def __init__(self, config: RunConfig, platform: str) -> None:
        self.config = config
        self.platform = platform
        self.dtype = compute_dtype(config.model, platform)
        self._optimizer = optimizer(config.training)
        with nnx.use_eager_sharding(False):
            self._graph, self._variables = nnx.split(nnx.eval_shape(self._model))

    def _model(self) -> Gpt:
        return Gpt(self.config.model, jnp.dtype(self.dtype), nnx.Rngs(self.config.seed))

    def initial_state(self) -> TrainState:
        """Traced under `jit`, so that each device makes its own shards and no full copy exists."""
        with nnx.use_eager_sharding(False):
            params = nnx.to_pure_dict(nnx.state(self._model()))
        return TrainState(params, self._optimizer.init(params), jnp.zeros((), jnp.int32), jnp.uint32(self.config.seed))

    def train_step(
        self, state: TrainState, batch: Batch, gradient_shardings: Tree = None
    ) -> tuple[TrainState, jax.Array]:
        """One step: the state after it, and the loss before it, float32 []: the cross-entropy, also where experts are
        balanced besides."""
        key = jax.random.fold_in(jax.random.key(state.seed), state.step)
        (_, value), gradients = jax.value_and_grad(self.objective, has_aux=True)(state.params, batch, key)
        if gradient_shardings is not None:
            gradients = jax.lax.with_sharding_constraint(gradients, gradient_shardings)
        for path, gradient in jax.tree.leaves_with_path(gradients):
            look(gradient, gradient_name(_name(path)))
        with jax.named_scope("optimizer"):
            updates, opt_state = self._optimizer.update(gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1, state.seed), value

    def loss(self, params: Tree, batch: Batch, key: jax.Array | None) -> jax.Array:
        """Mean cross-entropy of a batch, float32 []; without a key there is no dropout."""
        return self.objective(params, batch, key)[1]

    def objective(self, params: Tree, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """What is minimised, and the loss in it: with experts the first has `BALANCE` × their balance loss besides."""
        variables = jax.tree.map(lambda leaf: leaf, self._variables)
        nnx.replace_by_pure_dict(variables, params)
        with nnx.use_eager_sharding(False):
            model = nnx.merge(self._graph, variables)
        logits, balance = model.logits_and_balance(batch.inputs, key if self.config.model.dropout else None)
        value = loss(logits, batch.targets)
        return value if balance is None else value + BALANCE * balance, value

    @cached_property
    def abstract_state(self) -> TrainState:
        return jax.eval_shape(self.initial_state)

    @cached_property
    def state_arrays(self) -> TrainState:
        """A TrainState with an `Array` in the place of every array."""
        axes = {
            _name(path): variable.get_metadata().get("out_sharding")
            for path, variable in nnx.to_flat_state(self._variables)
        }

        def parameter(path: Any, leaf: Any) -> Array:
            name = _name(path)
            return Array((name,), "parameter", leaf.shape, leaf.dtype, axes[name] or (None,) * leaf.ndim)

        params = jax.tree_util.tree_map_with_path(parameter, self.abstract_state.params)
        owners = optax.tree_utils.tree_map_params(
            self._optimizer,
            lambda _, owner: owner,
            self.abstract_state.opt_state,
            params,
        )
        opt_state = jax.tree_util.tree_map_with_path(_moment, self.abstract_state.opt_state, owners)
        step, seed = (
            Array((name,), "scalar", (), getattr(self.abstract_state, name).dtype, ()) for name in ("step", "seed")
        )
        return TrainState(params, opt_state, step, seed)

    @cached_property
    def batch_arrays(self) -> Batch:
        shape = (self.config.training.batch_size, self.config.training.seq_len)
        return Batch(
            *(Array((f"batch.{name}",), "batch", shape, jnp.dtype("int32"), ("batch", "seq")) for name in Batch._fields)
        )

    @cached_property
    def arrays(self) -> list[Array]:
        return jax.tree.leaves((self.state_arrays, self.batch_arrays))


def gradient_name(parameter: str) -> str:
    return f"grad.{parameter}"


def _name(path: tuple[Any, ...]) -> str:
    """A key path as `blocks.mlp.up.kernel`. The numbers by which optax chains its states are left out."""
    keys = (getattr(key, "key", getattr(key, "name", key)) for key in path)
    return ".".join(str(key) for key in keys if not isinstance(key, jax.tree_util.SequenceKey))


def _moment(path: Any, leaf: Any, owner: Any) -> Array:
    if not isinstance(owner, Array):
        name = f"opt_state{jax.tree_util.keystr(path)}"
        return Array((name,), "scalar", leaf.shape, leaf.dtype, (None,) * leaf.ndim)
    return Array((_name(path), *owner.names), "moment", leaf.shape, leaf.dtype, owner.logical_axes)
