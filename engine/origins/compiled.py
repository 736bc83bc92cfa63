"""Compiles an explained program, to compare the estimated collectives with those of the compiler."""

import contextlib
import math
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from ..analysis.program_text import read
from ..base.advice import first_line
from ..base.invalid import Invalid
from ..program.inspection import compiler_output, rematerializations
from .agreement import differences
from .explanation import CompiledProgram, Explanation
from .rematerialized import rematerialized


def compiled(lowered: jax.stages.Lowered, explanation: Explanation) -> CompiledProgram:
    """Compiles the program for the devices that it was lowered for. Raises Invalid if that fails."""
    try:
        with _uncached(), compiler_output() as output:
            program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise Invalid(f"{explanation.program}: it does not compile: {first_line(str(error))}") from error
    mesh, text = explanation.mesh, program.as_text() or ""
    known = f"num_partitions={math.prod(mesh.values())}" in text.partition("\n")[0] or not mesh
    found = read(text, mesh, ()).collectives if known else None
    memory = program.memory_analysis()
    return CompiledProgram(
        collectives=found,
        differs=differences(explanation.collectives, found or ()),
        rematerializations=[
            rematerialized(each, explanation) for each in rematerializations("\n".join(output), text) if known
        ],
        argument_bytes=memory.argument_size_in_bytes if memory else 0,
        output_bytes=memory.output_size_in_bytes if memory else 0,
        temporary_bytes=memory.temp_size_in_bytes if memory else 0,
    )


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Compiles anew: a program from the compilation cache comes without the compiler's warnings."""
    is_enabled = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        reset_cache()  # jax looks at the setting once
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", is_enabled)
        reset_cache()
