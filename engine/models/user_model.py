"""A model of the user's: loaded from where its reference says, called, and checked. Only here is code of theirs run.

Its module has the function that makes an `nnx.Module` and, besides, may have `loss`, `batch` and `optimizer`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import optax
from flax import nnx

from ..base.invalid import Invalid
from ..spec.config import RunConfig, UserModel
from .array import Batch, text_batch
from .decoder import loss as cross_entropy
from .user_batches import BYTE_VALUES, OwnBatches, on_host
from .user_code import Function, blamed, find_function, load_module, parameters_of, signature_of, type_name

GIVEN = ("rngs", "key", "model", "batch", "step")
"""Arguments that nobody sets."""

Tree = Any


class UserModule:
    """What a task needs of a model, by the user's functions. Whatever goes wrong in them is raised as Invalid."""

    dtype = None
    padding_parameters = 0

    def __init__(self, config: RunConfig, model: UserModel) -> None:
        """Raises Invalid with every problem."""
        self._model, self._seed = model, config.seed
        self._settings = {**msgspec.structs.asdict(config.training), **model.arguments}
        module = load_module(model)
        self._make = find_function(module, model.function, model)
        self._loss, self._batch, self._optimizer = (
            find_function(module, name, model) if hasattr(module, name) else None
            for name in ("loss", "batch", "optimizer")
        )
        problems = [*self._call_problems(), *self._unknown_arguments()]
        if self._batch and not self._loss:
            problems.append(f"{self._of('batch')} has no loss(model, batch) beside it: write one")
        if self._batch and config.data is not None:
            problems.append(f"--data {config.data}: {self._of('batch')} makes the batches: leave --data out")
        if problems:
            raise Invalid(*problems)
        self.batches = self._own_batches(config.training.batch_size) if self._batch else None
        self.batch: Tree = (
            self.batches.arrays if self.batches else text_batch(config.training.batch_size, config.training.seq_len)
        )

    def module(self) -> nnx.Module:
        """As the user's function makes it. Arrays that stand in it as they are become data, as Flax has it outside of
        transforms."""
        with self._blamed(self._model.function):
            made = self._make(**self._keywords(self._make), **self._rngs())
        if not isinstance(made, nnx.Module):
            raise Invalid(f"{self._of(self._model.function)} gives {type_name(made)}: it has to return an nnx.Module")
        for path, module in list(nnx.iter_modules(made)):
            self._mark_arrays(path, module)
        return made

    def objective(self, module: nnx.Module, batch: Tree, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The loss twice, float32 []: it is what is minimised."""
        value = self._value(module, batch, key)
        return value, value

    def _value(self, module: nnx.Module, batch: Tree, key: jax.Array | None) -> jax.Array:
        if self._loss is None:
            value = self._text_loss(module, batch)
        else:
            keyed = {"key": key} if "key" in parameters_of(self._loss) else {}
            with self._blamed("loss"):
                value = self._loss(module, batch, **keyed, **self._keywords(self._loss))
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise Invalid(f"{self._of('loss')} gives {type_name(value)}: it has to be one number, such as a mean")
        return value.astype(jnp.float32)

    def _rngs(self) -> dict[str, nnx.Rngs]:
        return {"rngs": nnx.Rngs(self._seed)} if "rngs" in parameters_of(self._make) else {}

    def _text_loss(self, module: nnx.Module, batch: Batch) -> jax.Array:
        with self._blamed(self._model.function):
            logits = module(batch.inputs)  # type: ignore[operator] # where it cannot be called, that is told
        shape = getattr(logits, "shape", ())
        if len(shape) != 3 or shape[:2] != batch.inputs.shape or shape[2] < BYTE_VALUES:
            raise Invalid(
                f"{self._of(self._model.function)} gives {type_name(logits)} for tokens {type_name(batch.inputs)}: "
                f"without loss and batch beside it, it has to give logits [batch, seq, {BYTE_VALUES} or more]: the "
                "tokens are bytes"
            )
        return cross_entropy(logits.astype(jnp.float32), batch.targets)

    def optimizer(self) -> optax.GradientTransformation | None:
        """None where there is none beside the function."""
        if self._optimizer is None:
            return None
        with self._blamed("optimizer"):
            found = self._optimizer(**self._keywords(self._optimizer))
        if not isinstance(found, optax.GradientTransformation):
            raise Invalid(f"{self._of('optimizer')} gives {type_name(found)}: it has to return an optax optimizer")
        return found

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """What jax raises of the step that was made of the user's functions."""
        with self._blamed("loss" if self._loss else self._model.function):
            yield

    def _own_batches(self, batch_size: int) -> "OwnBatches":
        assert self._batch is not None
        batch, keywords = self._batch, self._keywords(self._batch)

        def made(step: int) -> Tree:
            with self._blamed(f"batch({step})"):
                return jax.tree.map(on_host, batch(step, **keywords))

        return OwnBatches(made, self._of("batch"), batch_size)

    def _keywords(self, function: Function) -> dict[str, Any]:
        """The settings that a function takes by name."""
        parameters = parameters_of(function)
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        rest = self._model.arguments if takes_all and function is self._make else {}
        return {**rest, **{key: value for key, value in self._settings.items() if key in parameters}}

    def _call_problems(self) -> list[str]:
        """Why functions cannot be called as they are."""
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
                called = f"it is called as {name}({', '.join(given)})" if given else "give it with --set NAME=VALUE"
                problems.append(f"{self._of(name)}: {error}: {called}, or write a default")
        return problems

    def _unknown_arguments(self) -> list[str]:
        functions = list(filter(None, (self._make, self._loss, self._batch, self._optimizer)))
        known = {key for function in functions for key in self._keywords(function)}
        names = [name for function in functions for name in parameters_of(function)]
        own = [name for name in dict.fromkeys(names) if name not in GIVEN]
        return [
            f"--set {key}={value}: no argument of {self._of(self._model.function)} is called so: there is "
            f"{', '.join(own) or 'none'}"
            for key, value in self._model.arguments.items()
            if key not in known
        ]

    def _mark_arrays(self, path: tuple[Any, ...], module: Any) -> None:
        """While a module is traced Flax takes an array for a static attribute, which would outlive the trace."""
        for name, value in list(vars(module).items()):
            if isinstance(value, jax.Array):
                setattr(module, name, nnx.data(value))
            elif isinstance(value, list | tuple | dict) and any(
                isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)
            ):
                place = ".".join(map(str, (*path, name)))
                raise Invalid(
                    f"{self._of(self._model.function)}: {place} is a plain {type(value).__name__} that holds arrays: "
                    "make it an nnx.List or nnx.Dict of nnx.Params"
                )

    @contextlib.contextmanager
    def _blamed(self, function: str) -> Iterator[None]:
        with blamed(self._of(function), self._model.directory):
            yield

    def _of(self, function: str) -> str:
        """`loss of lm.py`"""
        return f"{function} of {Path(self._model.place).name}"
