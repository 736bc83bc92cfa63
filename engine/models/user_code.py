"""Code of the user: loaded from where its reference says, and blamed by function and line where it fails."""

import contextlib
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

from ..base.advice import named
from ..base.installed import ENGINE
from ..base.invalid import Invalid
from ..spec.config import UserModel

NOT_THEIRS = re.compile(r"-packages/(jax|jaxlib|flax|optax|numpy)/|/lib/python3\.\d+/(?!site-packages/)|^<")

LONGEST_PROBLEM = 400
"""Characters of an exception's message."""

Function = Callable[..., Any]


def load_module(model: UserModel) -> ModuleType:
    """The module. What it imports is found beside it first; afterwards its directory is looked through last, so that a
    `random.py` in it does not take the place of Python's."""
    sys.path.insert(0, model.directory)
    try:
        with blamed(f"--model {model.name}", model.directory):
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


def find_function(module: ModuleType, name: str, model: UserModel) -> Function:
    found = getattr(module, name, None)
    if found is None:
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        where = f"{Path(model.place).name} ({getattr(module, '__file__', None)})"
        raise Invalid(f"--model {model.name}: {where} has no {name}: it has {', '.join(own[:12]) or 'no function'}")
    if not callable(found):
        raise Invalid(f"{name} of {Path(model.place).name} is {type_name(found)}, no function: call it otherwise")
    return found


@contextlib.contextmanager
def blamed(what: str, directory: str) -> Iterator[None]:
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
    others = [(file, line) for file, line in frames if not NOT_THEIRS.search(file) and not file.startswith(str(ENGINE))]
    own = [(file, line) for file, line in others if file.startswith(f"{directory}/") and "-packages/" not in file]
    found = next(reversed(own or others), None)
    return f" ({found[0].removeprefix(f'{directory}/')}:{found[1]})" if found else ""


def _way_out(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return ": install it, or begin in the directory where it is"
    return ": make it an nnx.List or nnx.Dict" if "nnx.List(" in str(error) else ""


def parameters_of(function: Function) -> Mapping[str, inspect.Parameter]:
    return signature_of(function).parameters


def signature_of(function: Function) -> inspect.Signature:
    """Of a class what its `__init__` takes: a module's metaclass hides it."""
    try:
        if not isinstance(function, type):
            return inspect.signature(function)
        signature = inspect.signature(function.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    except ValueError:  # written in C: it takes what it takes
        return inspect.Signature()


def type_name(value: Any) -> str:
    """`float32 [8, 16]`, or the type's name."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} [{', '.join(map(str, value.shape))}]"
    return type(value).__name__
