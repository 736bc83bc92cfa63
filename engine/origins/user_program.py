"""Lowers a program of the user's, by calling a function of the user's on simulated devices."""

import math
from contextlib import nullcontext
from typing import Any

import jax

from ..base.invalid import Invalid
from ..models.user_code import errors_as_invalid, find_function, load_module, parameters_of, type_name
from ..parallel.mesh import build_mesh
from ..spec.config import SIMULATED_DEVICES
from .names import kept_names
from .request import Program

OPTION = "explain"
EXPECTED = "return what jax.jit(f).lower(…) or .trace(…) gives, or a pair of jax.jit(f) and a tuple of its arguments"


def lower(program: Program) -> jax.stages.Lowered:
    """Calls the function and returns what it lowered. Nothing may use jax's devices before. Raises Invalid."""
    jax.config.update("jax_num_cpu_devices", math.prod(program.mesh.values()) if program.mesh else SIMULATED_DEVICES)
    model = program.function
    what = f"{OPTION} {model.name}"
    function = find_function(load_module(model, OPTION), model.function, model, OPTION)
    needed = [name for name, each in parameters_of(function).items() if each.default is each.empty]
    if needed:
        raise Invalid(f"{what}: it takes {', '.join(needed)}, but is called without arguments: give them defaults")
    mesh = jax.set_mesh(build_mesh(program.mesh, jax.devices())) if program.mesh else nullcontext()
    with errors_as_invalid(what, model.directory), mesh, kept_names():
        return lowered(function(), what)


def lowered(returned: Any, what: str) -> jax.stages.Lowered:
    """Returns what a user's function lowered, of what it returned. Raises Invalid if that is something else."""
    match returned:
        case (jitted, tuple(arguments)) if hasattr(jitted, "lower"):
            found = jitted.lower(*arguments)
        case jax.stages.Traced():
            found = returned.lower()
        case _:
            found = returned
    found = getattr(found, "lowered", found)  # the jit of Equinox and that of NNX wrap what jax gives them
    if not isinstance(found, jax.stages.Lowered):
        raise Invalid(f"{what}: it returns {type_name(returned)}: {EXPECTED}")
    return found
