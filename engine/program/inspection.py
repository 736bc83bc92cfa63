"""Finds the layouts of gradients and activations and the compiler's warnings, which need a compilation of their own.

The inspected program computes the same as the running one and has the same collectives, but cannot come from the
compilation cache. So it is compiled only on request, and never run.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

import jax
import numpy as np

from ..base.advice import first_line
from ..base.machine import versions
from ..base.user_error import refuse
from ..hlo.module import LIBRARIES, Instruction, Module, parse
from ..models.task import Array, gradient_name
from ..parallel.mesh import describe_device
from ..parallel.observed import Observed
from ..parallel.rules import Decision
from ..spec.checks import problems_of
from ..spec.config import RunConfig
from ..spec.preset_reader import load_preset
from ..wire.descriptions import ArrayInfo, RematerializationInfo
from ..wire.events import Inspection, PresetInspected
from .placement import Placement, place
from .program import compile_program, quick, trace_step
from .setup import devices_and_task

REMATERIALIZATION = re.compile(
    r"Involuntary full rematerialization\..*? from sharding (?P<source>\{.*?\}) to (?P<target>\{.*?\}) "
    r"(?:efficiently|without).*?HLO operation:? (?P<operation>%?\S+ = \w+\[(?P<shape>[\d,]*)\]\S* [\w-]+)(?P<rest>.*)"
)


def inspect(config: RunConfig, *others: str) -> Iterator[Inspection]:
    return (inspection for _, inspection in inspections(config, *others))


def inspections(config: RunConfig, *others: str) -> Iterator[tuple[Placement, Inspection]]:
    """Yields inspections, each with its placement. Raises UserError if the config or a preset is invalid."""
    devices, task = devices_and_task(config)
    refuse(problems_of(config))
    for name in (config.preset, *others):
        placement = place(task, load_preset(name), devices)
        inspection = Inspection(
            devices=[describe_device(device) for device in devices],
            versions=versions(),
            flops_per_step=task.flops_per_step,
            compiled=compile_program(placement).description,
            inspected=inspect_program(placement),
        )
        yield placement, inspection


def inspect_program(placement: Placement) -> PresetInspected:
    """Lowers and compiles the step again, to inspect it. May run in any thread."""
    observed = Observed()
    problem, text = None, ""
    with compiler_output() as output:
        try:
            text = trace_step(placement, observed).lower().compile(compiler_options=quick(placement)).as_text() or ""
        except jax.errors.JaxRuntimeError as error:
            problem = _missing_layouts(str(error))
    return PresetInspected(
        preset=placement.preset.name,
        arrays=[*_gradients(placement, observed), *_activations(placement, observed)],
        rematerializations=rematerializations("\n".join(output), text),
        problem=problem,
    )


def _missing_layouts(error: str) -> str:
    """Describes an error of jax, which reports no layouts if the compiler splits a dim over part of a mesh axis."""
    lines = re.findall(r"(\S+\.py):(\d+):\d+ \[", error)
    at = next((f" at {file}:{line}" for file, line in lines if not LIBRARIES.search(file)), "")
    why = at or f": {first_line(error)}"
    return (
        f"some layouts are missing: jax has no spec for what the compiler chose{why}: add a sharding constraint there"
    )


def _gradients(placement: Placement, observed: Observed) -> Iterator[ArrayInfo]:
    arrays: list[Array] = jax.tree.leaves(placement.task.state_arrays.params)
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


def rematerializations(output: str, text: str) -> list[RematerializationInfo]:
    """Returns the involuntary full rematerializations in the compiler's log.

    A warning names an operation from before partitioning, so its source line is taken from the operation with the same
    op name in `text`, the compiled module; empty if there is none.
    """
    found = list(REMATERIALIZATION.finditer(output))
    module = parse(text) if found and text else None
    return [_rematerialization(warning, module) for warning in found]


def _rematerialization(warning: re.Match[str], module: Module | None) -> RematerializationInfo:
    operation = Instruction("", "", "", f"){warning['rest']}")
    return RematerializationInfo(
        operation=warning["operation"],
        shape=[int(size) for size in warning["shape"].split(",") if size],
        from_sharding=warning["source"],
        to_sharding=warning["target"],
        op_name=operation.op_name,
        source=_source(operation, module) if module else "",
    )


def _source(operation: Instruction, module: Module) -> str:
    if operation.attribute(r"(source_file)="):
        return module.source(operation)
    same = (found for _, found in module.instructions() if operation.op_name and found.op_name == operation.op_name)
    return next(filter(None, map(module.source, same)), "")


@contextlib.contextmanager
def compiler_output() -> Iterator[list[str]]:
    """Collects the lines that the compiler, which is C++, writes to file descriptor 2, then writes them to it."""
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
