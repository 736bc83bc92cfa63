"""Random programs of jax.lax's operations that the partitioner handles, by seed, on one to three mesh axes.

Operations of `STEPS` take and return `[SIZE, SIZE]`, so that any may follow any other; those of `ENDS` return what they
like, and only the last operation of a program may be one.
"""

import random
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from .random_programs import SIZE, RandomProgram, Step, random_mesh, random_spec

Draw = random.Random
Operation = Callable[[Draw], Step]
"""An operation with parameters of its own: dims, windows, offsets."""


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


def _on_dim(function: Callable[..., jax.Array]) -> Operation:
    def made(draw: Draw) -> Step:
        dim = draw.randrange(2)
        return lambda x: function(x, dim)

    return made


def _of(function: Step) -> Operation:
    return lambda draw: function


def _rolled(draw: Draw) -> Step:
    shift, dim = draw.choice((1, -1, 3, 7, 12)), draw.randrange(2)
    return lambda x: jnp.roll(x, shift, dim)


def _shifted(x: jax.Array, dim: int) -> jax.Array:
    """A shift with zeros: what a causal token shift does."""
    edges = [(int(other == dim), 0) for other in range(2)]
    return lax.slice_in_dim(jnp.pad(x, edges), 0, SIZE, axis=dim)


def _padded(draw: Draw) -> Step:
    edges = [(draw.choice((0, 1, 4)), draw.choice((0, 4)), 0), (draw.choice((0, 2)), 0, draw.choice((0, 1)))]
    return lambda x: lax.pad(x, 0.0, edges)


def _sliced(draw: Draw) -> Step:
    dim, begin, end, stride = draw.randrange(2), draw.choice((0, 1, 8)), draw.choice((16, 20, 24)), draw.choice((1, 2))
    return lambda x: lax.slice_in_dim(x, begin, end, stride, dim)


def _halves(x: jax.Array, dim: int) -> jax.Array:
    """Rotates the halves of a dim, as rotary embeddings do."""
    first, second = jnp.split(x, 2, axis=dim)
    return jnp.concatenate((-second, first), axis=dim)


def _updated(draw: Draw) -> Step:
    rows, columns = draw.choice(((1, SIZE), (SIZE, 1), (4, 4)))
    begin = draw.choice((0, 5))
    return lambda x: lax.dynamic_update_slice(x, x[:rows, :columns] * 2, (begin, 0))


def _cut(draw: Draw) -> Step:
    dim, size = draw.randrange(2), draw.choice((1, 6))
    return lambda x: lax.dynamic_slice_in_dim(x, x[0, 0].astype(int), size, dim)


def _taken(draw: Draw) -> Step:
    dim, indices = draw.randrange(2), jnp.arange(SIZE)[::-1] * draw.choice((1, 2)) % SIZE
    return lambda x: jnp.take(x, indices, axis=dim)


def _scattered(draw: Draw) -> Step:
    rows = jnp.arange(SIZE) * 5 % SIZE
    if draw.random() < 0.5:
        return lambda x: x.at[rows].add(x * 2)
    return lambda x: x.at[:, rows[:6]].set(x[:, :6])


def _convolved(draw: Draw) -> Step:
    width, form = draw.choice((2, 3)), draw.randrange(3)

    def step(x: jax.Array) -> jax.Array:
        if form == 1:
            return lax.conv_general_dilated(x[None, None], jnp.ones((1, 1, width, width)), (1, 1), "SAME")[0, 0]
        kernel, groups = (jnp.ones((width, 1, SIZE)), SIZE) if form else (jnp.ones((width, SIZE, SIZE)) / SIZE, 1)
        dims = ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(
            x[None], kernel, (1,), "SAME", dimension_numbers=dims, feature_group_count=groups
        )[0]

    return step


def _pooled(draw: Draw) -> Step:
    window, stride = draw.choice(((3, 1), (2, 2))), draw.choice((1, 2))
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, (stride, 1), "SAME")


def _pooled_gradient(draw: Draw) -> Step:
    window = draw.choice(((2, 1), (2, 2)))
    return jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID") ** 2).sum())


def _largest(draw: Draw) -> Step:
    count = draw.choice((1, 4))
    return lambda x: lax.top_k(x, count)[0]


def _batched(x: jax.Array) -> jax.Array:
    one = x.reshape(4, 6, SIZE)
    return jnp.einsum("bij,bkj->bik", one, one)


def _recurrence(x: jax.Array, dim: int) -> jax.Array:
    def combine(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combine, (jax.nn.sigmoid(x), x), axis=dim)[1]


STEPS: dict[str, Operation] = {
    "square": _of(lambda x: jnp.tanh(x @ x.T)),
    "product": _of(lambda x: jnp.tanh(x @ (x + 1.0))),
    "transpose": _of(lambda x: x.T + 1),
    "softmax": _on_dim(lambda x, dim: jax.nn.softmax(x, dim)),
    "cumsum": _on_dim(lax.cumsum),
    "cummax": _on_dim(lax.cummax),
    "cumlogsumexp": _on_dim(lax.cumlogsumexp),
    "recurrence": _on_dim(_recurrence),
    "sort": _on_dim(lambda x, dim: lax.sort(x, dimension=dim)),
    "sorted pair": _on_dim(lambda x, dim: jnp.add(*lax.sort((x, x.T), dimension=dim))),
    "argsort": _on_dim(lambda x, dim: jnp.argsort(x, dim).astype(x.dtype)),
    "reverse": _on_dim(lambda x, dim: lax.rev(x, (dim,))),
    "roll": _rolled,
    "shift": _on_dim(_shifted),
    "halves": _on_dim(_halves),
    "update": _updated,
    "take": _taken,
    "look-up": _of(lambda x: x[jnp.abs(x[:, 0]).astype(int) % SIZE]),
    "take along": _on_dim(lambda x, dim: jnp.take_along_axis(x, jnp.argsort(x, 1 - dim), dim)),
    "scatter": _scattered,
    "convolution": _convolved,
    "max-pool gradient": _pooled_gradient,
    "select": _of(lambda x: jnp.where(x > x.T, x, jnp.tril(x))),
    "clamp": _of(lambda x: lax.clamp(-1.0, x, 1.0)),
    "normal": _of(lambda x: x + jax.random.normal(jax.random.key(0), x.shape)),
    "branch": _of(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, lambda x: x.T, x)),
    "merge and split": _of(lambda x: (x.reshape(-1) * 2).reshape(4, 6, SIZE).reshape(SIZE, SIZE)),
    "cholesky": _of(lambda x: lax.linalg.cholesky(x @ x.T + 30 * jnp.eye(SIZE))),
    "solve": _of(lambda x: lax.linalg.triangular_solve(x + 30 * jnp.eye(SIZE), x, left_side=True, lower=True)),
}
ENDS: dict[str, Operation] = {
    "sum": _on_dim(lambda x, dim: x.sum(dim)),
    "max": _on_dim(lambda x, dim: x.max(dim)),
    "product of dim": _on_dim(lambda x, dim: x.prod(dim)),
    "any": _on_dim(lambda x, dim: (x > 0).any(dim)),
    "argmax": _on_dim(lambda x, dim: lax.argmax(x, dim, jnp.int32)),
    "argmin": _on_dim(lambda x, dim: lax.argmin(x, dim, jnp.int32)),
    "top_k": _largest,
    "log-sum-exp": _on_dim(lambda x, dim: jax.nn.logsumexp(x, dim)),
    "median": _on_dim(lambda x, dim: jnp.median(x, dim)),
    "pad": _padded,
    "slice": _sliced,
    "dynamic slice": _cut,
    "concatenate": _on_dim(lambda x, dim: lax.concatenate((x, x + 1), dim)),
    "stack": _on_dim(lambda x, dim: jnp.stack((x, x.T), dim)),
    "broadcast": _of(lambda x: x[:, None] + x[None]),
    "reshape": _of(lambda x: x.reshape(-1, 6)),
    "flatten": _of(lambda x: x.reshape(-1)),
    "batched product": _of(_batched),
    "ragged product": _of(lambda x: lax.ragged_dot(x, jnp.ones((3, SIZE, 8)), jnp.array([4, 12, 8]))),
    "pool": _pooled,
    "mean of windows": _of(lambda x: x.reshape(12, 2, SIZE).mean(1)),
    "fft": _of(lambda x: jnp.abs(jnp.fft.fft(x))),
    "one-hot": _of(lambda x: jax.nn.one_hot(x[:, 0].astype(int), 16)),
    "diagonal": _of(jnp.diagonal),
    "segments": _of(lambda x: jax.ops.segment_sum(x, jnp.arange(SIZE) // 4, 6)),
    "histogram": _of(lambda x: jnp.bincount(x[0].astype(int) % 8, length=8)),
    "search": _of(lambda x: jnp.searchsorted(x[0], x[:, 0])),
    "difference": _on_dim(lambda x, dim: jnp.diff(x, axis=dim)),
    "bits": _of(lambda x: lax.bitcast_convert_type(x, jnp.int8)),
    "qr": _of(lambda x: lax.linalg.qr(x)[1]),
}
