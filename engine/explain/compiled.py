"""Compiles an explained program, for its collectives and its involuntary full rematerializations.

The compiler replicates a value if it cannot go from one layout to the other. Its warning has neither mesh axes nor a
line of the user's.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from msgspec.structs import replace

from ..base import formatting
from ..base.advice import first_line
from ..base.user_error import UserError
from ..hlo.device_groups import axes_of
from ..hlo.program_text import read_collectives
from ..hlo.step_cost import StepCost
from ..parallel.rules import spec_of
from ..program.inspection import compiler_output, rematerializations
from ..program.memory import temporary_bytes
from ..wire.descriptions import RematerializationInfo
from .explanation import CompiledProgram, Explanation, Rematerialization, ValueOrigin, differences
from .graph import Graph

TILES = re.compile(r"\{devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
"""Tiles of each dim (a last one may be replicas), then an iota of devices: its dims and their order."""
NAMED = re.compile(r"\{mesh\[[^\]]*\], \[([^\]]*)\]")
"""Dims, each with its mesh axes by name, as jax 0.12 has them: `{mesh['data'=4], [{'data'}, {}]}`."""
ALONE = re.compile(r"\{(?:maximal device=|single_device\[device_id=)(\d+)\]?\}")
DIM, AXIS = re.compile(r"\{([^{}]*)\}"), re.compile(r"'([^']+)'(:\(\d+\)\d+)?")
MOST_DIMS = 16
Layout = list[list[str]]


def with_compiled(
    lowered: jax.stages.Lowered,
    explanation: Explanation,
    platform: str,
    cost: Callable[[jax.stages.Compiled, str], StepCost | None] = lambda *_: None,
) -> Explanation:
    """Compiles the program for the devices that it was lowered for, of a `platform`. Raises UserError if that fails.
    `cost`: what the compiled program costs, of its text."""
    try:
        with _uncached(), compiler_output() as output:
            program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"{explanation.program}: it does not compile: {first_line(str(error))}") from error
    mesh, text = explanation.mesh, program.as_text() or ""
    known = f"num_partitions={math.prod(mesh.values())}" in text.partition("\n")[0] or not mesh
    found = read_collectives(text, mesh) if known else None
    memory, values = program.memory_analysis(), list(_as_compiled(explanation, program))
    compiled = CompiledProgram(
        collectives=found,
        differs=[*differences(explanation.collectives, found), *_differing(values)],
        rematerializations=[
            rematerialized(each, explanation) for each in rematerializations("\n".join(output), text) if known
        ],
        argument_bytes=memory.argument_size_in_bytes if memory else 0,
        output_bytes=memory.output_size_in_bytes if memory else 0,
        temporary_bytes=temporary_bytes(memory, platform) if memory else 0,
        cost=cost(program, text),
    )
    return replace(explanation, values=values, compiled=compiled)


def _as_compiled(explanation: Explanation, program: jax.stages.Compiled) -> Iterator[ValueOrigin]:
    """The values; results with the layouts that they have in the compiled program. Axes of size 1 split nothing."""
    shardings = iter(jax.tree.leaves(program.output_shardings))
    for value in explanation.values:
        sharding = next(shardings) if value.role == "result" else None
        if isinstance(sharding, jax.sharding.NamedSharding):
            axes = spec_of(sharding, len(value.shape))
            split = [[axis for axis in each if explanation.mesh.get(axis, 1) > 1] for each in axes]
            yield replace(value, compiled_axes=split)
        else:
            yield value


def _differing(values: Sequence[ValueOrigin]) -> list[str]:
    return [
        f"{value.name}: estimated {value.layout}, compiled {formatting.spec(value.compiled_axes)}"
        for value in values
        if value.compiled_axes is not None and value.compiled_axes != value.axes
    ]


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Compiles anew: a program from the compilation cache comes without the compiler's warnings."""
    is_enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        reset_cache()  # jax looks at the setting once
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", is_enabled)
        reset_cache()


def rematerialized(found: RematerializationInfo, explanation: Explanation) -> Rematerialization:
    """Returns the value and the layouts of a compiler's warning, in terms of the explained program."""
    before, after = (_layout(text, explanation.mesh) for text in (found.from_sharding, found.to_sharding))
    rank = len(found.shape)
    whole = [size * Graph(explanation.mesh).parts(axes) for size, axes in zip(found.shape, before, strict=False)]
    value = _value(found, [each for each in explanation.values if each.shape in (found.shape, whole)])
    alone = ALONE.match(found.from_sharding)
    about: dict[str, Any] = {
        "shape": value.shape if value else found.shape,
        "before": before[:rank],
        "device": int(alone[1]) if alone else None,
        "after": after[:rank],
    }
    if value is None:
        return Rematerialization(value=found.op_name, source=found.source, because=[], **about)
    conflicts = [link for link in value.origin if link.kind == "conflict"]
    ends = {link.axis: link for link in value.origin if link.kind != "conflict"}
    return Rematerialization(
        value=value.name,
        **about,
        source=next(filter(None, [value.source, *(link.source for link in conflicts)]), found.source),
        because=[
            *(f"{axis}: {end.what}{formatting.at(end.source)}" for axis, end in ends.items()),
            *(f"dim {link.dim} not over {link.axis}: {link.what}{formatting.at(link.source)}" for link in conflicts),
        ],
    )


def _layout(text: str, mesh: Mapping[str, int]) -> Layout:
    if named := NAMED.match(text):
        return [[name + part for name, part in AXIS.findall(dim)] for dim in DIM.findall(named[1])]
    tiles = TILES.match(text)
    if not tiles:
        return [[] for _ in range(MOST_DIMS)]
    counts, dims = ([int(size) for size in tiles[group].split(",")] for group in (1, 2))
    order = [int(dim) for dim in tiles[3].split(",")] if tiles[3] else range(len(dims))
    devices = np.arange(math.prod(dims)).reshape(dims).transpose(order).reshape(counts)
    return [_axes(devices, dim, mesh) for dim in range(len(counts))]


def _axes(devices: np.ndarray, dim: int, mesh: Mapping[str, int]) -> list[str]:
    groups = np.moveaxis(devices, dim, -1).reshape(-1, devices.shape[dim])
    return axes_of([tuple(map(int, group)) for group in groups], mesh)


def _value(found: RematerializationInfo, values: Sequence[ValueOrigin]) -> ValueOrigin | None:
    """The value of a warning: an argument by its name, else the last value of its line. `values`: of its shape."""
    alike = [each for each in values if each.role in ("argument", "value")]
    same = (each for each in alike if found.op_name == each.name and not each.source)
    at_line = (each for each in alike if found.source and each.source == found.source)
    named = (each for each in alike if formatting.op(found.op_name) == each.name)
    return next(same, None) or next(at_line, None) or next(named, None)
