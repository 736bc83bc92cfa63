"""The user's model: loaded, called, checked and traced. In a run, no other module calls its functions.

Besides the function that makes an `nnx.Module`, the user's file may define `loss`, `batch` and `optimizer`.
"""

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import optax
from flax import nnx

from ..base.user_error import UserError, refuse
from ..spec.config import RunConfig, UserModel
from .array import Batch, Scalars, annotated_axes, name_of, text_batch
from .decoder import loss as cross_entropy
from .user_batches import BYTE_VALUES, UserBatches, on_host
from .user_code import (
    Function,
    errors_as_invalid,
    find_function,
    load_module,
    parameters_of,
    signature_of,
    type_name,
    vmap_names_its_dim,
)

RESERVED_ARGUMENTS = ("rngs", "key", "model", "batch", "step")
"""Arguments that shardtui passes itself, so --set cannot."""
OWN_SCALARS = ("loss", "grad_norm", "update_norm", "param_norm", "learning_rate")
"""Scalars of a step that shardtui computes."""
Tree = Any


class UserModule:
    """The user's model, with the same interface as `BuiltIn`. Errors in the user's functions become UserError."""

    dtype = None
    attention_kernels = None
    padding_parameters = 0
    computed_scores = 1.0
    """The share of attention scores that kernels do not skip: a user's are taken to skip none."""

    def __init__(self, config: RunConfig, model: UserModel) -> None:
        """Loads the module and checks its functions. Raises UserError with every problem."""
        with errors_as_invalid(f"--model {model.name}", model.directory):
            self._load(config, model)

    def _load(self, config: RunConfig, model: UserModel) -> None:
        self._model, self._seed = model, config.seed
        self._settings = {**msgspec.structs.asdict(config.training), **model.arguments}
        with vmap_names_its_dim():
            module = load_module(model)
        self._make = find_function(module, model.function, model)
        self._loss, self._batch, self._optimizer = (
            find_function(module, name, model) if hasattr(module, name) else None
            for name in ("loss", "batch", "optimizer")
        )
        problems = [*self._call_problems(), *self._unknown_arguments()]
        if self._batch and not self._loss:
            problems.append(f"{self._of('batch')} needs a loss(model, batch) in the same file: add one")
        if self._batch and config.data is not None:
            problems.append(f"--data {config.data}: {self._of('batch')} makes the batches: omit --data")
        if self._batch and config.evaluation:
            problems.append(
                f"--eval-data and --eval-share: {self._of('batch')} makes the batches, so no text can be held out: "
                "omit them"
            )
        refuse(problems)
        self.batches = self._user_batches(config.training.batch_size) if self._batch else None
        self.batch: Tree = (
            self.batches.arrays if self.batches else text_batch(config.training.batch_size, config.training.seq_len)
        )

    def module(self) -> nnx.Module:
        """Calls the user's function. Marks plain arrays as `nnx.data`, as Flax does outside traces. Raises
        UserError."""
        with self._errors_as_invalid(self._model.function), vmap_names_its_dim():
            rngs = {"rngs": nnx.Rngs(self._seed)} if "rngs" in parameters_of(self._make) else {}
            module = self._make(**self._keywords(self._make), **rngs)
            if not isinstance(module, nnx.Module):
                raise UserError(
                    f"{self._of(self._model.function)} returned {type_name(module)}: it must return an nnx.Module"
                )
            for path, submodule in list(nnx.iter_modules(module)):
                self._mark_arrays(path, submodule)
            return module

    def objective(self, module: nnx.Module, batch: Tree, key: jax.Array | None) -> tuple[jax.Array, Scalars]:
        """Returns the loss, which is minimised, and by name the loss and what the user's `loss` returns beside it, each
        float32 []."""
        value, scalars = self._scalars(module, batch, key)
        return value, {"loss": value, **scalars}

    def held_out_loss(self, module: nnx.Module, batch: Tree) -> jax.Array:
        """Returns the loss, float32 [], of a module in `eval` mode, with BatchNorm's running means. A `loss` that takes
        a key receives the same one for every batch."""
        module.eval()
        return self._scalars(module, batch, jax.random.key(0))[0]

    def _scalars(self, module: nnx.Module, batch: Tree, key: jax.Array | None) -> tuple[jax.Array, Scalars]:
        """Returns the loss, and the other scalars by name. Raises UserError if one is not a float."""
        scalars: Any = {}
        if self._loss is None:
            value: Any = self._text_loss(module, batch)
        else:
            keyed = {"key": key} if "key" in parameters_of(self._loss) else {}
            with self._errors_as_invalid("loss"):
                value = self._loss(module, batch, **keyed, **self._keywords(self._loss))
            match value:
                case (minimised, dict(others)):
                    value, scalars = minimised, others
        if not _is_float(value):
            raise UserError(
                f"{self._of('loss')} returned {type_name(value)}: it must return one float, such as a mean, or a float "
                "and a dict of floats by name"
            )
        refuse(
            f"{self._of('loss')} returned {type_name(scalar)} as {name!r}: it must be one float, such as a mean"
            for name, scalar in scalars.items()
            if not _is_float(scalar)
        )
        refuse(
            f"{self._of('loss')} returned a scalar named {name!r}: that name is taken, choose another"
            for name in scalars
            if name in OWN_SCALARS
        )
        return value.astype(jnp.float32), {str(name): scalar.astype(jnp.float32) for name, scalar in scalars.items()}

    def _text_loss(self, module: nnx.Module, batch: Batch) -> jax.Array:
        with self._errors_as_invalid(self._model.function):
            logits = module(batch.inputs)  # type: ignore[operator] # a module that is not callable raises here
        shape = getattr(logits, "shape", ())
        if len(shape) != 3 or shape[:2] != batch.inputs.shape or shape[2] < BYTE_VALUES:
            raise UserError(
                f"{self._of(self._model.function)} returned {type_name(logits)} for tokens {type_name(batch.inputs)}: "
                f"return logits [batch, seq, {BYTE_VALUES} or more], as tokens are bytes, or add loss and batch to the "
                "file"
            )
        return cross_entropy(logits.astype(jnp.float32), batch.targets)

    def optimizer(self) -> optax.GradientTransformation | None:
        """Returns the user's optimizer, if any. Raises UserError if it is not an optax one."""
        if self._optimizer is None:
            return None
        with self._errors_as_invalid("optimizer"):
            found = self._optimizer(**self._keywords(self._optimizer))
            if isinstance(found, optax.MultiSteps):
                found = found.gradient_transformation()
        if not isinstance(found, optax.GradientTransformation):
            raise UserError(f"{self._of('optimizer')} returned {type_name(found)}: it must return an optax optimizer")
        return found

    def try_optimizer(self, found: optax.GradientTransformation, params: Tree, state: Tree) -> None:
        """Traces an update. Raises UserError if it fails, as the ones of line searches, which need the loss."""
        try:
            with self._errors_as_invalid("optimizer"):
                jax.eval_shape(found.update, params, state, params)
        except UserError as error:
            raise UserError(f"{error}: its update gets gradients, state and parameters: choose another one") from error

    def trace_errors_as_invalid(self) -> contextlib.AbstractContextManager[None]:
        return self._errors_as_invalid("loss" if self._loss else self._model.function)

    def _user_batches(self, batch_size: int) -> UserBatches:
        assert self._batch is not None
        batch, keywords = self._batch, self._keywords(self._batch)

        def make_batch(step: int) -> Tree:
            with self._errors_as_invalid(f"batch({step})"):
                return jax.tree.map(on_host, batch(step, **keywords))

        return UserBatches(make_batch, self._of("batch"), batch_size)

    def _keywords(self, function: Function) -> dict[str, Any]:
        parameters = parameters_of(function)
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        rest = self._model.arguments if takes_all and function is self._make else {}
        return {**rest, **{key: value for key, value in self._settings.items() if key in parameters}}

    def _call_problems(self) -> list[str]:
        calls = (
            (self._model.function, self._make, (), "rngs"),
            ("loss", self._loss, ("model", "batch"), "key"),
            ("batch", self._batch, ("step",), ""),
            ("optimizer", self._optimizer, (), ""),
        )
        problems: list[str] = []
        for name, function, given, extra in calls:
            if function is None:
                continue
            taken = {*self._keywords(function), *({extra} & set(parameters_of(function)))}
            try:
                signature_of(function).bind(*given, **dict.fromkeys(taken))
            except TypeError as error:
                hint = f"it is called as {name}({', '.join(given)})" if given else "set it with --set NAME=VALUE"
                problems.append(f"{self._of(name)}: {error}: {hint}, or give it a default")
        return problems

    def _unknown_arguments(self) -> list[str]:
        functions = list(filter(None, (self._make, self._loss, self._batch, self._optimizer)))
        known = {key for function in functions for key in self._keywords(function)}
        names = [name for function in functions for name in parameters_of(function)]
        own = [name for name in dict.fromkeys(names) if name not in RESERVED_ARGUMENTS]
        return [
            f"--set {key}={value}: {self._of(self._model.function)} has no argument {key}: choose one of "
            f"{', '.join(own)}"
            if own
            else f"--set {key}={value}: {self._of(self._model.function)} takes no arguments: omit --set"
            for key, value in self._model.arguments.items()
            if key not in known
        ]

    def _mark_arrays(self, path: tuple[Any, ...], module: Any) -> None:
        """Marks plain arrays as data: under a trace Flax would make them static attributes, which outlive the trace."""
        for name, value in list(vars(module).items()):
            if isinstance(value, jax.Array):
                setattr(module, name, nnx.data(value))
            elif isinstance(value, list | tuple | dict) and any(
                isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)
            ):
                place = ".".join(map(str, (*path, name)))
                raise UserError(
                    f"{self._of(self._model.function)}: {place} is a plain {type(value).__name__} that holds arrays: "
                    "make it an nnx.List or nnx.Dict of nnx.Params"
                )

    def _errors_as_invalid(self, function: str) -> contextlib.AbstractContextManager[None]:
        return errors_as_invalid(self._of(function), self._model.directory)

    def _of(self, function: str) -> str:
        return f"{function} of {Path(self._model.place).name}"


def _is_float(value: Any) -> bool:
    return getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating)


def parameter_problems(params: nnx.State, model: str) -> list[str]:
    leaves = [(name_of(path), leaf) for path, leaf in nnx.to_flat_state(params)]
    problems = [
        f"{name}: {leaf.dtype}: a parameter must have a float dtype: make it an nnx.Variable"
        for name, leaf in leaves
        if not jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    problems += [
        f"{name}: {len(axes)} axis names {axes} for an array of rank {leaf.ndim}: name each dim once"
        for name, leaf in leaves
        if len(axes := annotated_axes(leaf)) > leaf.ndim
    ]
    if not leaves:
        problems.append(f"{model} returned a module without an nnx.Param: add one, to have something to train")
    return problems
