"""Loads the user's code, and turns its exceptions into messages that name the function and the line."""

import contextlib
import importlib
import importlib.util
import inspect
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..base.advice import error_line, text_of
from ..base.directories import ENGINE
from ..base.user_error import UserError
from ..spec.config import UserModel

LIBRARY_FILES = re.compile(r"-packages/(jax|jaxlib|flax|optax|numpy)/|/lib/python3\.\d+/(?!site-packages/)|^<")
"""Files in which an error of the user's code may be raised, but not be caused."""
MAX_MESSAGE = 400
Function = Callable[..., Any]


def load_module(model: UserModel, option: str = "--model") -> ModuleType:
    """Imports the model's module, its directory first in `sys.path`; then it is last, lest a `random.py` in it shadow
    Python's. Raises UserError, naming the `option`."""
    sys.path.insert(0, model.directory)
    try:
        with errors_as_invalid(f"{option} {model.name}", model.directory):
            if model.place.endswith(".py"):
                return _run_file(model.place)
            return importlib.import_module(model.place)
    finally:
        sys.path.remove(model.directory)
        if model.directory not in sys.path:
            sys.path.append(model.directory)


def _run_file(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise UserError(f"--model {path}: the file does not exist: restore it, or start a new run with another model")
    name = f"shardtui_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def find_function(module: ModuleType, name: str, model: UserModel, option: str = "--model") -> Function:
    found = getattr(module, name, None)
    if found is None:
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        where = f"{Path(model.place).name} ({getattr(module, '__file__', None)})"
        raise UserError(f"{option} {model.name}: {where} has no {name}: it has {', '.join(own[:12]) or 'no function'}")
    if not callable(found):
        raise UserError(f"{name} of {Path(model.place).name} is {type_name(found)}, not a function: rename it")
    return found


@contextlib.contextmanager
def errors_as_invalid(what: str, directory: str) -> Iterator[None]:
    """Raises an exception of the user's code as UserError, in one line with type, message and location: any but that of
    Ctrl-C, which an engine has no handler for."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise
        raise UserError(
            f"{what}: {error_line(error)[:MAX_MESSAGE]}{_location(error, directory)}{_hint(error)}"
        ) from error


@contextlib.contextmanager
def vmap_names_its_dim() -> Iterator[None]:
    """`nnx.vmap` gives the dim that it adds no name, in front of the names of one layer, unless it is told one: without
    that they would be of the first dims. Flax is to do so itself (google/flax#5508)."""
    from flax import nnx  # takes a second, which `watch` and `explain` save

    vmap = nnx.vmap

    def with_name(*args: Any, **given: Any) -> Any:
        out_axes = given.get("out_axes", 0)
        if not isinstance(out_axes, int) or out_axes >= 0:  # flax counts from the end among the names alone
            given["transform_metadata"] = {nnx.PARTITION_NAME: None, **given.get("transform_metadata", {})}
        return vmap(*args, **given)

    nnx.vmap = with_name
    try:
        yield
    finally:
        nnx.vmap = vmap


def _location(error: BaseException, directory: str) -> str:
    """Returns ` (lm.py:31)`: the innermost line of the user's directory, else of a package that is not a library."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    others = [
        (file, line) for file, line in frames if not LIBRARY_FILES.search(file) and not file.startswith(str(ENGINE))
    ]
    own = [(file, line) for file, line in others if file.startswith(f"{directory}/") and "-packages/" not in file]
    found = next(reversed(own or others), None)
    return f" ({found[0].removeprefix(f'{directory}/')}:{found[1]})" if found else ""


def _hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return ": install it, or run shardtui in the directory that contains it"
    return ": make it an nnx.List or nnx.Dict" if "nnx.List(" in text_of(error) else ""


def parameters_of(function: Function) -> Mapping[str, inspect.Parameter]:
    return signature_of(function).parameters


def signature_of(function: Function) -> inspect.Signature:
    """Returns the signature of a function, or of a class's `__init__`, which the metaclass of nnx modules hides."""
    try:
        if not isinstance(function, type):
            return inspect.signature(function)
        signature = inspect.signature(function.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    except ValueError:  # functions written in C have no signature
        return inspect.Signature()


def type_name(value: Any) -> str:
    """Returns dtype and shape of an array, `float32 [8, 16]`, and the type's name of anything else."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} [{', '.join(map(str, value.shape))}]"
    return type(value).__name__
