"""Runs Shardy's passes, which jaxlib carries: what its partitioner would do with a program, without compiling it."""

from typing import Any

import jaxlib
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import stablehlo

from ..base.advice import first_line
from ..base.invalid import Invalid

PIPELINE = "sdy-propagation-pipeline"
PROPAGATE = "sdy-user-priority-propagate"
INSERT = "sdy-insert-explicit-reshards"
RECORD = ("debug-propagation-edge-sharding", "debug-sharding-origins")
"""Options of passes: record from which value each mesh axis came, and where it was first asked for."""
LEGALIZE = "func.func(chlo-legalize-to-stablehlo)"
"""Writes CHLO's operations, such as `chlo.square`, in StableHLO, as the compiler does: no axis crosses them else."""
NOT_REGISTERED = "sdy-save-module"
CONSTRAIN = "sdy-apply-sharding-constraints"
MANUAL = "sdy.manual_computation"
"""A `shard_map`: in a program with one, `CONSTRAIN` may end the process with SIGSEGV if it records (jaxlib 0.10.2 and
0.12.0)."""

Operation = Any
"""An operation of jaxlib's MLIR bindings."""


def propagate(module: Operation, records: bool) -> None:
    """Decides the sharding of every value of a module. Raises Invalid.

    `records`: whether the origins are recorded in attributes.
    """
    before, _ = _pipeline(module)
    stablehlo.register_stablehlo_passes()
    _run(module, [LEGALIZE, *(_recording(before, MANUAL in str(module)) if records else before)])


def _recording(passes: list[str], has_manual: bool) -> list[str]:
    for option in RECORD:
        passes = [
            each if has_manual and CONSTRAIN in each else each.replace(f"{option}=false", f"{option}=true")
            for each in passes
        ]
    if not all(f"{option}=true" in passes[-1] for option in RECORD):
        raise _missing(f"{PROPAGATE} records no origins")
    return passes


def insert_collectives(module: Operation) -> None:
    """Inserts the collectives that a module needs after `propagate`. Raises Invalid."""
    _, after = _pipeline(module)
    _run(
        module,
        [
            "sdy-remove-propagation-debug-info",
            *after,
            f"func.func({INSERT}{{enable-full-version=true}})",
            "func.func(sdy-reshard-to-collectives)",
        ],
    )


def _pipeline(module: Operation) -> tuple[list[str], list[str]]:
    """The passes of jaxlib's own pipeline until the propagation, and those from there until reshards are inserted."""
    with module.context:
        try:
            text = str(passmanager.PassManager.parse(f"builtin.module({PIPELINE})"))
        except ValueError as error:
            raise _missing(first_line(str(error))) from error
    passes = [each for each in _split(text) if each != NOT_REGISTERED]
    found = [next((index for index, each in enumerate(passes) if name in each), None) for name in (PROPAGATE, INSERT)]
    if None in found or found != sorted(found):  # type: ignore[type-var]
        raise _missing(f"{PIPELINE} has other passes")
    propagates, inserts = found
    return passes[: propagates + 1], passes[propagates + 1 : inserts]  # type: ignore[operator]


def _split(text: str) -> list[str]:
    """The passes of `builtin.module(a{…},func.func(b),c)`."""
    passes, depth = [""], 0
    for character in text.partition("(")[2].removesuffix(")"):
        depth += (character in "({") - (character in ")}")
        if character == "," and not depth:
            passes.append("")
        else:
            passes[-1] += character
    return passes


def _run(module: Operation, passes: list[str]) -> None:
    with module.context:
        try:
            manager = passmanager.PassManager.parse(f"builtin.module({','.join(passes)})")
        except ValueError as error:
            raise _missing(first_line(str(error))) from error
        manager.enable_verifier(False)  # it refuses the origins of loops that the propagation itself records
        try:
            manager.run(module)
        except Exception as error:  # MLIRError, which is not public
            raise Invalid(f"Shardy's passes fail on this program: {first_line(str(error))}") from error


def _missing(why: str) -> Invalid:
    return Invalid(
        f"jaxlib {jaxlib.version.__version__} lacks the passes that explain a program: {why}: use a jaxlib that "
        "shardtui was tested with (0.10.2, 0.12.0)"
    )
