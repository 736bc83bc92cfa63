"""The bytes that an array of a compiled module takes in memory, by its layout, and which memory it is in."""

import re
from functools import lru_cache

from .hlo import closing, element_bits, numbers

LEAF = re.compile(r"token\[\]|\w+\[[^\]]*\](?:\{[^}]*\})?")
"""An array, with its layout."""
ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([\d,]*))?")
TILE = re.compile(r"T\(([\d,]+)\)")
SPACE = re.compile(r"S\((\d+)\)")
MAIN = 0
"""The memory space of HBM, and on CPU the only one."""


@lru_cache(4096)
def leaves(type_: str) -> tuple[str, ...]:
    """Returns the arrays of a type, those of nested tuples in order."""
    return tuple(LEAF.findall(type_))


@lru_cache(4096)
def elements(type_: str) -> tuple[int, ...]:
    """Returns how many arrays each element of a tuple type has."""
    counts, at = list[int](), 1
    while at < len(type_) - 1:
        if type_[at] == "(":
            end = at + 1 + closing(type_[at + 1 :]) + 1
            counts.append(len(leaves(type_[at:end])))
        elif found := LEAF.match(type_, at):
            end = found.end()
            counts.append(1)
        else:  # a comma, a blank, or a comment with an index
            end = type_.find("*/", at) + 2 if type_.startswith("/*", at) else at + 1
        at = end
    return tuple(counts)


@lru_cache(4096)
def padded_bytes(array: str) -> int:
    """Returns the bytes of an array in memory: TPUs pad the minor dims to whole tiles."""
    found = ARRAY.match(array)
    bits = element_bits(found[1]) if found else 0
    if not found or not bits:
        return 0
    dims, tile = numbers(found[2]), TILE.search(array)
    if tile:
        sizes = numbers(tile[1])
        dims = [1] * (len(sizes) - len(dims)) + dims
        shift = len(dims) - len(numbers(found[2]))
        order = [dim + shift for dim in numbers(found[3] or "")] + list(reversed(range(shift)))  # minor to major
        for dim, size in zip(order, reversed(sizes), strict=False):
            dims[dim] = -(-dims[dim] // size) * size
    for size in dims:
        bits *= size
    return -(-bits // 8)


@lru_cache(4096)
def memory_space(array: str) -> int:
    """Returns the memory space of an array, such as `MAIN`; TPUs also have vector and scalar memory on the chip."""
    found = SPACE.search(array)
    return int(found[1]) if found else MAIN
