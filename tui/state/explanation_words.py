"""Explanations in words: the ends of chains, and what the compiler made of them."""

from collections.abc import Sequence

from ...engine.base import formatting
from ...engine.explain.explanation import UNKNOWN, CompiledProgram, Explanation, Link
from ...engine.planning.ranking import Row
from ...engine.spec.topology import load_topology
from . import board_rows


def in_words(link: Link) -> str:
    return f"{link.what} ({formatting.place(link.source, link.caller)})" if link.source else link.what


def ends(origin: Sequence[Link]) -> list[str]:
    """Returns a line for the end of each chain, then for each conflict."""
    last = {(link.dim, link.axis): link for link in origin if link.kind != "conflict" and link.axis}
    captured = [in_words(link) for link in origin if link.kind == "captured"]
    conflicts = [f"dim {link.dim} not over {link.axis}: {in_words(link)}" for link in origin if link.kind == "conflict"]
    return [*captured, *(f"{axis}: {in_words(link)}" for (_, axis), link in last.items()), *conflicts]


def memory_moves(found: Explanation, value: str | None = None) -> list[str]:
    """Returns a line for each move between the memory of the devices and the host's, or that they are unknown; with a
    name, of that value."""
    if found.memory_transfers is None:
        return [
            "moves between kinds of memory are unknown, as the program was lowered for the CPU: let shardtui explain "
            "have its .trace(…), or jax.jit(f) and its arguments"
        ]
    return [
        f"{each.value} moves from {each.before} to {each.after}, {formatting.times(each.count)} ×, "
        f"{formatting.size(each.bytes)} per device{f' ({formatting.short_source(each.source)})' if each.source else ''}"
        for each in found.memory_transfers
        if value in (None, each.value)
    ]


def program_row(found: Explanation) -> Row:
    """Returns the cost of a program on its topology as the row of a board."""
    compiled = found.compiled.cost if found.compiled else None
    return Row(preset=found.program, mesh=found.mesh, laid_out=True, estimate=found.cost, compiled=compiled)


def cost_words(found: Explanation) -> list[str]:
    """Returns the cost in short: `v5e:2x4: 1.86 GB, 11 %`, `sends 218 MB`, `13.5 ms, traced`; empty without one."""
    row = program_row(found)
    if (cost := row.cost) is None:
        return []
    seconds = cost.scheduled_seconds or cost.step_seconds or 0.0
    sends = [f"sends {formatting.size(cost.bytes_sent)}"] if cost.bytes_sent is not None else []
    return [
        f"{load_topology(found.topology).title}: {board_rows.peak_of_capacity(row)}",
        *sends,
        f"{formatting.seconds(seconds)}, {cost.basis}",
    ]


WINDOWED = range(3, 33)
"""Devices over which the TPU compiler has windowed products (docs/planning-measured.md)."""
GATHERED = (
    "over 3 to 32 devices the TPU compiler multiplies while it gathers, and may send more than traced: "
    "--compile tells, and xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000 prevents it"
)


def cost_caveats(found: Explanation) -> list[str]:
    """Returns what a traced cost leaves out, or may be far off in."""
    row = program_row(found)
    if row.cost is None or row.compiled:
        return []
    unknown = [each.source for each in found.collectives if each.kind == UNKNOWN]
    places = ", ".join(dict.fromkeys(map(formatting.short_source, unknown)))
    left_out = f"not counted: operations whose traffic only --compile tells, at {places}"
    topology = load_topology(found.topology)
    is_windowed = topology.platform == "tpu" and topology.devices in WINDOWED and row.cost.bytes_sent
    return [*([left_out] if unknown else []), *([GATHERED] if is_windowed else []), *board_rows.caveats(row)]


COST = [column for column in board_rows.columns() if column.name not in ("preset", "tokens/s", "MFU")]
"""The columns of a program's cost: its tokens are not known."""


def compiled_bytes(found: CompiledProgram) -> dict[str, int]:
    return {"arguments": found.argument_bytes, "outputs": found.output_bytes, "temporaries": found.temporary_bytes}


def differences(found: CompiledProgram) -> list[str]:
    if found.collectives is None:
        return ["its collectives are unknown: it was compiled for another number of devices"]
    return found.differs or ["the compiled program has the collectives that were estimated"]
