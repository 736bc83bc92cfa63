"""A model of the user's: loaded from where its reference says, called, and checked. Only here is code of theirs run.

Its module has the function that makes an `nnx.Module` and, besides, may have `loss`, `batch` and `optimizer`.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
from flax import nnx

from ..base.advice import named
from ..base.invalid import Invalid
from ..spec.config import RunConfig, UserModel
from ..wire.descriptions import CorpusInfo
from .array import Array, Batch, name_of, text_batch
from .decoder import loss as cross_entropy

BYTE_VALUES = 256
NOT_THEIRS = re.compile(r"-packages/(jax|jaxlib|flax|optax|numpy)/|/lib/python3\.\d+/(?!site-packages/)|^<")
OURS = str(Path(__file__).parents[1])
GIVEN = ("rngs", "key", "model", "batch", "step")
"""Arguments that nobody sets."""
LONGEST_PROBLEM = 400
"""Characters of an exception's message."""

Function = Callable[..., Any]
Tree = Any


class UserModule:
    """What a task needs of a model, by the user's functions. Whatever goes wrong in them is raised as Invalid."""

    dtype = None
    padding_parameters = 0

    def __init__(self, config: RunConfig, model: UserModel) -> None:
        """Raises Invalid with every problem."""
        self._model, self._seed = model, config.seed
        self._settings = {**msgspec.structs.asdict(config.training), **model.arguments}
        module = _load(model)
        self._make = _function(module, model.function, model)
        self._loss, self._batch, self._optimizer = (
            _function(module, name, model) if hasattr(module, name) else None for name in ("loss", "batch", "optimizer")
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
        with self._told(self._model.function):
            made = self._make(**self._keywords(self._make), **self._rngs())
        if not isinstance(made, nnx.Module):
            raise Invalid(f"{self._of(self._model.function)} gives {_type(made)}: it has to return an nnx.Module")
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
            keyed = {"key": key} if "key" in _parameters(self._loss) else {}
            with self._told("loss"):
                value = self._loss(module, batch, **keyed, **self._keywords(self._loss))
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise Invalid(f"{self._of('loss')} gives {_type(value)}: it has to be one number, such as a mean")
        return value.astype(jnp.float32)

    def _rngs(self) -> dict[str, nnx.Rngs]:
        return {"rngs": nnx.Rngs(self._seed)} if "rngs" in _parameters(self._make) else {}

    def _text_loss(self, module: nnx.Module, batch: Batch) -> jax.Array:
        with self._told(self._model.function):
            logits = module(batch.inputs)  # type: ignore[operator] # where it cannot be called, that is told
        shape = getattr(logits, "shape", ())
        if len(shape) != 3 or shape[:2] != batch.inputs.shape or shape[2] < BYTE_VALUES:
            raise Invalid(
                f"{self._of(self._model.function)} gives {_type(logits)} for tokens {_type(batch.inputs)}: without "
                f"loss and batch beside it, it has to give logits [batch, seq, {BYTE_VALUES} or more]: the tokens are "
                "bytes"
            )
        return cross_entropy(logits.astype(jnp.float32), batch.targets)

    def optimizer(self) -> optax.GradientTransformation | None:
        """None where there is none beside the function."""
        if self._optimizer is None:
            return None
        with self._told("optimizer"):
            found = self._optimizer(**self._keywords(self._optimizer))
        if not isinstance(found, optax.GradientTransformation):
            raise Invalid(f"{self._of('optimizer')} gives {_type(found)}: it has to return an optax optimizer")
        return found

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """What jax raises of the step that was made of the user's functions."""
        with self._told("loss" if self._loss else self._model.function):
            yield

    def _own_batches(self, batch_size: int) -> "OwnBatches":
        assert self._batch is not None
        batch, keywords = self._batch, self._keywords(self._batch)

        def made(step: int) -> Tree:
            with self._told(f"batch({step})"):
                return jax.tree.map(_on_host, batch(step, **keywords))

        return OwnBatches(made, self._of("batch"), batch_size)

    def _keywords(self, function: Function) -> dict[str, Any]:
        """The settings that a function takes by name."""
        parameters = _parameters(function)
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
            taken = {*self._keywords(function), *({extra} & set(_parameters(function)))}
            try:
                _signature(function).bind(*given, **dict.fromkeys(taken))
            except TypeError as error:
                called = f"it is called as {name}({', '.join(given)})" if given else "give it with --set NAME=VALUE"
                problems.append(f"{self._of(name)}: {error}: {called}, or write a default")
        return problems

    def _unknown_arguments(self) -> list[str]:
        functions = list(filter(None, (self._make, self._loss, self._batch, self._optimizer)))
        known = {key for function in functions for key in self._keywords(function)}
        names = [name for function in functions for name in _parameters(function)]
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
    def _told(self, function: str) -> Iterator[None]:
        with _told(self._of(function), self._model.directory):
            yield

    def _of(self, function: str) -> str:
        """`loss of lm.py`"""
        return f"{function} of {Path(self._model.place).name}"


class OwnBatches:
    """What the user's `batch` makes: batch n is a function of n."""

    def __init__(self, made: Callable[[int], Tree], source: str, batch_size: int) -> None:
        """Raises Invalid where the first one is none."""
        self._made, self._source = made, source
        self._first = made(0)
        leaves = [(_batch_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(self._first)]
        problems = [
            f"{source}: {name} is {_type(leaf)}: its first dim has to be the batch, {batch_size} examples: let batch "
            "take batch_size, or set it with --batch-size"
            for name, leaf in leaves
            if leaf.shape[:1] != (batch_size,)
        ]
        if not leaves:
            problems.append(f"{source} gives {_type(self._first)}: it has to return an array, or a tree of arrays")
        if problems:
            raise Invalid(*problems)

    @property
    def arrays(self) -> Tree:
        """A batch with an `Array` in the place of every array."""

        def described(path: Any, leaf: np.ndarray) -> Array:
            axes = ("batch", *[None] * (leaf.ndim - 1))
            return Array((_batch_name(path),), "batch", leaf.shape, leaf.dtype, axes)

        return jax.tree_util.tree_map_with_path(described, self._first)

    def __getitem__(self, n: int) -> Tree:
        """Raises Invalid where it is not like the first one."""
        batch = self._made(n)
        found, first = (jax.tree.map(_type, tree) for tree in (batch, self._first))
        if found != first:
            raise Invalid(f"{self._source}: batch({n}) is {found}, batch(0) was {first}: they have to be alike")
        return batch

    def rows(self, n: int, rows: range) -> Tree:
        """Those rows of batch n, which is made as a whole."""
        return jax.tree.map(lambda leaf: leaf[rows.start : rows.stop], self[n])

    def describe(self) -> CorpusInfo:
        """The first batch stands for all: a run that goes on has to have the same."""
        leaves = jax.tree.leaves(self._first)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves))
        return CorpusInfo(self._source, 0, sum(leaf.nbytes for leaf in leaves), digest.hexdigest())


def _load(model: UserModel) -> ModuleType:
    """The module. What it imports is found beside it first; afterwards its directory is looked through last, so that a
    `random.py` in it does not take the place of Python's."""
    sys.path.insert(0, model.directory)
    try:
        with _told(f"--model {model.name}", model.directory):
            if model.place.endswith(".py"):
                return _run_file(model.place)
            return importlib.import_module(model.place)
    finally:
        sys.path.remove(model.directory)
        sys.path.append(model.directory)


def _run_file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise Invalid(f"--model {path}: the file is gone: put it back, or begin a new run with another one")
    name = f"shardtui_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in it look for their module
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, model: UserModel) -> Function:
    found = getattr(module, name, None)
    if found is None:
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        where = f"{Path(model.place).name} ({getattr(module, '__file__', None)})"
        raise Invalid(f"--model {model.name}: {where} has no {name}: it has {', '.join(own[:12]) or 'no function'}")
    if not callable(found):
        raise Invalid(f"{name} of {Path(model.place).name} is {_type(found)}, no function: call it otherwise")
    return found


@contextlib.contextmanager
def _told(what: str, directory: str) -> Iterator[None]:
    """An exception of the user's code as one line: what it was, and where it came from."""
    try:
        yield
    except Invalid:
        raise
    except (Exception, SystemExit) as error:
        raise Invalid(f"{what}: {named(error)[:LONGEST_PROBLEM]}{_place(error, directory)}{_way_out(error)}") from error


def _place(error: BaseException, directory: str) -> str:
    """` (lm.py:31)`: the innermost line of theirs; else of another package, but none that is ours or below us."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    others = [(file, line) for file, line in frames if not NOT_THEIRS.search(file) and not file.startswith(OURS)]
    own = [(file, line) for file, line in others if file.startswith(f"{directory}/") and "-packages/" not in file]
    found = next(reversed(own or others), None)
    return f" ({found[0].removeprefix(f'{directory}/')}:{found[1]})" if found else ""


def _way_out(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return ": install it, or begin in the directory where it is"
    return ": make it an nnx.List or nnx.Dict" if "nnx.List(" in str(error) else ""


def _parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    return _signature(function).parameters


def _signature(function: Function) -> inspect.Signature:
    """Of a class what its `__init__` takes: a module's metaclass hides it."""
    try:
        if not isinstance(function, type):
            return inspect.signature(function)
        signature = inspect.signature(function.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    except ValueError:  # written in C: it takes what it takes
        return inspect.Signature()


def _on_host(leaf: Any) -> np.ndarray:
    """In the dtype that jax has for it."""
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _batch_name(path: Any) -> str:
    return ".".join(filter(None, ("batch", name_of(path, with_numbers=True))))


def _type(value: Any) -> str:
    """`float32 [8, 16]`, or the type's name."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} [{', '.join(map(str, value.shape))}]"
    return type(value).__name__
