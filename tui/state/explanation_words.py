"""Explanations in words: the ends of chains, and what the compiler made of them."""

from collections.abc import Sequence

from ...engine.base import formatting
from ...engine.explain.explanation import CompiledProgram, Explanation, Link


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


def compiled_bytes(found: CompiledProgram) -> dict[str, int]:
    return {"arguments": found.argument_bytes, "outputs": found.output_bytes, "temporaries": found.temporary_bytes}


def differences(found: CompiledProgram) -> list[str]:
    if found.collectives is None:
        return ["its collectives are unknown: it was compiled for another number of devices"]
    return found.differs or ["the compiled program has the collectives that were estimated"]
