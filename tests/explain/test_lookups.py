"""Lookups by position in arrays that are split, against XLA's compilers."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.explain.partitioned import partition
from shardtui.engine.explain.reductions import Reductions
from shardtui.engine.explain.transfers import read_transfers
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.planning.ahead_of_time import find_slice
from shardtui.engine.program.program import COMPILER_OPTIONS
from shardtui.engine.spec.topology import load_topology

BATCH, LENGTH, FEATURES = 64, 128, 256
SPLIT, WHOLE = P("data"), P()
Argument = tuple[tuple[int, ...], P, Any]
SMALL = 2**17
"""Bytes; indices are gathered or summed, on GPUs with what else is gathered."""


def loss_by_label(w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    def loss(w: jax.Array) -> jax.Array:
        return -jnp.mean(jax.nn.log_softmax(x @ w)[jnp.arange(BATCH), labels])

    return jax.grad(loss)(w)


def loss_by_token(w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    def loss(w: jax.Array) -> jax.Array:
        rows, columns = jnp.arange(BATCH)[:, None], jnp.arange(LENGTH)[None]
        return -jnp.mean(jax.nn.log_softmax(x @ w)[rows, columns, labels])

    return jax.grad(loss)(w)


def write(cache: jax.Array, positions: jax.Array, keys: jax.Array) -> jax.Array:
    return cache.at[jnp.arange(BATCH), positions].set(keys)


def read(cache: jax.Array, positions: jax.Array) -> jax.Array:
    return cache[jnp.arange(BATCH), positions]


def last(tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    """By NumPy's positions, which are a constant."""
    return tokens[np.arange(BATCH), lengths - 1]


def messages(nodes: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(nodes[senders], receivers, nodes.shape[0])


def put(table: jax.Array, rows: jax.Array, updates: jax.Array) -> jax.Array:
    return table.at[rows].set(updates)


def add(table: jax.Array, rows: jax.Array, updates: jax.Array) -> jax.Array:
    return table.at[rows].add(updates)


def updates(rows: int, count: int, split: P = SPLIT) -> list[Argument]:
    """A table, the rows that are changed, and by what."""
    floats, integers = jnp.float32, jnp.int32
    return [((rows, 1024), split, floats), ((count,), SPLIT, integers), ((count, 1024), SPLIT, floats)]


WEIGHTS = ((FEATURES, 1024), WHOLE, jnp.float32)
CACHE, POSITIONS = ((BATCH, LENGTH, FEATURES), SPLIT, jnp.float32), ((BATCH,), SPLIT, jnp.int32)
AT_EACH_POSITION = [
    (loss_by_label, [WEIGHTS, ((BATCH, FEATURES), SPLIT, jnp.float32), POSITIONS], WHOLE),
    (loss_by_token, [WEIGHTS, CACHE, ((BATCH, LENGTH), SPLIT, jnp.int32)], WHOLE),
    (write, [CACHE, POSITIONS, ((BATCH, FEATURES), SPLIT, jnp.float32)], SPLIT),
    (read, [CACHE, POSITIONS], SPLIT),
    (last, [CACHE, POSITIONS], SPLIT),
]
OF_ROWS = [
    (put, updates(4096, 512), SPLIT),
    (put, updates(4096, 8192, WHOLE), WHOLE),
    (add, updates(4096, 512), SPLIT),
    (add, updates(4096, 8192), SPLIT),
    (add, updates(4096, 512, WHOLE), WHOLE),
    (messages, [((1024, 1024), SPLIT, jnp.float32), *[((65536,), SPLIT, jnp.int32)] * 2], SPLIT),
]


def traced_and_compiled(
    mesh: Mesh, function: Callable[..., Any], arguments: list[Argument], out: Any, name: str
) -> tuple[list[Any], list[Any]]:
    """The collectives, kind and multiples of `SMALL`. `name`: of a topology; empty for the CPU."""
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape, spec, dtype in arguments
    ]
    lowered = jax.jit(function, out_shardings=jax.tree.map(partial(NamedSharding, mesh), out)).lower(*shapes)
    program = partition(lowered.compiler_ir("stablehlo"))
    topology = load_topology(name) if name else None
    with program.module.context:
        reductions = topology and Reductions(program, topology)
        found = [(each.kind, each.bytes_each) for each in read_transfers(program, reductions)]
    text = lowered.compile(compiler_options=topology and COMPILER_OPTIONS.get(topology.platform)).as_text()
    made = [(each.kind, each.bytes_each) for each in inventory(parse(text or ""), dict(mesh.shape))]
    left = [
        sorted((kind, size // SMALL) for kind, size in both if size > SMALL or kind == "unknown")
        for both in (found, made)
    ]
    return left[0], left[1]


@pytest.mark.parametrize(("function", "arguments", "out"), AT_EACH_POSITION)
def test_devices_look_up_their_own_parts(function: Callable[..., Any], arguments: list[Argument], out: P) -> None:
    traced, compiled = traced_and_compiled(Mesh(np.array(jax.devices()), ("data",)), function, arguments, out, "")
    assert traced == compiled
    assert len(traced) == (out == WHOLE)  # the gradient of the weights


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extras tpu and gpu-compiler; `.ci/run` has them")
@pytest.mark.parametrize("name", ["v5e:2x4", "tpu7x:2x2x1", "h100:1x8"])
@pytest.mark.parametrize(("function", "arguments", "out"), [*AT_EACH_POSITION, *OF_ROWS])
def test_compilers_look_up_as_they_are_said_to(
    function: Callable[..., Any], arguments: list[Argument], out: P, name: str
) -> None:
    mesh = Mesh(np.array(find_slice(load_topology(name))), ("data",))
    traced, compiled = traced_and_compiled(mesh, function, arguments, out, name)
    assert traced == compiled


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extras tpu and gpu-compiler; `.ci/run` has them")
@pytest.mark.parametrize("name", ["v5e:2x4", "h100:1x8"])
def test_compilers_gather_what_each_device_has_chosen_of_a_split_vocabulary(name: str) -> None:
    mesh = Mesh(np.array(find_slice(load_topology(name))), ("data",))
    logits = (2048, 16384), P(None, "data"), jnp.float32
    traced, compiled = traced_and_compiled(mesh, lambda x: jax.lax.top_k(x, 64)[0], [logits], WHOLE, name)
    assert traced == compiled == [("all-gather", 2048 * 8 * 64 * 4 // SMALL)]
