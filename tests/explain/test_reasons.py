"""Reasons of layouts and collectives that jax inserts by itself: transposes, types under explicit axes, open sums."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import Explanation, KeptStepRequest, ValueOrigin
from shardtui.engine.explain.names import kept_names
from shardtui.engine.explain.programs import explain_kept, kept_step, lowered_for, traced_of
from shardtui.engine.wire.descriptions import MeshInfo
from shardtui.tui.state.origin_pages import Known, ValuePage, lines
from shardtui.tui.state.program_findings import program_findings

from .small_programs import COLUMNS, ROWS, arguments, compiled, explained


@pytest.fixture
def explicit() -> Iterator[None]:
    with jax.set_mesh(Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"), (AxisType.Explicit,) * 2)):
        yield


def result(found: Explanation, name: str) -> ValueOrigin:
    return next(value for value in found.values if value.name == name and value.role == "result")


def ends(value: ValueOrigin) -> dict[str, tuple[str, str]]:
    return {link.axis: (link.kind, link.what) for link in value.origin if link.kind != "conflict"}


def at(function: Callable[..., Any], offset: int) -> str:
    return f"test_reasons.py:{function.__code__.co_firstlineno + offset}"


@pytest.mark.usefixtures("explicit")
def test_under_explicit_axes_a_chain_goes_through_the_types_to_what_asked() -> None:
    def helper(x: jax.Array) -> jax.Array:
        return jax.sharding.reshard(x, P("data"))

    def program(x: jax.Array, w: jax.Array) -> dict[str, jax.Array]:
        hidden = jnp.sin(x @ w) + 1
        carried, _ = jax.lax.scan(lambda x, _: (x * 2, None), helper(hidden), length=3)
        return {"hidden": hidden, "carried": carried, "zeros": jnp.zeros((8, 8), out_sharding=P("model"))}

    found = explained(program, ROWS, COLUMNS)
    assert ends(result(found, "result['hidden']")) == {
        "data": ("input", "argument x"),
        "model": ("input", "argument w"),
    }
    *_, asked = result(found, "result['carried']").origin
    assert (asked.kind, asked.what) == ("constraint", "constraint to (data, –)")
    assert (asked.source[-len(at(helper, 1)) :], asked.caller[-len(at(program, 2)) :]) == (
        at(helper, 1),
        at(program, 2),
    )
    zeros = ends(result(found, "result['zeros']"))
    assert zeros == {"model": ("out_sharding", "out_sharding of the broadcast_in_dim: (model, –)")}
    assert not [value for value in found.values if value.is_laid_out and not value.origin]


@pytest.mark.usefixtures("explicit")
def test_a_sum_that_is_left_open_is_shown_with_what_left_it_and_what_takes_it() -> None:
    def program(x: jax.Array, y: jax.Array) -> jax.Array:
        part = jnp.einsum("bi,bo->io", x, y, out_sharding=P(unreduced={"data"}))
        total = part + part
        return jax.sharding.reshard(total, P())

    found = explained(program, ROWS, ((8, 32), P("data")))
    open_, *_ = [value for value in found.values if value.unreduced]
    left = "out_sharding of the product: (–, –) unreduced over data"
    assert open_.layout == "(–, –) unreduced over data"
    assert [(link.dim, link.axis, link.kind, link.what) for link in open_.origin] == [
        (None, "data", "out_sharding", left)
    ]
    (summed,) = found.collectives
    assert (summed.kind, summed.axes, summed.bytes) == ("all-reduce", ["data"], 16 * 32 * 4)
    assert summed.because == [
        f"[16, 32] is left unreduced over data, and the reshard at {at(program, 3)} asks for the whole sum",
        f"[16, 32] is unreduced over data by the {left} at {at(program, 1)}",
    ]


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("check", [True, False])
def test_a_sum_of_a_gradient_that_jax_inserts_is_not_said_to_be_called(check: bool) -> None:
    specs = {"in_specs": (P("data"), P()), "out_specs": P("data")}

    @partial(jax.shard_map, check_vma=check, **specs)
    def scaled(x: jax.Array, w: jax.Array) -> jax.Array:
        total = jax.lax.pmean(x, "model") if not check else x
        return total * w

    def program(w: jax.Array, x: jax.Array) -> jax.Array:
        return (scaled(x, w) ** 2).sum()

    found = explained(jax.grad(program), ((16,), P()), ROWS)
    inserted = [each for each in found.collectives if "data" in each.axes]
    reasons = [reason for each in inserted for reason in each.because]
    assert reasons
    assert all(" inserts it: " in reason and reason.startswith("the transpose of the ") for reason in reasons), reasons
    assert all(f"devices of {' × '.join(each.axes)}, so its gradient" in each.because[0] for each in inserted)


@pytest.mark.usefixtures("mesh")
def test_a_collective_of_the_backward_pass_is_the_transpose_of_what_the_code_calls() -> None:
    @partial(jax.shard_map, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def shifted(x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(x, "data", [(n, (n + 1) % 4) for n in range(4)])

    found = explained(jax.grad(lambda x: (shifted(x) ** 2).sum()), ROWS)
    line = f"test_reasons.py:{shifted.__wrapped__.__code__.co_firstlineno + 2}"
    assert {each.because[0] for each in found.collectives if each.kind == "collective-permute"} == {
        f"the code calls it at {line}",
        f"it is the transpose of what the code calls at {line}",
    }


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize(
    ("kept", "waste"),
    [(P("data"), [("1/4", "data", 57)]), (P(("data", "model")), [("1/8", "data × model", 50)]), (P(), [])],
)
def test_a_sum_that_is_kept_in_part_says_what_a_reduce_scatter_would_send(kept: P, waste: list[Any]) -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(x @ jax.lax.with_sharding_constraint(w, P())))

    found = explained(lambda w, x: w - jax.grad(loss)(w, x), ((16, 32), kept), ((8, 16), P(("data", "model"))))
    reduced = next(each for each in found.collectives if each.kind == "all-reduce")
    said = [reason for reason in reduced.because if "of the sum" in reason]
    assert said == [
        f"each device then keeps {part} of the sum: jax.lax.psum_scatter over {axes} in a shard_map would send {sent} %"
        " of the bytes"
        for part, axes, sent in waste
    ]


@pytest.mark.usefixtures("mesh")
def test_arrays_that_a_function_captures_are_listed_whole() -> None:
    weights = jax.device_put(np.arange(16.0 * 2048, dtype=np.float32).reshape(16, 2048))

    def program(x: jax.Array) -> jax.Array:
        return (x @ weights) @ weights.T + np.ones((8, 16), np.float32)

    found = explained(program, ROWS)
    (captured,) = [value for value in found.values if value.role == "captured"]
    assert (captured.shape, captured.axes, captured.source.rpartition("/")[2]) == ([16, 2048], [[], []], at(program, 1))
    (link,) = captured.origin
    assert (link.kind, link.what.rpartition(": ")[2]) == ("captured", "a constant of 131 kB, whole on every device")
    (finding,) = [each for each in program_findings(found) if each.code == "S112"]
    assert (finding.arrays, finding.bytes_per_device) == (["captured[0]"], 16 * 2048 * 4)


@pytest.mark.usefixtures("mesh")
def test_a_complex_array_that_the_function_uses_is_captured_once_as_others_are() -> None:
    table = np.arange(128).reshape(8, 16) * 1j

    def program(x: jax.Array) -> jax.Array:
        return (x * table).imag + (table - x * 1j * np.full((8, 16), 2j)).real

    found = explained(program, ((8, 16), P("data")))
    captured = [(each.name, each.shape, each.dtype) for each in found.values if each.role == "captured"]
    assert captured == [("captured[0]", [8, 16], "complex<f32>")]


@pytest.mark.usefixtures("mesh")
def test_values_of_one_device_are_said_to_be_there_and_found_by_the_shape_of_a_warning() -> None:
    shapes = [jax.ShapeDtypeStruct((64, 32), "float32"), jax.ShapeDtypeStruct((8, 128), "float32")]

    def program(scale: jax.Array) -> list[jax.Array]:
        read = jax.pure_callback(lambda: [np.ones(each.shape, np.float32) for each in shapes], shapes)
        return [each * scale for each in read]

    rows = NamedSharding(jax.sharding.get_mesh(), P("data"))  # type: ignore[arg-type]
    lowered = jax.jit(program, out_shardings=[rows, rows]).lower(jax.ShapeDtypeStruct((), "float32"))
    found = explain(lowered.compiler_ir("stablehlo"), "test")
    alone = [value for value in found.values if value.device == 0]
    assert [(value.shape, value.layout) for value in alone] == [
        ([64, 32], "only on device 0"),
        ([8, 128], "only on device 0"),
    ]
    warned = compiled(lowered, found).rematerializations
    assert [(each.shape, each.device, each.after) for each in warned] == [
        (each.shape, 0, [["data"], []]) for each in alone
    ]
    assert all(each.because for each in warned)


def explain_step(folder: Path, lowered: jax.stages.Lowered) -> Explanation:
    """The explanation of a step that `watch` keeps."""
    (kept := folder / "step").write_bytes(encode_json(kept_step(lowered, [])))
    return explain_kept(KeptStepRequest(path=str(kept)))


@pytest.mark.usefixtures("mesh")
def test_a_kept_step_has_all_but_the_values_of_captured_arrays(tmp_path: Path) -> None:
    table, ones = np.arange(128.0, dtype=np.float32).reshape(8, 16), (1,) * 7
    before = [(0, 0), (1, 0), *[(0, 0)] * 7]
    """Padding of nine dims: a constant of 18 numbers, on which the traffic depends."""

    def program(x: jax.Array) -> jax.Array:
        window = jax.lax.reduce_window(x.reshape(8, 16, *ones), 0.0, jax.lax.add, (1, 2, *ones), (1,) * 9, before)
        return window.reshape(8, 16) * table + jnp.sin(x * table) * (table + 1) * (table * 1j).imag

    lowered = jax.jit(program).lower(*arguments(((8, 16), P("data", "model"))))
    found, kept = explain(lowered.compiler_ir("stablehlo"), "x"), explain_step(tmp_path, lowered)
    assert (kept.values, kept.collectives) == (found.values, found.collectives)
    assert found.collectives and sum(value.role == "captured" for value in found.values) > 1
    assert "0x" not in kept_step(lowered, []).module, "no value is kept"


def elsewhere(pair: Any) -> Any:
    """The module of a pair for a platform that has the host's memory apart."""
    lowered = lowered_for(traced_of(pair), "tpu")
    return lowered and lowered.compiler_ir("stablehlo")


def moves_shown(found: Explanation) -> list[str]:
    """The lines of moves of all values in the dialog."""
    known = Known(found, [], MeshInfo(axes=found.mesh, device_ids=[]))
    pages = (lines(ValuePage(label), known) for label in known.values)
    return [line.text for page in pages for line in page if "moves" in line.text]


@pytest.mark.usefixtures("mesh")
def test_values_in_the_memory_of_the_host_and_their_moves_are_shown(tmp_path: Path) -> None:
    mesh = jax.sharding.get_mesh()
    host = NamedSharding(mesh, P("data"), memory_kind="pinned_host")  # type: ignore[arg-type]
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(checkpoint_name(jnp.sin(x @ w), "hidden")), None

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(jax.checkpoint(layer, policy=policy), x, w)[0].sum()

    w, x = arguments(((3, 16, 16), P()), ROWS)
    pair = jax.jit(jax.grad(loss)), (w, x)
    with kept_names():
        found = explain(elsewhere(pair), "test")
    assert traced_of(pair[0].lower(*pair[1])) is None
    assert {value.memory for value in found.values if value.role != "value"} == {"device"}
    assert any(value.memory == "pinned_host" for value in found.values)
    size = 3 * 8 // 4 * 16 * 4
    moves = [(each.before, each.after, each.count, each.bytes) for each in found.memory_transfers or ()]
    assert moves == [("device", "pinned_host", 3, size), ("pinned_host", "device", 3, size)]
    tpu = pair[0].trace(*pair[1]).lower(lowering_platforms=("tpu",))
    shown = moves_shown(explain_step(tmp_path, tpu))
    assert f"hidden moves from device to pinned_host, 3 ×, {size} B per device" in shown[0]
    given = jax.jit(lambda x: x, out_shardings=host), (jax.ShapeDtypeStruct((8,), "float32", sharding=host),)
    assert [value.layout for value in explain(elsewhere(given), "test").values] == ["(data) in pinned_host"] * 2
    unknown = explain_step(tmp_path, given[0].lower(*given[1]))
    assert unknown.memory_transfers is None
    assert all("lowered for the CPU" in line for line in moves_shown(unknown))
