"""Array types in HLO text, such as `f32[8,16]{1,0}`, and tuples of them."""

import re
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from .module import closing, number, numbers

ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
LEAF = re.compile(r"\b\w+\[[^\[\]]*\](?:\{[^{}]*\})?")
"""An array, with its layout."""
SPACE = re.compile(r"S\((\d+)\)")
MAIN = 0
"""The memory space of HBM, and on CPU the only one."""
BYTES = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}
"""Bytes of an element, for dtypes whose name does not give the bits."""
MAX_BYTES = 2**63
"""Bytes of one array."""
MAX_DTYPES = 100
"""Distinct dtypes in one type."""


class Arrays(NamedTuple):
    """The arrays of a type: one, or the elements of a tuple."""

    bits: int
    """Bits of all arrays, without the padding of tiled layouts."""
    dtypes: list[str]
    """Distinct dtypes."""
    shapes: list[list[int]]
    """The shape of each array."""


@lru_cache(4096)
def arrays(text: str) -> Arrays:
    """Parses a type. Raises ValueError if it is too large for any device."""
    found = ARRAY.findall(text)
    times = Counter(found)
    dims = {array: numbers(array[1]) for array in times}
    dtypes = list(dict.fromkeys(dtype for dtype, _ in times))
    if len(dtypes) > MAX_DTYPES:
        raise ValueError(f"a type has {len(dtypes):,} dtypes: at most {MAX_DTYPES} are read")
    bits = sum(count * _bits(array[0], dims[array]) for array, count in times.items())
    return Arrays(bits, dtypes, [dims[array] for array in found])


def _bits(dtype: str, dims: list[int]) -> int:
    bits = 0 if 0 in dims else element_bits(dtype)
    for size in dims:
        bits *= size
        if bits > 8 * MAX_BYTES:
            raise ValueError(f"an array of {dtype[:20]} in {len(dims)} dims takes more than 2⁶³ bytes")
    return bits


@lru_cache(64)
def element_bits(dtype: str) -> int:
    """Returns the bits of an element of a dtype such as `f32`, `bf16`, `s4` or `f8e4m3fn`; 0 if unknown."""
    if dtype in BYTES:
        return 8 * BYTES[dtype]
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return number(bits.group(1)) if bits else 0


@lru_cache(4096)
def leaves(type_: str) -> tuple[str, ...]:
    return tuple(LEAF.findall(type_))


@lru_cache(4096)
def elements(type_: str) -> tuple[int, ...]:
    """Returns how many arrays each element of a tuple type has."""
    counts, at = list[int](), 1
    while at < len(type_) - 1:
        if type_[at] == "(":
            end = closing(type_, at + 1) + 1
            counts.append(len(leaves(type_[at:end])))
        elif found := LEAF.match(type_, at):
            end = found.end()
            counts.append(1)
        else:  # a comma, a blank, or a comment with an index
            end = type_.find("*/", at) + 2 if type_.startswith("/*", at) else at + 1
        at = end
    return tuple(counts)


@lru_cache(4096)
def memory_space(array: str) -> int:
    """Returns the memory space of an array, such as `MAIN`; TPUs also have vector and scalar memory on the chip."""
    found = SPACE.search(array)
    return int(found[1]) if found else MAIN
