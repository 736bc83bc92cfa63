"""Programs of the user's: lowered by a function, or the step of an external loop, kept for another process."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.export import DisabledSafetyCheck, Exported, export
from jax.interpreters import mlir
from jax.stages import Lowered, Traced
from jaxlib.mlir import ir
from msgspec import Struct
from msgspec.structs import replace

from ..base.advice import first_line
from ..base.untrusted import read_struct
from ..base.user_error import UserError
from ..models.user_code import errors_as_invalid, find_function, load_module, parameters_of, type_name
from ..parallel.mesh import build_mesh
from ..spec.config import SIMULATED_DEVICES
from .attributes import captured, has_memory_kinds, walked
from .explain import explain
from .explanation import Explanation, KeptStepRequest, ProgramRequest
from .names import kept_names

MAX_KEPT_BYTES = 1_000_000_000
OPTION = "explain"
KERNELS = [DisabledSafetyCheck.custom_call("tpu_custom_call")]
"""What Pallas makes for TPUs, which jax promises to keep for no later version."""
OTHER_MESH = "should match the aval mesh"
"""jax's words for an array on another mesh than the one that is set."""
NOT_ELSEWHERE = (AttributeError, NotImplementedError, ValueError)
"""jax's errors for a program that has operations of the devices that it is traced for."""
EXPECTED = "return what jax.jit(f).lower(…) or .trace(…) gives, or a pair of jax.jit(f) and a tuple of its arguments"


class KeptStep(Struct, frozen=True, kw_only=True):
    """The step of an external loop as jax lowered it, with names of its arguments, empty for one without."""

    names: list[str]
    module: str


def kept_step(lowered: Lowered, names: Sequence[str]) -> KeptStep:
    """Returns a step without the values of the arrays that its function captured, on which no layout depends: each has
    a number in their place."""
    module = lowered.compiler_ir("stablehlo")
    assert module is not None
    numbered: dict[Any, ir.Attribute] = {}
    with module.context:
        copy = module.operation.clone()
        for op in walked(copy, "stablehlo.constant"):
            if (value := captured(op)) is not None:
                if value not in numbered:
                    number = f"dense_resource<captured_{len(numbered)}>"
                    numbered[value] = ir.Attribute.parse(f"{number} : {op.results[0].type}")
                op.attributes["value"] = numbered[value]
        return KeptStep(names=list(names), module=copy.get_asm(enable_debug_info=True))


def explain_kept(file: KeptStepRequest) -> Explanation:
    path = Path(file.path)
    kept = read_struct(path, KeptStep, MAX_KEPT_BYTES)
    try:
        with mlir.make_ir_context() as context:
            module = ir.Module.parse(kept.module, context)
    except ir.MLIRError as error:
        raise UserError(f"{path}: the step cannot be read: {first_line(str(error))}") from error
    return _as_lowered(explain(module, path.parent.name, kept.names), module)


def explain_program(program: ProgramRequest) -> Explanation:
    lowered = lower(program, math.prod(program.mesh.values()) if program.mesh else SIMULATED_DEVICES)
    found = explain(lowered.module, program.function.name)
    if not lowered.is_elsewhere:
        found = _as_lowered(found, lowered.module)
    if not program.compiles:
        return found
    from .compiled import with_compiled  # it imports flax and optax, which `watch` does not need

    return with_compiled(lowered.lowered, found, jax.default_backend())


def _as_lowered(found: Explanation, module: Any) -> Explanation:
    """Without moves if there are none between several kinds of memory: lowered for the CPU, a program has none."""
    is_unknown = has_memory_kinds(module) and not found.memory_transfers
    return replace(found, memory_transfers=None) if is_unknown else found


class LoweredProgram(NamedTuple):
    """A program of the user's."""

    lowered: Lowered
    """For the platform that was asked for, else for the devices of its mesh."""
    module: Any
    """For that platform; for the CPU if it is lowered already, or has operations of the CPU."""
    is_elsewhere: bool
    """Whether the module is for another platform than the mesh."""
    traced: Traced | None
    """None if no other platform was asked for, or the function returned it lowered."""
    exported: Exported | None
    """For that platform, to compile for devices of it; None unless the program is to be compiled, and a pair."""

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options that jax.jit was given; jax has no public way to read them."""
        return dict(getattr(self.traced, "_params", {}).get("compiler_options_kvs", ()))


def lower(program: ProgramRequest, count: int, platform: str = "") -> LoweredProgram:
    """Lowers the program of a user's function. Nothing may use jax's devices before. Raises UserError.

    `count`: simulated devices to create. `platform`: what the module is for, if not for those; by default it is for a
    TPU if the program uses several kinds of memory: jax leaves moves between them out of what it lowers for a CPU."""
    jax.config.update("jax_num_cpu_devices", count)
    model = program.function
    what = f"{OPTION} {model.name}"
    function = find_function(load_module(model, OPTION), model.function, model, OPTION)
    needed = [name for name, each in parameters_of(function).items() if each.default is each.empty]
    if needed:
        raise UserError(f"{what}: it takes {', '.join(needed)}, but is called without arguments: give them defaults")
    mesh = jax.set_mesh(build_mesh(program.mesh, jax.devices())) if program.mesh else nullcontext()
    try:
        with errors_as_invalid(what, model.directory), mesh, kept_names():
            returned = function()
            traced = traced_of(returned) if platform else None
            elsewhere = lowered_for(traced, platform)
            found = elsewhere or lowered(returned, what)
            if not platform and has_memory_kinds(found.compiler_ir("stablehlo")):
                elsewhere = lowered_for(traced_of(returned), "tpu")
            module = (elsewhere or found).compiler_ir("stablehlo")
            exported = _export(returned, platform) if platform and program.compiles else None
            return LoweredProgram(found, module, elsewhere is not None, traced, exported)
    except UserError as error:
        if program.mesh and OTHER_MESH in str(error):
            given = ",".join(f"{axis}={size}" for axis, size in program.mesh.items())
            raise UserError(f"{what}: it has a mesh of its own, other than --mesh {given}: leave --mesh out") from error
        raise


def traced_of(returned: Any) -> Traced | None:
    """Returns what a user's function traced; None if it is lowered already."""
    match returned:
        case (jitted, tuple(arguments)) if hasattr(jitted, "trace"):
            return jitted.trace(*arguments)
        case Traced():
            return returned
        case _:
            return None


def _export(returned: Any, platform: str) -> Exported | None:
    match returned:
        case (jitted, tuple(arguments)) if hasattr(jitted, "trace"):
            return export(jitted, platforms=(platform,), disabled_checks=KERNELS)(*arguments)
        case _:
            return None


def lowered_for(traced: Traced | None, platform: str) -> Lowered | None:
    """Lowers a program for another platform; None if there is none, or it has operations of the CPU."""
    try:
        return traced and traced.lower(lowering_platforms=(platform,))
    except NOT_ELSEWHERE:
        return None


def lowered(returned: Any, what: str) -> Lowered:
    """Returns the `Lowered` in the return value of a user's function. Raises UserError if there is none."""
    match returned:
        case (jitted, tuple(arguments)) if hasattr(jitted, "lower"):
            found = jitted.lower(*arguments)
        case Traced():
            found = returned.lower()
        case _:
            found = returned
    found = getattr(found, "lowered", found)  # Equinox's and NNX's jit wrap jax's result
    if not isinstance(found, Lowered):
        raise UserError(f"{what}: it returns {type_name(returned)}: {EXPECTED}")
    return found
