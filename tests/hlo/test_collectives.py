"""The inventory of collectives, against programs whose traffic is known by calculation."""

from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.device_groups import Groups, axes_of, grouping, groups_of
from shardtui.engine.hlo.module import Instruction, Module, parse
from shardtui.engine.hlo.program_text import read as read_text
from shardtui.engine.hlo.program_text import read_collectives
from shardtui.engine.parallel.mesh import build_mesh
from shardtui.engine.program.program import Program as CompiledPreset
from shardtui.engine.wire.collective import CollectiveInfo

from ..collective_programs import LAYERS, WIDTH, Program, lower_fsdp
from ..collective_programs import programs as hand_written
from ..conftest import BATCHES, WIDE

MESH = {"data": 4, "model": 2}
TEXTS = Path(__file__).parents[1] / "hlo"
LINE = str(Path(__file__).parents[1] / "collective_programs.py")

ACTIVATION = BATCHES.batch_size * BATCHES.seq_len * WIDE.embed * 4
"""Bytes of the residual stream of the global batch, float32."""


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return build_mesh(MESH, jax.devices())


def read(name: str) -> Module:
    return parse((TEXTS / f"tpu {name}.hlo".replace(" ", "-")).read_text())


def summary(infos: list[CollectiveInfo]) -> list[tuple[str, list[str], int | None, int]]:
    return [(info.kind, info.axes, info.count, info.bytes_each) for info in infos]


@pytest.mark.parametrize("program", list(hand_written()), ids=lambda program: program.name)
def test_hand_written_programs_on_cpu_and_on_tpu(program: Program, mesh: Mesh) -> None:
    """For TPU, the texts that `tests/long/tpu_texts.py` writes: v5e, 2 × 4 chips."""
    times, each = program.traffic[2:]
    on_cpu = parse(program.lower(mesh).compile().as_text() or "")
    for module, file in ((on_cpu, LINE), (read(program.name), "/home/me/shardtui/tests/collective_programs.py")):
        found = inventory(module, MESH)
        assert summary(found) == [program.traffic]
        assert found[0].written and found[0].source.startswith(f"{file}:")
        assert found[0].bytes_per_device == (None if times is None else times * each)


def total(infos: list[CollectiveInfo], kind: str, *axes: str) -> int:
    return sum(info.bytes_per_device or 0 for info in infos if (info.kind, info.axes) == (kind, list(axes)))


def test_collectives_that_the_compiler_inserts_for_fsdp(mesh: Mesh) -> None:
    """Each layer is gathered forward and backward, and its gradient is reduced once.

    On TPU gathers are bf16, asynchronous fusions repeat their gather, and the reduction is a scatter in a fusion.
    """
    weights = LAYERS * WIDTH * WIDTH * 4
    cpu = inventory(parse(lower_fsdp(mesh).compile().as_text() or ""), MESH)
    assert total(cpu, "all-gather", "data") == 2 * weights
    assert total(cpu, "all-reduce", "data") == weights + 4  # and the loss
    tpu = inventory(read("fsdp"), MESH)
    assert {info.dtype for info in tpu if info.kind == "all-gather"} == {"bf16"}
    assert total(tpu, "all-gather", "data") == 2 * weights // 2
    assert total(tpu, "reduce-scatter", "data") == weights
    assert total(tpu, "all-reduce", "data") == 4
    assert not any(info.written for info in [*cpu, *tpu])


def test_data_parallelism_and_fsdp_send_the_bytes_of_the_formulas(programs: dict[str, CompiledPreset]) -> None:
    """FSDP gathers split parameters of blocks forward and backward, embeddings once. On CPU gradients are all-reduced
    and then cut."""
    data, sharded = (programs[name].description for name in ("dp", "fsdp"))
    parameters = [array for array in sharded.arrays if array.kind == "parameter"]
    size = pytest.approx(sum(array.bytes for array in parameters), rel=0.01)
    gathered = sum(array.bytes * (2 - ("embedding" in array.name)) for array in parameters if any(array.compiled_spec))
    assert data.collectives and sharded.collectives
    assert {(info.kind, *info.axes) for info in data.collectives} == {("all-reduce", "data")}
    assert total(data.collectives, "all-reduce", "data") == size
    assert total(sharded.collectives, "all-gather", "fsdp") == pytest.approx(gathered, rel=0.01)
    assert total(sharded.collectives, "all-reduce", "fsdp") == size


@pytest.mark.parametrize(
    "preset",
    ["dp", "fsdp", "fsdp-tp2", *(pytest.param(name, marks=pytest.mark.core) for name in ("dp-tp2-pp2", "hsdp"))],
)
def test_the_gradient_that_a_reduction_sums_is_named(programs: dict[str, CompiledPreset], preset: str) -> None:
    program = programs[preset].description
    parameters = {array.name for array in program.arrays if array.kind == "parameter"}
    assert {name for info in program.collectives or () for name in info.reduced if name} == parameters
    for info in program.collectives or ():
        assert len(info.reduced) == (len(info.shapes) if info.kind in ("all-reduce", "reduce-scatter") else 0)
        assert not any(info.reduced) or {"data", "fsdp"} & {*info.axes}, "an activation over another axis"


def test_tensor_parallel_has_the_all_reduces_of_megatron(programs: dict[str, CompiledPreset]) -> None:
    """Each layer has two all-reduces of activations forward and two backward (Shoeybi et al. 2019, section 3)."""
    program = programs["tp"].description
    assert program.collectives
    layers = [info for info in program.collectives if "(blocks)" in info.op_name and "while" in info.op_name]
    for is_backward in (False, True):
        side = [info for info in layers if ("transpose" in info.op_name) == is_backward]
        assert summary(side) == [("all-reduce", ["model"], WIDE.layers, ACTIVATION)] * 2
    sources = {info.source.rpartition("/")[2].partition(":")[0] for info in layers}
    assert sources == {"attention.py", "blocks.py"}


def groups(attributes: str, devices: int = 8) -> Groups:
    instruction = Instruction("x", "f32[8]", "all-reduce", f"%p), channel_id=1, {attributes}, to_apply=%add")
    return groups_of(grouping(instruction), devices)


@given(st.permutations([2, 2, 4]), st.permutations([0, 1, 2]), st.sampled_from([1, 2, 4, 8, 16]))
def test_iota_groups_are_those_of_numpy(dims: list[int], order: list[int], size: int) -> None:
    text = f"replica_groups=[{16 // size},{size}]<=[{','.join(map(str, dims))}]T({','.join(map(str, order))})"
    expected = np.arange(16).reshape(dims).transpose(order).reshape(-1, size)
    assert groups(text, 16) == [tuple(group) for group in expected.tolist()]


def test_groups_in_all_forms_over_several_axes_parts_of_axes_and_pairs() -> None:
    for text in (
        "replica_groups={{0,2,4,6},{1,3,5,7}}",
        "replica_groups=[2,4]<=[4,2]T(1,0)",
        "replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}",
        "replica_groups=mesh['axis_0'=8] {'axis_0':(1)4}, use_global_device_ids=true",
        "replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}",
    ):
        found = groups(text)
        assert sorted(map(sorted, found)) == [[0, 2, 4, 6], [1, 3, 5, 7]], text
        assert axes_of(found, MESH) == ["data"], text
    cube = {"a": 2, "b": 2, "c": 2}
    assert axes_of(groups("replica_groups={{0,1,4,5},{2,3,6,7}}"), cube) == ["a", "c"]
    assert axes_of(groups("replica_groups={}"), cube) == ["a", "b", "c"]
    half = groups("replica_groups={{0,4},{2,6},{1,5},{3,7}}")
    assert (axes_of(half, MESH), max(map(len, half))) == (["data"], 2)
    assert groups("source_target_pairs={{0,0},{0,1},{1,0}}") == [(0, 1), (1, 0)]


def test_a_branch_that_may_not_be_taken_has_no_known_count(mesh: Mesh) -> None:
    def either(x: jax.Array) -> jax.Array:
        return jax.lax.cond(x.sum() > 0, lambda x: jax.lax.psum(x, "data"), lambda x: x, x)

    program = Program("cond", either, jax.P("data", "model"), ("all-reduce", ["data"], None, 262144))
    assert summary(inventory(parse(program.lower(mesh).compile().as_text() or ""), MESH)) == [program.traffic]


@pytest.mark.parametrize("text", ["", "not HLO", "HloModule m\n", "HloModule m\n\n%a (p: f32[]) -> f32[] {\n"])
def test_text_that_is_not_a_module_is_rejected_and_logged(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"HloModule|ENTRY"):
        parse(text)
    assert read_text(text, MESH, [], {}) == (None, [], None)
    assert read_collectives(text, MESH) is None
    assert caplog.text.count("ValueError: ") == 2
    empty = "HloModule m\n\nENTRY %e (p: f32[8]) -> f32[8] {\n}\n"
    assert read_text(empty, MESH, [], {})[:2] == ([], [])
    assert read_collectives(empty, MESH) == []
