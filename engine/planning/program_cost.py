"""The cost of a user's program on TPUs or GPUs that are not here: traced, and compiled for them."""

from collections.abc import Sequence

import jax
from jax.export import Exported
from jax.stages import Compiled, Lowered
from msgspec.structs import replace

from ..base.user_error import UserError
from ..explain.compiled import with_compiled
from ..explain.explain import explain
from ..explain.explanation import Explanation, ProgramRequest
from ..explain.live_memory import LiveMemory
from ..explain.partitioned import partition
from ..explain.programs import LoweredProgram, lower
from ..explain.step import LOWERED_FOR
from ..explain.transfers import moving
from ..explain.work import Products
from ..hlo.program_text import read
from ..hlo.step_cost import StepCost
from ..models.flops import kernel_flops
from ..parallel.mesh import build_mesh
from ..program.memory import predict
from ..spec.topology import Topology, load_topology
from .ahead_of_time import cost_of, find_slice
from .step_trace import SizedStep, result_bytes, sent_by

EXPORTED = "jit(call)/call_exported/"
"""What jax puts before the names of operations of an exported program."""


def explain_for(program: ProgramRequest) -> Explanation:
    """Explains a program on a topology, with its cost, and compiles it if that is asked for. Raises UserError if the
    program does not fill the topology, or cannot be compiled."""
    topology = load_topology(program.topology)
    if program.mesh:
        topology.check_mesh(program.mesh)
    devices = find_slice(topology) if program.compiles else []
    lowered = lower(program, topology.devices, LOWERED_FOR[topology.platform])
    found = explain(lowered.module, program.function.name, topology=topology)
    names = [value.name for value in found.values if value.role == "argument"]
    traced, argument_bytes = _trace(lowered, topology, names)
    cost = traced.with_peak(traced.cost(found.mesh, {"arguments": argument_bytes}, topology))
    found = replace(found, topology=program.topology, cost=cost)
    if not program.compiles:
        return found
    if lowered.exported is None:
        raise UserError(
            f"{found.program}: --compile with --topology: return a pair of jax.jit(f) and a tuple of its arguments: a "
            "program that is traced already belongs to simulated devices"
        )

    def compiled_cost(compiled: Compiled, text: str) -> StepCost:
        text = text.replace(EXPORTED, "")
        memory, described = predict(compiled, (), topology.platform), read(text, found.mesh, names, {})
        return cost_of(memory, described, traced.work(argument_bytes), text, found.mesh, topology)

    there = _lowered_for(devices, lowered, lowered.exported, found.mesh)
    return with_compiled(there, found, topology.platform, compiled_cost)


def _lowered_for(
    devices: Sequence[jax.Device], program: LoweredProgram, exported: Exported, mesh: dict[str, int]
) -> Lowered:
    """Lowers a program anew for other devices, with the same shardings, donated arguments and compiler's options."""
    placed = build_mesh(mesh, devices)
    shardings = exported.in_shardings_jax(placed)
    arrays = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding)
        for each, sharding in zip(exported.in_avals, shardings, strict=True)
    ]
    arguments, keywords = jax.tree.unflatten(exported.in_tree, arrays)
    results = jax.tree.unflatten(exported.out_tree, exported.out_shardings_jax(placed))
    donated = [
        number
        for number, argument in enumerate(program.lowered.args_info[0])
        if any(each.donated for each in jax.tree.leaves(argument))
    ]
    jitted = jax.jit(exported.call, out_shardings=results, donate_argnums=donated, compiler_options=program.options)
    return jitted.lower(*arguments, **keywords)


def _trace(lowered: LoweredProgram, topology: Topology, names: list[str]) -> tuple[SizedStep, int]:
    """Returns the program as it is traced, and the bytes of its arguments on a device."""
    program = partition(lowered.module)
    kernels = kernel_flops(lowered.traced.jaxpr) if lowered.traced else {}
    with program.module.context:
        held = sum(program.bytes(value, program.layout(value)) for value in program.main.arguments)
        step = SizedStep(
            live=LiveMemory(program, topology.platform),
            flops=Products(program, kernels, 1.0).flops(program),
            sent=sent_by(program, topology, program.graph.mesh, moving(program)),
            result_bytes=result_bytes(program),
            model_flops=0.0,
            tokens=0,
            names=names,
        )
    return step, held
