"""What has to be asked of the compiler apart: the layouts of gradients and activations, and its warnings.

A program that is looked at computes what the running one computes and has the same collectives, but it cannot come
from the compilation cache. So it is compiled only when somebody wants to see it, and never run.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

import jax
import numpy as np

from .hlo import LIBRARIES
from .program import Placement, lower_step
from .protocol import ArrayInfo, PresetInspected, RematerializationInfo
from .sharding import Decision, Observed
from .task import Array, Task, gradient_name

REMATERIALIZATION = re.compile(
    r"Involuntary full rematerialization\..*? from sharding (?P<source>\{.*?\}) to (?P<target>\{.*?\}) "
    r"(?:efficiently|without).*?HLO operation:? (?P<operation>%?\S+ = \w+\[(?P<shape>[\d,]*)\]\S* [\w-]+)(?P<rest>.*)"
)


def inspect_program(task: Task, placement: Placement) -> PresetInspected:
    """Lowers and compiles the step once more, to be looked at. May run in any thread."""
    observed = Observed()
    problem = None
    with _compiler_output() as output:
        try:
            lower_step(task, placement, observed).compile(compiler_options=_options(placement))
        except jax.errors.JaxRuntimeError as error:
            problem = _unnamed(str(error))
    return PresetInspected(
        preset=placement.preset.name,
        arrays=[*_gradients(task, placement, observed), *_activations(placement, observed)],
        rematerializations=[_rematerialization(found) for found in REMATERIALIZATION.finditer("\n".join(output))],
        problem=problem,
    )


def _unnamed(error: str) -> str:
    """jax gives up on all layouts where the compiler splits a dim over a part of an axis, which no spec can say."""
    lines = re.findall(r"(\S+\.py):(\d+):\d+ \[", error)
    at = next((f" at {file}:{line}" for file, line in lines if not LIBRARIES.search(file)), "")
    why = at or f": {error.strip().splitlines()[0]}"
    return (
        f"some layouts are missing: jax has no spec for what the compiler chose{why}: "
        "ask for a layout there with a sharding constraint"
    )


def _options(placement: Placement) -> dict[str, str | bool]:
    """On CPU half of the time goes into machine code that nobody will run."""
    return {"xla_backend_optimization_level": "0"} if placement.mesh.devices.flat[0].platform == "cpu" else {}


def _gradients(task: Task, placement: Placement, observed: Observed) -> Iterator[ArrayInfo]:
    arrays: list[Array] = jax.tree.leaves(task.state_arrays.params)
    decisions: list[Decision] = jax.tree.leaves(placement.state.params)
    for array, decision in zip(arrays, decisions, strict=True):
        name = gradient_name(array.names[0])
        if name in observed.shardings:
            gradient = Array((name,), "gradient", array.shape, array.dtype, array.logical_axes)
            yield placement.describe(gradient, decision, observed.shardings[name])


def _activations(placement: Placement, observed: Observed) -> Iterator[ArrayInfo]:
    for name, activation in observed.activations.items():
        if name in observed.shardings:
            array = Array((name,), "activation", activation.shape, np.dtype(activation.dtype), activation.logical_axes)
            yield placement.describe(array, activation.decision, observed.shardings[name])


def _rematerialization(found: re.Match[str]) -> RematerializationInfo:
    op_name = re.search(r'op_name="([^"]*)"', found["rest"])
    file, line = (re.search(rf'{key}="?([^"\s}}]*)', found["rest"]) for key in ("source_file", "source_line"))
    return RematerializationInfo(
        operation=found["operation"],
        shape=[int(size) for size in found["shape"].split(",") if size],
        from_sharding=found["source"],
        to_sharding=found["target"],
        op_name=op_name.group(1) if op_name else "",
        source=f"{file.group(1)}:{line.group(1)}" if file and line else "",
    )


@contextlib.contextmanager
def _compiler_output() -> Iterator[list[str]]:
    """The lines that the compiler, which is C++, writes to file descriptor 2 meanwhile; they are passed on after."""
    lines: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            written = file.read()
            lines += written.decode(errors="replace").splitlines()
            os.write(2, written)
