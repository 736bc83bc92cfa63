"""Programs of other libraries, each with layouts, ends of chains and bytes that follow from its code by hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.base.user_error import UserError
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import Explanation, ValueOrigin, by_flow
from shardtui.engine.explain.names import kept_names
from shardtui.engine.explain.programs import lowered

from .programs import equinox_mlp, haiku_mlp, linen_transformer, manual_ring, nnx_decoder
from .small_programs import compiled

pytestmark = pytest.mark.usefixtures("mesh")
DATA, MODEL = 4, 2
FLOAT = 4
"""Bytes of a float32."""
Flow = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Expected:
    """What is to be found in a program."""

    layouts: dict[str, list[list[str]]]
    """Value to the mesh axes of each dim."""
    ends: dict[tuple[str, str], tuple[str, str, str]]
    """Value and mesh axis to the kind of its chain's end, to its words and to its line; empty for an argument."""
    flows: dict[Flow, int]
    """Kind and axes to bytes on one device."""


def equinox() -> Expected:
    it = equinox_mlp
    up, down, out = it.WIDTH * it.HIDDEN // MODEL, it.HIDDEN * it.OUT // MODEL, it.BATCH // DATA * it.OUT
    weight = "arrays.layers[0].weight"
    return Expected(
        {weight: [["model"], []], "hidden": [["data"], ["model"]], "result[1].layers[1].weight": [[], ["model"]]},
        {
            ("hidden", "data"): ("input", "argument x", ""),
            ("hidden", "model"): ("input", f"argument {weight}", ""),
            ("result[1].layers[1].weight", "model"): ("input", f"argument {weight}", ""),
        },
        {
            ("all-reduce", ("model",)): out * FLOAT,
            ("all-reduce", ("data",)): (up + it.HIDDEN // MODEL + down + it.OUT + 1) * FLOAT,
        },
    )


def linen() -> Expected:
    it = linen_transformer
    attention, mlp = (3 + 1) * it.D * it.N * it.H // MODEL, 2 * it.D * it.F // MODEL
    whole_layer = it.B // DATA * it.T * it.D  # the output of attention and of mlp, and the gradient of their inputs
    heads = ("constraint", "constraint to (–, data, –, model, –)", line(it, "with_logical_constraint(qkv"))
    return Expected(
        {
            "params['params']['qkv']": [[], [], ["model"], []],
            "params['params']['norm_1']['scale']": [[]],
            "scores": [["data"], ["model"], [], []],
            "hidden": [["data"], [], ["model"]],
        },
        {
            ("scores", "data"): heads,
            ("scores", "model"): heads,
            ("hidden", "model"): (
                "constraint",
                "constraint of hidden to (data, –, model)",
                line(it, "with_logical_constraint(hidden"),
            ),
        },
        {
            ("all-reduce", ("model",)): 4 * whole_layer * FLOAT,
            ("all-reduce", ("data",)): (attention + mlp + 2 * it.D + 1) * FLOAT,
        },
    )


def haiku() -> Expected:
    it = haiku_mlp
    return Expected(
        {"params['up']['w']": [["data"], []], "hidden": [["data"], []]},
        {
            ("hidden", "data"): (
                "constraint",
                "constraint to (data, –)",
                line(it, "with_sharding_constraint(checkpoint"),
            )
        },
        {
            ("all-gather", ("data",)): (it.WIDTH * it.HIDDEN + it.HIDDEN * it.OUT) * FLOAT,
            ("all-reduce", ("data",)): FLOAT,
        },
    )


def decoder() -> Expected:
    it = nnx_decoder
    rows = it.B // DATA * it.T
    attention, mlp = it.D * it.H * (2 * it.N + 2 * it.K) // MODEL, 3 * it.D * it.F // MODEL
    head, table = it.D * it.V // MODEL, it.V * it.D
    of_layer = 2 + 3 + 2  # o and down; gradients of the inputs of q, k and v; of gate and up
    asked = line(it, "return jax.lax.with_sharding_constraint(x")
    return Expected(
        {
            "state['layers'][1]['attention']['q']['w'].value": [[], ["model"], []],
            "mixed": [["data"], [], ["model"], []],
            "hidden": [["data"], [], ["model"]],
            "logits": [["data"], [], ["model"]],
            "result[1]['head']['w'].value": [[], ["model"]],
            "result[1]['embed']['w'].value": [[], []],
        },
        {
            ("mixed", "model"): ("constraint", "constraint to (data, –, model, –)", asked),
            ("hidden", "model"): ("constraint", "constraint of hidden to (data, –, model)", asked),
            ("logits", "data"): ("constraint", "constraint of logits to (data, –, model)", asked),
        },
        {
            ("all-gather", ("model",)): rows * it.D * FLOAT,  # what the table's columns give for the tokens
            ("all-reduce", ("model",)): ((it.LAYERS * of_layer + 1) * rows * it.D + 4 * rows) * FLOAT,  # 4: of softmax
            ("all-reduce", ("data",)): (it.LAYERS * (attention + mlp + 2 * it.D) + head + it.D + table + 1) * FLOAT,
        },
    )


def ring() -> Expected:
    it = manual_ring
    rows = it.ROWS // DATA
    return Expected(
        {"hidden": [[], ["model"]], "w": [[], ["model"]], "result": [["data"], []]},
        {
            ("hidden", "model"): ("input", "argument w", ""),
            ("result", "data"): ("shard_map", "out_specs of the shard_map", ""),
        },
        {
            ("collective-permute", ("data",)): it.RING * rows * it.COLUMNS * FLOAT,
            ("all-reduce", ("model",)): it.RING * rows * FLOAT,
            ("all-reduce", ("data",)): FLOAT + FLOAT,  # psum for the cond, and pmax, once in the condition of the while
        },
    )


PROGRAMS = {
    "equinox": (equinox_mlp, equinox),
    "linen": (linen_transformer, linen),
    "haiku": (haiku_mlp, haiku),
    "nnx": (nnx_decoder, decoder),
    "shard_map": (manual_ring, ring),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_explained_as_by_hand(name: str) -> None:
    module, expect = PROGRAMS[name]
    expected = expect()
    with kept_names():
        program = lowered(module.program(), name)
    found = explain(program.compiler_ir("stablehlo"), name)
    assert {value: of(found, value).axes for value in expected.layouts} == expected.layouts
    assert {key: end(of(found, key[0]), key[1]) for key in expected.ends} == expected.ends
    assert by_flow(found.collectives) == expected.flows
    assert all(each.because and each.source for each in found.collectives)
    assert compiled(program, found).differs == []


def of(found: Explanation, name: str) -> ValueOrigin:
    return next(value for value in found.values if value.name == name)


def end(value: ValueOrigin, axis: str) -> tuple[str, str, str]:
    *_, last = (link for link in value.origin if link.axis == axis and link.kind != "conflict")
    return last.kind, last.what, last.source


def line(module: Any, text: str) -> str:
    """The line of a program that has this text."""
    lines = Path(module.__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, each in enumerate(lines, 1) if text in each)
    return f"{module.__file__}:{number}"


def test_what_the_jit_of_equinox_and_nnx_returns_is_unwrapped_and_anything_else_one_message() -> None:
    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(jax.sharding.get_mesh(), P("data")))
    linear = nnx.Linear(16, 4, rngs=nnx.Rngs(0))
    pairs = [(eqx.filter_jit(lambda x: x.sum()), (x,)), (nnx.jit(lambda linear, x: linear(x).sum()), (linear, x))]
    for pair in pairs:
        for returned in (pair, pair[0].lower(*pair[1])):
            found = explain(lowered(returned, "test").compiler_ir("stablehlo"), "test")
            assert by_flow(found.collectives) == {("all-reduce", ("data",)): FLOAT}

    class Odd:
        def lower(self) -> int:
            return 1

    with pytest.raises(UserError, match=r"^test: it returns .*: return what jax.jit"):
        lowered((Odd(), ()), "test")


def test_an_axis_of_two_sizes_is_refused() -> None:
    devices = np.array(jax.devices()[:8])
    meshes = Mesh(devices, ("data",)), Mesh(devices.reshape(4, 2), ("data", "model"))
    arrays = [jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("data"))) for mesh in meshes]
    program = jax.jit(lambda x, y: x @ y.T).lower(*arrays).compiler_ir("stablehlo")
    with pytest.raises(UserError, match=r"^the axis data has 8 devices in one mesh and 4 in another: give one"):
        explain(program, "test")
