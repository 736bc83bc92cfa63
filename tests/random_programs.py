"""Random programs of matmuls, scans, sharding constraints and explicit collectives, by seed, on one to three mesh axes.

Every array is `[SIZE, SIZE]`, so that any step may follow any other.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SIZE = 24
AXES = ("data", "model", "seq")
Step = Callable[[jax.Array], jax.Array]
NEIGHBOURS: dict[str, Step] = {
    "cumsum": lambda x: jnp.cumsum(x, axis=0),
    "argmax": lambda x: x + jnp.argmax(x, axis=1),
    "top_k": lambda x: jax.lax.top_k(x, SIZE)[0],
    "roll": lambda x: jnp.roll(x, 3, axis=0),
    "flip": lambda x: x[::-1],
    "sort": lambda x: jnp.sort(x, axis=1),
    "pad": lambda x: jnp.pad(x, 2)[2:-2, 2:-2],
    "pool": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 1), (1, 1), "SAME"),
    "transpose": lambda x: x.T,
    "join": lambda x: jnp.concatenate([x[:5], x[5:] * 2]),
    "rows": lambda x: x[jnp.arange(SIZE) // 2],
    "update": lambda x: x.at[:4].set(0.0),
    "merge": lambda x: jnp.tanh(x.reshape(-1)).reshape(SIZE, SIZE),
}
"""Steps whose parts of a split array need elements of other devices, or change its dims."""


@dataclass(frozen=True)
class RandomProgram:
    mesh: Mesh
    function: Step
    spec: P
    """How its argument is sharded."""
    summary: str

    @property
    def argument(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)

    def lowered(self) -> jax.stages.Lowered:
        sharded = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32, sharding=NamedSharding(self.mesh, self.spec))
        return jax.jit(self.function).lower(sharded)

    def compiled(self) -> str:
        return self.lowered().compile().as_text() or ""


def program(seed: int, alone: bool = False) -> RandomProgram:
    """`alone`: the same program on one device."""
    chance = random.Random(seed)
    mesh = random_mesh(chance, alone)
    steps = [_step(chance, mesh) for _ in range(chance.choice((2, 3, 4, 6)))]
    names = " → ".join(name for name, _ in steps)

    def function(x: jax.Array) -> jax.Array:
        for _, step in steps:
            x = step(x)
        return x

    spec = random_spec(chance, mesh)
    return RandomProgram(mesh, function, spec, f"program {seed} on {dict(mesh.shape)}, {spec}: {names}")


@dataclass(frozen=True)
class ProgramOfResults:
    """It returns its argument and what each of its steps gives, some with a sharding asked for."""

    jitted: Any
    argument: jax.ShapeDtypeStruct
    summary: str


def program_of_results(seed: int) -> ProgramOfResults:
    chance = random.Random(seed)
    sizes = chance.choice(((8,), (4, 2), (2, 4), (2, 2, 2)))
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), AXES[: len(sizes)])
    others = list(NEIGHBOURS.items())
    steps = [_step(chance, mesh) if chance.random() < 0.4 else chance.choice(others) for _ in range(4)]

    def function(x: jax.Array) -> list[jax.Array]:
        found = [x]
        for _, step in steps:
            found.append(step(found[-1]))
        return [*found, found[-1].sum(axis=0), found[-1]]

    out = [NamedSharding(mesh, random_spec(chance, mesh)) if chance.random() < 0.5 else None for _ in steps]
    asked = [None if chance.random() < 0.5 else NamedSharding(mesh, P()), *out, None, NamedSharding(mesh, P())]
    donated = (0,) if chance.random() < 0.5 else ()
    given = NamedSharding(mesh, random_spec(chance, mesh)) if chance.random() < 0.8 else None
    summary = f"program {seed} on {dict(mesh.shape)}: {given} {' → '.join(name for name, _ in steps)} {asked} {donated}"
    argument = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32, sharding=given)
    return ProgramOfResults(jax.jit(function, out_shardings=asked, donate_argnums=donated), argument, summary)


def random_mesh(chance: random.Random, alone: bool = False) -> Mesh:
    sizes = chance.choice(((8,), (4, 2), (2, 4), (2, 2, 2), (8, 1), (3, 2), (6,), (1, 4, 2)))
    used = (1,) * len(sizes) if alone else sizes
    return Mesh(np.array(jax.devices()[: math.prod(used)]).reshape(used), AXES[: len(sizes)])


def _step(chance: random.Random, mesh: Mesh, depth: int = 0) -> tuple[str, Step]:
    if depth < 2 and chance.random() < 0.25:
        name, inner = _step(chance, mesh, depth + 1)
        times = chance.choice((2, 3, 5))
        return f"{times} × ({name})", lambda x: jax.lax.scan(lambda x, _: (inner(x), None), x, length=times)[0]
    axis = chance.choice(mesh.axis_names)
    spec = random_spec(chance, mesh)
    parts = mesh.shape[axis]
    around = [(n, (n + 1) % parts) for n in range(parts)]
    kinds: dict[str, Step] = {
        "square": lambda x: jnp.tanh(x @ x.T),
        "product": lambda x: jnp.tanh(x @ (x + 1.0)),
        f"as {spec}": lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)),
        "mean": lambda x: x - x.mean(axis=0),
        f"psum {axis}": _written(mesh, axis, lambda x: jax.lax.pmean(x, axis)),
        f"gather {axis}": _written(mesh, axis, lambda x: jax.lax.all_gather(x, axis, tiled=True)[: SIZE // parts] + x),
        f"rotate {axis}": _written(mesh, axis, lambda x: jax.lax.ppermute(x, axis, around) + x),
        f"exchange {axis}": _written(mesh, axis, partial(_exchanged, axis)),
    }
    name = chance.choice(list(kinds))
    return name, kinds[name]


def random_spec(chance: random.Random, mesh: Mesh) -> P:
    left = [axis for axis in mesh.axis_names if chance.random() < 0.7]
    chance.shuffle(left)
    first = tuple(left[: chance.randrange(len(left) + 1)])
    second = tuple(left[len(first) : len(first) + 1])
    return P(first or None, second or None)


def _written(mesh: Mesh, axis: str, body: Step) -> Step:
    spec = P(axis, None)
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def _exchanged(axis: str, x: jax.Array) -> jax.Array:
    """Exchanges columns for rows by all-to-all, and back."""
    there = jax.lax.all_to_all(x, axis, 1, 0, tiled=True)
    return jax.lax.all_to_all(jnp.tanh(there), axis, 0, 1, tiled=True)
