"""What is trained: the state, one step of it, and a description of every array before it exists."""

from collections import Counter
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ..base.invalid import Invalid
from ..parallel.constraints import look
from ..spec.config import RunConfig, TrainingConfig, UserModel
from .array import Array, Batch, annotated_axes, gradient_name, name_of
from .built_in import BuiltIn
from .traces import Traces
from .user_model import UserModule

__all__ = ["Array", "Batch", "Task", "TrainState"]

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
    variables: Tree = {}  # noqa: RUF012 (nobody changes it)
    """What a module changes itself, such as the running mean of BatchNorm: as `params`. The built-in model has none."""


def optimizer(config: TrainingConfig) -> optax.GradientTransformation:
    schedule = optax.linear_schedule(0.0, config.learning_rate, max(1, config.warmup_steps))
    return optax.chain(
        optax.clip_by_global_norm(config.grad_clip),
        optax.adamw(lambda step: schedule(step + 1), b2=0.95, weight_decay=config.weight_decay),
    )


class Task:
    """What is trained, apart from where: initial state, step function, and a description of every array."""

    def __init__(self, config: RunConfig, platform: str) -> None:
        """Runs the user's functions, if the model is theirs: raises Invalid where they are not as they have to be."""
        self.config = config
        self.platform = platform
        self.model = (
            UserModule(config, config.model)
            if isinstance(config.model, UserModel)
            else BuiltIn(config, config.model, platform)
        )
        self.dtype = self.model.dtype
        """Of the computation; None where the model alone knows."""
        self.own_batches = self.model.batches
        """Those of the user's `batch`, in the place of text."""
        self._optimizer = self.model.optimizer() or optimizer(config.training)
        with nnx.use_eager_sharding(False):
            split = nnx.split(nnx.eval_shape(self.model.module), nnx.Param, nnx.RngState, ...)
        self._graph, self._params, self._rngs, self._variables = split
        self.refused: dict[str, list[str]] = {}
        """What jax refuses under explicit axis types, by layout."""
        self._traces = None
        if isinstance(self.model, UserModule):
            self._traces = Traces(self.outcome, self._abstract_arguments, self.model.told)
        if problems := self._parameter_problems():
            raise Invalid(*problems)

    @property
    def parameters(self) -> int:
        """Trainable elements, without padding rows."""
        if isinstance(self.model, BuiltIn):
            return self.model.parameters
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state.params))

    @property
    def flops_per_step(self) -> float:
        """Of the model, nothing twice: by formula, or as counted in what a user's functions do."""
        if isinstance(self.model, BuiltIn):
            return self.model.flops_per_step
        return self._traces.flops if self._traces else 0.0

    def initial_state(self) -> TrainState:
        """Traced under `jit`, so that each device makes its own shards and no full copy exists."""
        with nnx.use_eager_sharding(False):
            _, *split = nnx.split(self.model.module(), nnx.Param, nnx.RngState, ...)
        params, _, variables = map(nnx.to_pure_dict, split)
        opt_state = self._optimizer.init(params)
        return TrainState(params, opt_state, jnp.zeros((), jnp.int32), jnp.uint32(self.config.seed), variables)

    def train_step(
        self, state: TrainState, batch: Tree, gradient_shardings: Tree = None
    ) -> tuple[TrainState, jax.Array]:
        """One step: the state after it, and the loss before it, float32 []: the cross-entropy, also where experts are
        balanced besides."""
        key = jax.random.fold_in(jax.random.key(state.seed), state.step)
        outcome = jax.value_and_grad(self.outcome, has_aux=True)
        (_, (value, variables)), gradients = outcome(state.params, state.variables, batch, key)
        if gradient_shardings is not None:
            gradients = jax.lax.with_sharding_constraint(gradients, gradient_shardings)
        for path, gradient in jax.tree.leaves_with_path(gradients):
            look(gradient, gradient_name(name_of(path)))
        with jax.named_scope("optimizer"):
            updates, opt_state = self._optimizer.update(gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1, state.seed, variables), value

    def loss(self, params: Tree, batch: Tree, key: jax.Array | None) -> jax.Array:
        """Of a batch, float32 [], where there are no variables; without a key there is no dropout."""
        return self.outcome(params, {}, batch, key)[1][0]

    def outcome(
        self, params: Tree, variables: Tree, batch: Tree, key: jax.Array | None
    ) -> tuple[jax.Array, tuple[jax.Array, Tree]]:
        """What is minimised; the loss in it, and the variables after it."""
        module = self._module(params, key, variables)
        minimised, value = self.model.objective(module, batch, key)  # type: ignore[arg-type]
        return minimised, (value, self._after(module))

    def _module(self, params: Tree, key: jax.Array | None, variables: Tree) -> nnx.Module:
        states = [jax.tree.map(lambda leaf: leaf, state) for state in (self._params, self._variables)]
        for state, values in zip(states, (params, variables), strict=True):
            nnx.replace_by_pure_dict(state, values)
        with nnx.use_eager_sharding(False):
            return nnx.merge(self._graph, states[0], _reseeded(self._rngs, key), states[1])

    def _after(self, module: nnx.Module) -> Tree:
        """The variables as a pass has left them. What it has made besides, such as what was sown, is left out."""
        before = nnx.to_flat_state(self._variables)
        if not before:
            return {}
        _, _, _, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
        after = dict(nnx.to_flat_state(state))
        kept = [(path, after.get(path, leaf)) for path, leaf in before]
        changed = [
            f"{name_of(path)}: {leaf.dtype} {list(leaf.shape)}, {now.dtype} {list(now.shape)} after a pass"
            for (path, leaf), (_, now) in zip(before, kept, strict=True)
            if (leaf.shape, leaf.dtype) != (now.shape, now.dtype)
        ]
        if changed:
            raise Invalid(*(f"{problem}: a variable has to keep its shape and dtype" for problem in changed))
        return nnx.to_pure_dict(nnx.from_flat_state(kept))

    def problems_on(self, axes: tuple[str, ...]) -> list[str]:
        """Why the step cannot be written for a mesh with these axes, whatever their sizes."""
        return self._traces.problems_on(axes) if self._traces else []

    def _abstract_arguments(self) -> tuple[Tree, ...]:
        """Of `outcome`."""
        state, batch = self.abstract_state, jax.tree.map(_abstract, self.batch_arrays)
        return state.params, state.variables, batch, jax.eval_shape(jax.random.key, 0)

    def _parameter_problems(self) -> list[str]:
        leaves = [(name_of(path), leaf) for path, leaf in nnx.to_flat_state(self._params)]
        problems = [
            f"{name}: {leaf.dtype}: a parameter is of a float type: make it an nnx.Variable"
            for name, leaf in leaves
            if not jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        problems += [
            f"{name}: {len(axes)} dims are named {axes}, it has {leaf.ndim}: name each dim once"
            for name, leaf in leaves
            if len(axes := annotated_axes(leaf)) > leaf.ndim
        ]
        if not leaves:
            problems.append(f"{self.config.model_name} gives a module with no nnx.Param: there is nothing to train")
        return problems

    @cached_property
    def abstract_state(self) -> TrainState:
        return jax.eval_shape(self.initial_state)

    @cached_property
    def state_arrays(self) -> TrainState:
        """A TrainState with an `Array` in the place of every array."""
        state = self.abstract_state
        params = _described(state.params, self._params, "parameter")
        owners = optax.tree_utils.tree_map_params(
            self._optimizer,
            lambda leaf, owner: owner if leaf.shape == owner.shape else leaf,
            state.opt_state,
            params,
        )
        step, seed = (Array((name,), "scalar", (), getattr(state, name).dtype, ()) for name in ("step", "seed"))
        variables = _described(state.variables, self._variables, "variable")
        return TrainState(params, _moments(state.opt_state, owners), step, seed, variables)

    @property
    def batch_arrays(self) -> Tree:
        return self.model.batch

    @cached_property
    def arrays(self) -> list[Array]:
        return jax.tree.leaves((self.state_arrays, self.batch_arrays))

    @cached_property
    def annotated(self) -> set[str]:
        """The names of all dims of arrays."""
        return {axis for array in self.arrays for axis in array.logical_axes if axis}

    @property
    def logical_axes(self) -> set[str] | None:
        """All that rules may speak of. None where only a user's model knows: its activations may have more."""
        return self.annotated if isinstance(self.model, BuiltIn) else None


def _described(tree: Tree, state: nnx.State, kind: str) -> Tree:
    """`tree` with an `Array` in the place of each; `state` has the annotations."""
    axes = {name_of(path): annotated_axes(leaf) for path, leaf in nnx.to_flat_state(state)}

    def array(path: Any, leaf: Any) -> Array:
        name = name_of(path)
        return Array((name,), kind, leaf.shape, leaf.dtype, axes[name])

    return jax.tree_util.tree_map_with_path(array, tree)


def _moments(opt_state: Tree, owners: Tree) -> Tree:
    """The optimizer's arrays. Where two would have the same name, the numbers of the chain tell them apart."""
    counted = Counter(name_of(path) for path, _ in jax.tree.leaves_with_path(opt_state))

    def described(path: Any, leaf: Any, owner: Any) -> Array:
        return _moment(path, counted[name_of(path)] > 1, leaf, owner)

    return jax.tree_util.tree_map_with_path(described, opt_state, owners)


def _moment(path: Any, with_numbers: bool, leaf: Any, owner: Any) -> Array:
    if not isinstance(owner, Array):
        name = f"opt_state{jax.tree_util.keystr(path)}"
        return Array((name,), "scalar", leaf.shape, leaf.dtype, (None,) * leaf.ndim)
    names = (name_of(path, with_numbers), *owner.names)
    return Array(names, "moment", leaf.shape, leaf.dtype, owner.logical_axes)


def _reseeded(rngs: nnx.State, key: jax.Array | None) -> nnx.State:
    """The random streams of a module as they are at the beginning of a step: each has a key of its own."""
    streams = jax.tree.map(lambda leaf: leaf, rngs)
    for index, (_, variable) in enumerate(nnx.to_flat_state(streams)):
        if isinstance(variable, nnx.RngKey):
            fresh = jax.random.fold_in(jax.random.key(0) if key is None else key, index)
            variable.set_value(jax.random.split(fresh, variable.shape) if variable.shape else fresh)
        else:
            variable.set_value(jnp.zeros(variable.shape, variable.dtype))
    return streams


def _abstract(array: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
