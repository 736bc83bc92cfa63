"""The training task: its state, its train step, and a description of every array before it exists."""

from collections.abc import Callable
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ..base.user_error import refuse
from ..parallel.constraints import constrain, inspect_sharding, out_sharding, token_groups
from ..spec.config import RunConfig, UserModel
from ..wire.descriptions import Counted
from .array import Array, Batch, Scalars, describe, gradient_name, name_of
from .blocks import micro_batch
from .decoder import BuiltIn
from .norms import global_norms
from .optimizer import describe_moments, optimizer, rate_of_step
from .sizes import flops_per_token
from .user_model import UserModule, parameter_problems
from .user_traces import Traces

__all__ = ["Array", "Batch", "Scalars", "Task", "TrainState"]
Tree = Any
Gradients = Callable[[Tree, Tree, jax.Array, jax.Array], tuple[Tree, Scalars, Tree]]
"""Maps variables, a micro-batch, its index [] and its examples' indices [b] to gradients, scalars and variables."""


class TrainState(NamedTuple):
    """Everything that a step reads and writes. `variables`: what a module updates itself, such as means."""

    params: Tree
    """Nested dict by module path, as from `nnx.to_pure_dict`."""
    opt_state: Tree
    step: Tree
    """int32 []: steps done."""
    seed: Tree
    """uint32 []: the key of step n is `fold_in(key(seed), n)`."""
    variables: Tree = {}  # noqa: RUF012 (never mutated)


class Changes(NamedTuple):
    """What a step computes before it changes the parameters; the trees are like the parameters and moments."""

    gradients: Tree
    updates: Tree
    opt_state: Tree
    scalars: Scalars
    variables: Tree


class Task:
    """Initial state, step function and descriptions of all arrays, independent of mesh and devices."""

    def __init__(self, config: RunConfig, platform: str) -> None:
        """Calls the functions of a user's model. Raises UserError if one is wrong."""
        self.config = config = config.with_remat("full") if config.has_automatic_remat else config
        self.platform = platform
        self.model = (
            UserModule(config, config.model)
            if isinstance(config.model, UserModel)
            else BuiltIn(config, config.model, platform)
        )
        self.counted: Counted = "tokens" if self.model.batches is None else "examples"
        with nnx.use_eager_sharding(False):
            split = nnx.split(nnx.eval_shape(self.model.module), nnx.Param, nnx.RngState, ...)
        self._graph, self._params, self._rngs, self._variables = split
        self._described = describe(nnx.to_pure_dict(self._params), self._params, "parameter")
        own = self.model.optimizer()
        axes = jax.tree.map(lambda array: array.logical_axes, self._described)
        self._optimizer = own or optimizer(config.training, axes)
        self._rate = partial(rate_of_step, config.training if own is None else None)
        self.explicit_problems: dict[str, list[str]] = {}
        self._traces = None
        if isinstance(self.model, UserModule):
            self._traces = Traces(self.outcome, self._abstract_arguments, self.model.trace_errors_as_invalid)
        refuse(parameter_problems(self._params, config.model_name))
        if own is not None and isinstance(self.model, UserModule):
            self.model.try_optimizer(own, self.abstract_state.params, self.abstract_state.opt_state)

    def with_config(self, config: RunConfig) -> "Task":
        """Returns the task of a config with another batch, accumulation or remat: none changes the state. Of a built-in
        model it is for arrays and formulas only."""
        if isinstance(config.model, UserModel):
            return Task(config, self.platform)
        other = copy(self)
        other.config, other.model = config, BuiltIn(config, config.model, self.platform)
        other.__dict__.pop("arrays", None)
        return other

    @property
    def parameters(self) -> int:
        """The trainable elements, without padding rows."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state.params)) - self.model.padding_parameters

    @property
    def tokens_per_step(self) -> int:
        """The tokens of a step, or its examples, as `counted` says."""
        training = self.config.training
        return training.tokens_per_step if self.counted == "tokens" else training.batch_size

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs of one step, without recomputation: by formula, or counted in a user's traces, else 0."""
        model, training = self.config.model, self.config.training
        if isinstance(model, UserModel):
            return self._traces.flops if self._traces else 0.0
        return training.tokens_per_step * flops_per_token(model, jax.tree.leaves(self._described), training.seq_len)

    def initial_state(self) -> TrainState:
        """Returns the state before the first step. Trace it under `jit`: then each device creates its own shards."""
        with nnx.use_eager_sharding(False):
            _, *split = nnx.split(self.model.module(), nnx.Param, nnx.RngState, ...)
        params, _, variables = map(nnx.to_pure_dict, split)
        opt_state = self._optimizer.init(params)
        return TrainState(params, opt_state, jnp.zeros((), jnp.int32), jnp.uint32(self.config.seed), variables)

    def train_step(self, state: TrainState, batch: Tree, gradient_shardings: Tree = None) -> tuple[TrainState, Scalars]:
        """Returns the state after one step, and its scalars. The loss is without the experts' balance loss; the norm of
        the gradient is before clipping."""
        step = self.gradients_and_updates(state, batch, gradient_shardings)
        with jax.named_scope("optimizer"):
            params = optax.apply_updates(state.params, step.updates)
        scalars = step.scalars
        trees = {"grad_norm": step.gradients, "update_norm": step.updates, "param_norm": params}
        with jax.named_scope("scalars"):
            scalars |= global_norms(trees, gradient_shardings)
            if (rate := self._rate(state.step, state.opt_state)) is not None:
                scalars["learning_rate"] = rate.astype(jnp.float32)
        after = TrainState(params, step.opt_state, state.step + 1, state.seed, step.variables)
        if self.config.anomalies.on_nonfinite == "skip":
            is_finite = jnp.isfinite(scalars["loss"]) & jnp.isfinite(scalars["grad_norm"])
            after = jax.tree.map(lambda new, old: _unless_counted(is_finite, new, old), after, state)
        return after, scalars

    def gradients_and_updates(self, state: TrainState, batch: Tree, gradient_shardings: Tree = None) -> "Changes":
        """Returns what a step computes before it changes the parameters."""
        key = jax.random.fold_in(jax.random.key(state.seed), state.step)
        gradients, scalars, variables = self._gradients(state, batch, key, gradient_shardings)
        gradients = jax.tree.map_with_path(
            lambda path, gradient: inspect_sharding(gradient, gradient_name(name_of(path))), gradients
        )
        with jax.named_scope("optimizer"):
            updates, opt_state = self._optimizer.update(gradients, state.opt_state, state.params)
        return Changes(gradients, updates, opt_state, scalars, variables)

    def _gradients(self, state: TrainState, batch: Tree, key: jax.Array, shardings: Tree) -> tuple[Tree, Scalars, Tree]:
        """Returns the gradients, laid out by `shardings`, the scalars of the loss and the updated variables."""

        def of(variables: Tree, batch: Tree, key: jax.Array) -> tuple[Tree, Scalars, Tree]:
            outcome = jax.value_and_grad(self.outcome, has_aux=True)
            (_, (scalars, variables)), gradients = outcome(state.params, variables, batch, key)
            return _laid_out(gradients, shardings), scalars, variables

        def of_micro_batch(
            variables: Tree, batch: Tree, index: jax.Array, examples: jax.Array
        ) -> tuple[Tree, Scalars, Tree]:
            if isinstance(self.model, BuiltIn):
                with micro_batch(examples):  # dropout's keys are derived from the examples' indices
                    return of(variables, batch, key)
            return of(variables, batch, jax.random.fold_in(key, index))

        if (count := self.config.training.accumulate_steps) == 1:
            return of(state.variables, batch, key)
        zeros = _laid_out(jax.tree.map(jnp.zeros_like, state.params), shardings)
        return _accumulate(of_micro_batch, state.variables, batch, self.batch_arrays, zeros, count)

    def first_micro_batch(self, batch: Tree) -> Tree:
        """Returns the first micro-batch of a batch, which is all of it without accumulation."""
        arrays, count = self.batch_arrays, self.config.training.accumulate_steps
        return jax.tree.map(lambda array, x: _micro_batches(x, count, array.logical_axes[1:])[0], arrays, batch)

    def held_out_loss(self, state: TrainState, batch: Tree) -> jax.Array:
        """Returns the loss of a batch, float32 [], without dropout or the experts' balance loss; updates nothing."""
        return self.model.held_out_loss(self._module(state.params, None, state.variables), batch)  # type: ignore[arg-type]

    def logits(self, params: Tree, tokens: jax.Array) -> jax.Array:
        """Returns float32 logits [B, T, V] of the built-in model for tokens [B, T], without dropout."""
        return self._module(params, None, {})(tokens)  # type: ignore[operator]

    def outcome(
        self, params: Tree, variables: Tree, batch: Tree, key: jax.Array | None
    ) -> tuple[jax.Array, tuple[Scalars, Tree]]:
        """Runs a forward pass. Returns the minimised value, with the experts' balance loss, float32 [], the scalars and
        the updated variables. Raises UserError if a variable changes its shape or dtype."""
        module = self._module(params, key, variables)
        minimised, scalars = self.model.objective(module, batch, key)  # type: ignore[arg-type]
        return minimised, (scalars, self._updated_variables(module))

    def _module(self, params: Tree, key: jax.Array | None, variables: Tree) -> nnx.Module:
        states = [jax.tree.map(lambda leaf: leaf, state) for state in (self._params, self._variables)]
        for state, values in zip(states, (params, variables), strict=True):
            nnx.replace_by_pure_dict(state, values)
        with nnx.use_eager_sharding(False):
            return nnx.merge(self._graph, states[0], _reseed(self._rngs, key), states[1])

    def _updated_variables(self, module: nnx.Module) -> Tree:
        """Returns the variables after a pass. Those that the pass created, such as sown values, are dropped."""
        before = nnx.to_flat_state(self._variables)
        if not before:
            return {}
        _, _, _, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
        after = dict(nnx.to_flat_state(state))
        kept = [(path, after.get(path, leaf)) for path, leaf in before]
        refuse(
            f"{name_of(path)}: {leaf.dtype} {list(leaf.shape)} became {now.dtype} {list(now.shape)} in a forward pass: "
            "a variable must keep its shape and dtype"
            for (path, leaf), (_, now) in zip(before, kept, strict=True)
            if (leaf.shape, leaf.dtype) != (now.shape, now.dtype)
        )
        return nnx.to_pure_dict(nnx.from_flat_state(kept))

    def problems_on(self, axes: tuple[str, ...]) -> list[str]:
        """Returns why the step cannot be traced on a mesh with these axes, of any size; empty if it can."""
        return self._traces.problems_on(axes) if self._traces else []

    def _abstract_arguments(self) -> tuple[Tree, ...]:
        state = self.abstract_state
        batch = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), self.batch_arrays)
        return state.params, state.variables, batch, jax.eval_shape(jax.random.key, 0)

    @cached_property
    def abstract_state(self) -> TrainState:
        return jax.eval_shape(self.initial_state)

    @cached_property
    def state_arrays(self) -> TrainState:
        state, params = self.abstract_state, self._described
        step, seed = (Array((name,), "scalar", (), getattr(state, name).dtype, ()) for name in ("step", "seed"))
        variables = describe(state.variables, self._variables, "variable")
        return TrainState(params, describe_moments(state.opt_state, params), step, seed, variables)

    @property
    def batch_arrays(self) -> Tree:
        return self.model.batch

    @cached_property
    def arrays(self) -> list[Array]:
        return jax.tree.leaves((self.state_arrays, self.batch_arrays))

    @cached_property
    def annotated(self) -> set[str]:
        return {axis for array in self.arrays for axis in array.logical_axes if axis}

    @property
    def logical_axes(self) -> set[str] | None:
        """Logical axes that a rule may name; None for a user's model, whose activations may have others."""
        return self.annotated if isinstance(self.model, BuiltIn) else None


def _laid_out(gradients: Tree, shardings: Tree) -> Tree:
    return gradients if shardings is None else jax.lax.with_sharding_constraint(gradients, shardings)


def _unless_counted(is_finite: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Returns `new` if the step is finite, and always for counts, so that schedules go on."""
    return new if jnp.issubdtype(new.dtype, jnp.integer) else jnp.where(is_finite, new, old)


def _reseed(rngs: nnx.State, key: jax.Array | None) -> nnx.State:
    """Returns a module's random streams as of the start of a step, each with its own key derived from `key`."""
    streams = jax.tree.map(lambda leaf: leaf, rngs)
    for index, (_, variable) in enumerate(nnx.to_flat_state(streams)):
        if isinstance(variable, nnx.RngKey):
            fresh = jax.random.fold_in(jax.random.key(0) if key is None else key, index)
            variable.set_value(jax.random.split(fresh, variable.shape) if variable.shape else fresh)
        else:
            variable.set_value(jnp.zeros(variable.shape, variable.dtype))
    return streams


def _accumulate(gradients: Gradients, variables: Tree, batch: Tree, arrays: Tree, zeros: Tree, count: int) -> Any:
    """Returns the mean gradients and scalars of `count` micro-batches of `batch` [B, …], and the last variables.
    `arrays` describe the batch; `zeros` are like the gradients."""

    def add(carry: tuple[Tree, Tree], part: tuple[Tree, jax.Array, jax.Array]) -> tuple[Any, Scalars]:
        total, variables = carry
        found, scalars, variables = gradients(variables, *part)
        return (jax.tree.map(jnp.add, total, found), variables), scalars

    size = len(jax.tree.leaves(batch)[0])
    parts = jax.tree.map(lambda array, x: _micro_batches(x, count, array.logical_axes[1:]), arrays, batch)
    examples = _micro_batches(constrain(jnp.arange(size), "batch"), count, ())
    (total, variables), scalars = jax.lax.scan(add, (zeros, variables), (parts, jnp.arange(count), examples))
    return jax.tree.map(lambda x: x / count, total), jax.tree.map(jnp.mean, scalars), variables


def _micro_batches(x: jax.Array, count: int, rest_axes: tuple[str | None, ...]) -> jax.Array:
    """Reshapes [B, …] to [count, B ÷ count, …]. Every micro-batch has rows of every device, so that none moves."""
    (groups, _), (batch, *rest) = token_groups(), x.shape
    shape = groups, count, batch // (groups * count), *rest
    x = x.reshape(shape, out_sharding=out_sharding(shape, "batch", None, None, *rest_axes)).swapaxes(0, 1)
    shape = count, batch // count, *rest
    x = x.reshape(shape, out_sharding=out_sharding(shape, None, "batch", *rest_axes))
    return constrain(x, None, "batch", *rest_axes)
