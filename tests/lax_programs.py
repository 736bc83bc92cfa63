"""Random programs of jax.lax's operations that the partitioner handles, by seed, on one to three mesh axes.

Operations of `STEPS` take and return `[SIZE, SIZE]`, so that any may follow any other; those of `ENDS` return what they
like, and only the last operation of a program may be one.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from .random_programs import SIZE, RandomProgram, Step, random_mesh, random_spec

Draw = random.Random
Operation = Callable[[Draw], Step]
"""An operation with parameters of its own: dims, windows, offsets."""
DIMS = range(2)


def program(seed: int) -> RandomProgram:
    draw = random.Random(f"lax {seed}")
    mesh = random_mesh(draw)
    chosen = [_step(draw) for _ in range(draw.choice((0, 0, 1, 1, 2)))]
    last = draw.choice(list(ENDS)) if draw.random() < 0.5 else None
    chosen.append((last, ENDS[last](draw)) if last else _step(draw))
    asked = random_spec(draw, mesh) if not last and draw.random() < 0.5 else None

    def function(x: jax.Array) -> jax.Array:
        for _, step in chosen:
            x = step(x)
        return x if asked is None else lax.with_sharding_constraint(x, NamedSharding(mesh, asked))

    spec = random_spec(draw, mesh)
    end = f" → {asked}" if asked is not None else ""
    names = " → ".join(name for name, _ in chosen)
    return RandomProgram(mesh, function, spec, f"lax program {seed} on {dict(mesh.shape)}, {spec}: {names}{end}")


def _step(draw: Draw) -> tuple[str, Step]:
    name = draw.choice(list(STEPS))
    step = STEPS[name](draw)
    if draw.random() > 0.1:
        return name, step
    return f"3 × ({name})", lambda x: lax.scan(lambda x, _: (step(x), None), x, length=3)[0]


def _drawn(function: Callable[..., jax.Array], *choices: Sequence[Any]) -> Operation:
    """An operation whose parameters are drawn from `choices`, in their order."""

    def made(draw: Draw) -> Step:
        values = [draw.choice(each) for each in choices]
        return lambda x: function(x, *values)

    return made


def _shifted(x: jax.Array, dim: int) -> jax.Array:
    """A shift with zeros: what a causal token shift does."""
    edges = [(int(other == dim), 0) for other in range(2)]
    return lax.slice_in_dim(jnp.pad(x, edges), 0, SIZE, axis=dim)


def _halves(x: jax.Array, dim: int) -> jax.Array:
    """Rotates the halves of a dim, as rotary embeddings do."""
    first, second = jnp.split(x, 2, axis=dim)
    return jnp.concatenate((-second, first), axis=dim)


def _taken(draw: Draw) -> Step:
    dim, indices = draw.randrange(2), jnp.arange(SIZE)[::-1] * draw.choice((1, 2)) % SIZE
    return lambda x: jnp.take(x, indices, axis=dim)


def _scattered(draw: Draw) -> Step:
    rows = jnp.arange(SIZE) * 5 % SIZE
    if draw.random() < 0.5:
        return lambda x: x.at[rows].add(x * 2)
    return lambda x: x.at[:, rows[:6]].set(x[:, :6])


def _convolved(x: jax.Array, width: int, form: int) -> jax.Array:
    if form == 1:
        return lax.conv_general_dilated(x[None, None], jnp.ones((1, 1, width, width)), (1, 1), "SAME")[0, 0]
    kernel, groups = (jnp.ones((width, 1, SIZE)), SIZE) if form else (jnp.ones((width, SIZE, SIZE)) / SIZE, 1)
    dims = {"dimension_numbers": ("NWC", "WIO", "NWC"), "feature_group_count": groups}
    return lax.conv_general_dilated(x[None], kernel, (1,), "SAME", **dims)[0]


def _pooled_gradient(x: jax.Array, window: tuple[int, int]) -> jax.Array:
    return jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID") ** 2).sum())(x)


def _batched(x: jax.Array) -> jax.Array:
    one = x.reshape(4, 6, SIZE)
    return jnp.einsum("bij,bkj->bik", one, one)


def _recurrence(x: jax.Array, dim: int) -> jax.Array:
    def combine(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combine, (jax.nn.sigmoid(x), x), axis=dim)[1]


STEPS: dict[str, Operation] = {
    "square": _drawn(lambda x: jnp.tanh(x @ x.T)),
    "product": _drawn(lambda x: jnp.tanh(x @ (x + 1.0))),
    "transpose": _drawn(lambda x: x.T + 1),
    "softmax": _drawn(lambda x, dim: jax.nn.softmax(x, dim), DIMS),
    "cumsum": _drawn(lax.cumsum, DIMS),
    "cummax": _drawn(lax.cummax, DIMS),
    "cumlogsumexp": _drawn(lax.cumlogsumexp, DIMS),
    "recurrence": _drawn(_recurrence, DIMS),
    "sort": _drawn(lambda x, dim: lax.sort(x, dimension=dim), DIMS),
    "sorted pair": _drawn(lambda x, dim: jnp.add(*lax.sort((x, x.T), dimension=dim)), DIMS),
    "argsort": _drawn(lambda x, dim: jnp.argsort(x, dim).astype(x.dtype), DIMS),
    "reverse": _drawn(lambda x, dim: lax.rev(x, (dim,)), DIMS),
    "roll": _drawn(lambda x, shift, dim: jnp.roll(x, shift, dim), (1, -1, 3, 7, 12), DIMS),
    "shift": _drawn(_shifted, DIMS),
    "halves": _drawn(_halves, DIMS),
    "update": _drawn(
        lambda x, part, begin: lax.dynamic_update_slice(x, x[: part[0], : part[1]] * 2, (begin, 0)),
        *(((1, SIZE), (SIZE, 1), (4, 4)), (0, 5)),
    ),
    "take": _taken,
    "look-up": _drawn(lambda x: x[jnp.abs(x[:, 0]).astype(int) % SIZE]),
    "take along": _drawn(lambda x, dim: jnp.take_along_axis(x, jnp.argsort(x, 1 - dim), dim), DIMS),
    "scatter": _scattered,
    "convolution": _drawn(_convolved, (2, 3), range(3)),  # over channels, over space, and of each channel
    "max-pool gradient": _drawn(_pooled_gradient, ((2, 1), (2, 2))),
    "select": _drawn(lambda x: jnp.where(x > x.T, x, jnp.tril(x))),
    "clamp": _drawn(lambda x: lax.clamp(-1.0, x, 1.0)),
    "normal": _drawn(lambda x: x + jax.random.normal(jax.random.key(0), x.shape)),
    "branch": _drawn(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, lambda x: x.T, x)),
    "merge and split": _drawn(lambda x: (x.reshape(-1) * 2).reshape(4, 6, SIZE).reshape(SIZE, SIZE)),
    "cholesky": _drawn(lambda x: lax.linalg.cholesky(x @ x.T + 30 * jnp.eye(SIZE))),
    "solve": _drawn(lambda x: lax.linalg.triangular_solve(x + 30 * jnp.eye(SIZE), x, left_side=True, lower=True)),
}
ENDS: dict[str, Operation] = {
    "sum": _drawn(lambda x, dim: x.sum(dim), DIMS),
    "max": _drawn(lambda x, dim: x.max(dim), DIMS),
    "product of dim": _drawn(lambda x, dim: x.prod(dim), DIMS),
    "any": _drawn(lambda x, dim: (x > 0).any(dim), DIMS),
    "argmax": _drawn(lambda x, dim: lax.argmax(x, dim, jnp.int32), DIMS),
    "argmin": _drawn(lambda x, dim: lax.argmin(x, dim, jnp.int32), DIMS),
    "top_k": _drawn(lambda x, count: lax.top_k(x, count)[0], (1, 4)),
    "log-sum-exp": _drawn(lambda x, dim: jax.nn.logsumexp(x, dim), DIMS),
    "median": _drawn(lambda x, dim: jnp.median(x, dim), DIMS),
    "pad": _drawn(
        lambda x, above, below, left, between: lax.pad(x, 0.0, [(above, below, 0), (left, 0, between)]),
        *((0, 1, 4), (0, 4), (0, 2), (0, 1)),
    ),
    "slice": _drawn(
        lambda x, dim, begin, end, stride: lax.slice_in_dim(x, begin, end, stride, dim),
        *(DIMS, (0, 1, 8), (16, 20, 24), (1, 2)),
    ),
    "dynamic slice": _drawn(
        lambda x, dim, size: lax.dynamic_slice_in_dim(x, x[0, 0].astype(int), size, dim), DIMS, (1, 6)
    ),
    "concatenate": _drawn(lambda x, dim: lax.concatenate((x, x + 1), dim), DIMS),
    "stack": _drawn(lambda x, dim: jnp.stack((x, x.T), dim), DIMS),
    "broadcast": _drawn(lambda x: x[:, None] + x[None]),
    "reshape": _drawn(lambda x: x.reshape(-1, 6)),
    "flatten": _drawn(lambda x: x.reshape(-1)),
    "batched product": _drawn(_batched),
    "ragged product": _drawn(lambda x: lax.ragged_dot(x, jnp.ones((3, SIZE, 8)), jnp.array([4, 12, 8]))),
    "pool": _drawn(
        lambda x, window, stride: lax.reduce_window(x, -jnp.inf, lax.max, window, (stride, 1), "SAME"),
        *(((3, 1), (2, 2)), (1, 2)),
    ),
    "mean of windows": _drawn(lambda x: x.reshape(12, 2, SIZE).mean(1)),
    "fft": _drawn(lambda x: jnp.abs(jnp.fft.fft(x))),
    "one-hot": _drawn(lambda x: jax.nn.one_hot(x[:, 0].astype(int), 16)),
    "diagonal": _drawn(jnp.diagonal),
    "segments": _drawn(lambda x: jax.ops.segment_sum(x, jnp.arange(SIZE) // 4, 6)),
    "histogram": _drawn(lambda x: jnp.bincount(x[0].astype(int) % 8, length=8)),
    "search": _drawn(lambda x: jnp.searchsorted(x[0], x[:, 0])),
    "difference": _drawn(lambda x, dim: jnp.diff(x, axis=dim), DIMS),
    "bits": _drawn(lambda x: lax.bitcast_convert_type(x, jnp.int8)),
    "qr": _drawn(lambda x: lax.linalg.qr(x)[1]),
}
