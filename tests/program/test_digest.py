"""A digest is the same for every sharding, and differs if any bit has changed."""

import random
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from shardtui.engine.parallel.mesh import build_mesh
from shardtui.engine.program import digest
from shardtui.engine.program.digest import digests, is_finite, joined
from shardtui.engine.program.program import digest_function

from ..changes import CHANGES, DTYPES, SIDE, arrays, encoding, tried

SPECS = tuple(PartitionSpec(*dims) for dims in ((), ("a", "b"), (("b", "a"),), (None, "b"), (("a", "b"), None), ("b",)))


OFTEN = (
    "float32",
    "bfloat16",
    "int32",
    "uint8",
    "bool",
    "int64",
    "float64",
    "complex64",
    "complex128",
    "int4",
    "key<fry>",
)
"""One of each encoding. Tests of the others are slow."""


def slow(dtype: str) -> Any:
    return pytest.param(dtype, marks=pytest.mark.slow)


@pytest.mark.parametrize("dtype", [dtype if dtype in OFTEN else slow(dtype) for dtype in DTYPES])
def test_no_change_is_missed(dtype: str) -> None:
    """`python tests/long/digest.py` tries each change 10,000 times."""
    found = list(tried(digests, (dtype,), 100))
    assert {result.change for result in found if result.changed} == CHANGES.keys()
    assert [result for result in found if result.missed] == []


def test_shape_dtype_and_the_bits_of_nans_count() -> None:
    quiet, other = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert of(quiet) != of(other)
    x = np.arange(12, dtype=np.float32)
    same_bits = (x, x.view(np.uint32), x.view(np.int32), x.reshape(3, 4), x.reshape(4, 3), x[None])
    without_bits = (np.zeros(0, np.float32), np.zeros((0, 3), np.float32), np.zeros(0, bool), np.float32(0))
    assert len(set(of(*same_bits, *without_bits))) == len(same_bits) + len(without_bits)


def mesh() -> Mesh:
    return build_mesh({"a": 2, "b": 4}, jax.devices())


jitted = jax.jit(digests, static_argnames="shardings")


def of(*leaves: Any) -> list[int]:
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    shardings = [(x.sharding,) if isinstance(x.sharding, NamedSharding) else None for x in arrays]
    return [int(joined(jitted([x], shardings=each))[0]) for x, each in zip(arrays, shardings, strict=True)]


def shardings() -> Iterator[NamedSharding]:
    """Yields shardings over meshes of several shapes and device orders, with both axis types."""
    meshes = (
        ({"a": 2, "b": 4}, AxisType.Auto),
        ({"a": 4, "b": 2}, AxisType.Explicit),
        ({"a": 8, "b": 1}, AxisType.Auto),
    )
    for number, (sizes, axis_type) in enumerate(meshes):
        devices = random.Random(number).sample(jax.devices(), 8)
        for spec in SPECS:
            yield NamedSharding(build_mesh(sizes, devices, axis_type), spec)


def test_the_digest_is_the_same_for_every_sharding() -> None:
    x = np.random.default_rng(0).standard_normal((16, 24, 3), np.float32)
    placed = [jax.device_put(x, sharding) for sharding in shardings()]
    assert len({*of(x), *of(jnp.asarray(x)), *of(*placed)}) == 1
    without_shardings = (joined(jitted([leaf])) for leaf in placed[: len(SPECS)])
    assert {*map(tuple, without_shardings)} == {tuple(of(x))}


@pytest.mark.parametrize("dtype", ["int4", "bfloat16", "complex64", *map(slow, ("bool", "float8_e4m3fn", "key<fry>"))])
def test_every_dtype_has_the_same_under_every_sharding(dtype: str) -> None:
    words, width, _ = encoding(dtype)
    bits = np.random.default_rng(0).integers(0, 2**width, (1, SIDE * SIDE, words), f"uint{max(width, 8)}")
    (x,) = arrays(bits, dtype)
    assert len({*of(x), *of(*(jax.device_put(x, NamedSharding(mesh(), spec)) for spec in SPECS))}) == 1


@pytest.mark.parametrize("place", range(8))
def test_only_the_first_replica_of_each_shard_counts(place: int) -> None:
    """That is the one that checkpoints save."""
    sharding = NamedSharding(mesh(), PartitionSpec(None, "b"))
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), sharding)
    shards = [shard.data for shard in x.addressable_shards]
    shards[place] = shards[place].at[0, 0].add(1)
    changed = jax.make_array_from_single_device_arrays(x.shape, sharding, shards)
    assert (of(changed) == of(x)) == bool(x.addressable_shards[place].replica_id)


def test_digests_send_only_words_and_need_little_memory() -> None:
    dtypes = (jnp.float32, jnp.bfloat16, jnp.bool_, jnp.complex64, jax.random.key(0).dtype)
    shardings = [NamedSharding(mesh(), spec) for spec in SPECS]
    arrays = [jax.ShapeDtypeStruct((256, 512), dtype, sharding=each) for dtype in dtypes for each in shardings]
    compiled = digest_function(arrays).compile()  # type: ignore[arg-type]
    text = compiled.as_text() or ""
    for kind in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert f" {kind}(" not in text
    sent = [line.partition(" all-reduce(")[0] for line in text.splitlines() if " all-reduce(" in line]
    assert {shape for line in sent for shape in re.findall(r"\w+\[.*?\]", line)} == {"u32[2]"}
    assert compiled.memory_analysis().temp_size_in_bytes < 256 * 512  # bytes of the smallest array


def test_indices_of_more_than_32_bits_and_non_finite_values_of_every_dtype_are_found() -> None:
    words = jax.jit(lambda: [word[-1, -1] for word in digest._index((3, 2**31), (3, 2**31), [0, 0])])()
    assert [int(word) for word in words] == [*divmod(3 * 2**31 - 1, 2**32)][::-1]
    placed = digest._index((1, 4), (2**40, 8), [2**35, 1])
    assert [word.tolist() for word in placed] == [[[4, 5, 6, 7]], [[2**38 // 2**32] * 4]]
    (word,) = digest._index((1, 1, 4), (1, 2**30, 4), [0, 2**30 - 1, 0])
    assert word.tolist() == [[[2**32 - 4, 2**32 - 3, 2**32 - 2, 2**32 - 1]]], "as many elements as a word has values"
    without_nan = [jnp.ones(3, bool), jnp.ones(3, "int4"), jax.random.key(0), jnp.ones(3, "float8_e8m0fnu")]
    assert is_finite(without_nan)
    for dtype in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float32", "complex64"):
        x = jnp.ones(3, dtype)
        assert is_finite([*without_nan, x])
        assert not is_finite([*without_nan, x.at[1].set(jnp.nan)])
