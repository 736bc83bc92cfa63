"""The step of an external loop, kept in the run's directory so that another process can explain it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from jax.interpreters import mlir
from jax.stages import Lowered
from jaxlib.mlir import ir
from msgspec import Struct

from ..base.advice import first_line
from ..base.invalid import Invalid
from ..base.regular_file import read_regular
from .explain import explain
from .explanation import Explanation

LARGEST_CONSTANT = 16
"""Elements; the values of larger constants are left out, which no layout depends on."""


class KeptStep(Struct, frozen=True, kw_only=True):
    """The step of an external loop, as jax lowered it."""

    names: list[str]
    """Names of its arguments, in order; empty for one without a name."""
    module: str
    """Its StableHLO with source lines, without large constants."""


def kept_step(lowered: Lowered, names: Sequence[str]) -> KeptStep:
    """Returns what explains a step. `names`: those of the arguments that it uses, in order."""
    module = lowered.compiler_ir("stablehlo")
    assert module is not None
    text = module.operation.get_asm(enable_debug_info=True, large_elements_limit=LARGEST_CONSTANT)
    return KeptStep(names=list(names), module=text)


def explain_kept(path: Path) -> Explanation:
    """Explains the step in a file. Raises Invalid if this jaxlib cannot read or explain it."""
    try:
        kept = msgspec.json.decode(read_regular(path), type=KeptStep)
        with mlir.make_ir_context() as context:
            module = ir.Module.parse(kept.module, context)
    except (OSError, msgspec.MsgspecError, ir.MLIRError) as error:
        raise Invalid(f"{path}: the step cannot be read: {first_line(str(error))}") from error
    return explain(module, path.parent.name, kept.names)
