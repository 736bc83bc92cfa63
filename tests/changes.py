"""Arrays of every dtype, as bits, and changes that no digest may miss."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Bits = np.ndarray
"""Unsigned `[tries, 256, words]`: flattened 16 × 16 arrays; complex numbers and PRNG keys take two words each."""
Chance = np.random.Generator
"""A seeded source of random numbers."""

SIDE, SHARDS = 16, (4, 2)
PLACES = np.arange(SIDE * SIDE)
DTYPES = (
    *("bool", "int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"),
    *("uint64", "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16", "float16", "float32"),
    *("float64", "complex64", "complex128", "key<fry>"),
)


class Encoding(NamedTuple):
    words: int
    width: int
    has_sign: bool
    """Whether negation flips one sign bit; otherwise it is the two's complement."""


def encoding(dtype: str) -> Encoding:
    if dtype == "key<fry>":
        return Encoding(2, 32, False)
    if dtype.startswith("complex"):
        return Encoding(2, int(dtype[7:]) // 2, True)
    if dtype == "bool":
        return Encoding(1, 1, True)
    if "float" in dtype:
        return Encoding(1, jnp.finfo(dtype).bits, dtype != "float8_e8m0fnu")
    return Encoding(1, jnp.iinfo(dtype).bits, False)


def unsigned(width: int) -> Any:
    return np.dtype(f"uint{max(8, width)}")


def arrays(bits: Bits, dtype: str) -> Any:
    """Decodes to arrays `[tries, 16, 16]` of the dtype."""
    words, width, _ = encoding(dtype)
    bits = np.ascontiguousarray(bits).reshape(-1, SIDE, SIDE, words)
    if dtype == "key<fry>":
        return jax.random.wrap_key_data(jnp.asarray(bits), impl="threefry2x32")
    if dtype in ("int2", "int4"):
        return (bits[..., 0].view(np.int8) << 8 - width >> 8 - width).astype(dtype)
    if width < 8 and "float" not in dtype:
        return bits[..., 0].astype(dtype)
    return bits.view(jnp.dtype(dtype))[..., 0]


def of_values(values: np.ndarray, dtype: str) -> Bits:
    """Encodes values `[tries, 256]` in the dtype."""
    words, width, _ = encoding(dtype)
    if dtype in ("bool", "key<fry>") or "int" in dtype:
        found = values.astype(np.int64).astype(unsigned(width)) & unsigned(width).type(2**width - 1)
    else:
        part = np.dtype(f"float{width}") if dtype.startswith("complex") else jnp.dtype(dtype)
        found = values.astype(part).view(unsigned(width))
    return np.repeat(found[..., None], words, axis=-1)


def random(chance: Chance, tries: int, dtype: str) -> Bits:
    words, width, _ = encoding(dtype)
    return chance.integers(0, 2**width, (tries, SIDE * SIDE, words), unsigned(width), endpoint=False)


def of_bfloat16(chance: Chance, tries: int, dtype: str) -> Bits:
    values = chance.standard_normal((tries, SIDE * SIDE), np.float32)
    return of_values(values.astype(jnp.bfloat16).astype(np.float32) * 4, dtype)


STRUCTURES: tuple[Callable[[Chance, int, str], Bits], ...] = (
    random,
    lambda chance, tries, dtype: np.zeros_like(random(chance, tries, dtype)),
    lambda chance, tries, dtype: np.repeat(random(chance, tries, dtype)[:, :1], SIDE * SIDE, axis=1),
    of_bfloat16,
    lambda chance, tries, dtype: of_values(chance.integers(0, 8, (tries, SIDE * SIDE)), dtype),
)
"""Random bits, zeros, one element repeated, values of bfloat16, and small integers."""


def flipped(chance: Chance, bits: Bits, dtype: str) -> Bits:
    words, width, _ = encoding(dtype)
    changed, rows = bits.copy(), np.arange(len(bits))
    masks = np.left_shift(1, chance.integers(0, width, len(bits)).astype(bits.dtype), dtype=bits.dtype)
    changed[rows, chance.integers(0, SIDE * SIDE, len(bits)), chance.integers(0, words, len(bits))] ^= masks
    return changed


def negated(chance: Chance, bits: Bits, dtype: str) -> Bits:
    _, width, has_sign = encoding(dtype)
    one = bits.dtype.type
    return bits ^ one(2 ** (width - 1)) if has_sign else (one(0) - bits) & one(2**width - 1)


def in_two_places(chance: Chance, bits: Bits, dtype: str, negates: bool) -> Bits:
    """Negates two elements of each array, or exchanges them."""
    changed, rows, two = bits.copy(), np.arange(len(bits))[:, None], _two(chance, len(bits))
    changed[rows, two] = negated(chance, bits, dtype)[rows, two] if negates else bits[rows, two[:, ::-1]]
    return changed


def halves_exchanged(chance: Chance, bits: Bits, dtype: str) -> Bits:
    """Exchanges the upper and lower, or the left and right halves of each array."""
    rows, columns = np.divmod(PLACES, SIDE)
    ways = np.stack([(rows + SIDE // 2) % SIDE * SIDE + columns, rows * SIDE + (columns + SIDE // 2) % SIDE])
    return _taken(bits, ways[chance.integers(0, 2, len(bits))])


def shards_taken(chance: Chance, bits: Bits, dtype: str, both: bool) -> Bits:
    """Copies one shard of each array to another, and if `both` also the other way round."""
    ones, others = _two(chance, len(bits), SHARDS[0] * SHARDS[1]).T
    rows, columns = SIDE // SHARDS[0], SIDE // SHARDS[1]
    tries, _, words = bits.shape
    split = bits.reshape(tries, SHARDS[0], rows, SHARDS[1], columns, words).transpose(0, 1, 3, 2, 4, 5)
    before = split.reshape(tries, SHARDS[0] * SHARDS[1], rows, columns, words)
    after, each = before.copy(), np.arange(tries)
    after[each, ones] = before[each, others]
    if both:
        after[each, others] = before[each, ones]
    return after.reshape(split.shape).transpose(0, 1, 3, 2, 4, 5).reshape(bits.shape)


CHANGES: dict[str, Callable[[Chance, Bits, str], Bits]] = {
    "one bit flipped": flipped,
    "two elements exchanged": partial(in_two_places, negates=False),
    "two elements negated": partial(in_two_places, negates=True),
    "negated": negated,
    "rolled": lambda chance, bits, _: _taken(bits, PLACES - chance.integers(1, SIDE * SIDE, (len(bits), 1))),
    "transposed": lambda chance, bits, _: _taken(bits, PLACES.reshape(SIDE, SIDE).T.reshape(1, -1)),
    "halves exchanged": halves_exchanged,
    "a shard in another's place": partial(shards_taken, both=True),
    "a shard repeated": partial(shards_taken, both=False),
}


def _two(chance: Chance, tries: int, of: int = SIDE * SIDE) -> np.ndarray:
    """Draws two different numbers below `of` for each try: `[tries, 2]`."""
    first, step = chance.integers(0, of, tries), chance.integers(1, of, tries)
    return np.stack([first, (first + step) % of], axis=1)


def _taken(bits: Bits, sources: np.ndarray) -> Bits:
    """Permutes elements: each position takes the element at `sources` `[tries or 1, 256]`."""
    return np.take_along_axis(bits, np.broadcast_to(sources % (SIDE * SIDE), bits.shape[:2])[..., None], axis=1)


class Tried(NamedTuple):
    dtype: str
    change: str
    """A key of `CHANGES`."""
    changed: int
    """Arrays whose bits differ after the change."""
    missed: int
    """Those of them whose digest is the same."""


def tried(function: Callable[[list[Any]], jax.Array], dtypes: tuple[str, ...], tries: int) -> Iterator[Tried]:
    """Tries every change of every dtype, `tries` times over all structures, with a digest function."""
    for dtype in dtypes:
        with jax.enable_x64(dtype in ("int64", "uint64", "float64", "complex128")):
            each = jax.jit(jax.vmap(lambda x: function([x])[0]))
            chance = np.random.default_rng(DTYPES.index(dtype))
            for change, changed in CHANGES.items():
                before = np.concatenate([made(chance, tries // len(STRUCTURES), dtype) for made in STRUCTURES])
                after = changed(chance, before, dtype)
                is_changed = (before != after).any(axis=(1, 2))
                one, other = (np.asarray(each(arrays(bits, dtype))).reshape(len(bits), -1) for bits in (before, after))
                is_missed = is_changed & (one == other).all(axis=1)
                yield Tried(dtype, change, int(is_changed.sum()), int(is_missed.sum()))
