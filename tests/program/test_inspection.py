"""Layouts, memory and norms reported for a compiled step match jax's and NumPy's, for every array of every preset."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Sharding
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.layout import bytes_per_device, replicas, shards, wasted_bytes
from shardtui.engine.hlo.module import parse
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.parallel.mesh import describe_mesh
from shardtui.engine.parallel.observed import Observed
from shardtui.engine.program.inspection import inspect_program, rematerializations
from shardtui.engine.program.memory import measure
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state, trace_step
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.wire.descriptions import ArrayInfo
from shardtui.engine.wire.events import PresetInspected

from ..conftest import step
from ..flips import unequal_replicas
from ..oracle.arrays import tokens
from ..preset_checks import Checks, wrong_of_program
from ..programs import KINDS
from ..random_presets import case
from ..suite import loss_of

SHORT = ("dp", "dp-tp2-pp2", "fsdp-tp2", "fsdp-tp2-explicit")
EACH = [name if name in SHORT else pytest.param(name, marks=pytest.mark.core) for name in KINDS]
INSPECTED = [
    "fsdp-tp2",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("hsdp", "pitfall-same-axis", "dp-tp2-pp2")),
]
ACTIVATIONS = {
    "token.table",
    "position.table",
    "embedding",
    "blocks.attention_norm",
    "blocks.attention.qkv",
    "blocks.attention.kv",
    "blocks.attention.mixed",
    "blocks.attention.branch",
    "blocks.attention.residual",
    "blocks.mlp_norm",
    "blocks.mlp.up",
    "blocks.mlp.hidden",
    "blocks.mlp.branch",
    "blocks.mlp.residual",
    "norm",
    "logits",
}

Boxes = set[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def traffic(collectives: list) -> list[tuple[str, list[str], int | None, int]]:
    return sorted((info.kind, info.axes, info.count or -1, info.bytes_each) for info in collectives)


def boxes(sharding: Sharding, shape: tuple[int, ...]) -> Boxes:
    """Returns jax's shards: (start, stop, ids of the devices that hold it)."""
    held: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for device, box in sharding.devices_indices_map(shape).items():
        edges = [part.indices(size)[:2] for part, size in zip(box, shape, strict=True)]
        held.setdefault((tuple(a for a, _ in edges), tuple(b for _, b in edges)), []).append(device.id)
    return {(start, stop, tuple(sorted(ids))) for (start, stop), ids in held.items()}


def shards_of(array: ArrayInfo, program: Program) -> Boxes:
    found = shards(array.shape, array.compiled_spec, describe_mesh(program.placement.mesh))
    return {(shard.start, shard.stop, shard.devices) for shard in found}


def norm(tree: object) -> float:
    leaves = jax.tree.leaves(jax.device_get(tree))
    return float(np.sqrt(sum(np.sum(np.square(leaf.astype(np.float64))) for leaf in leaves)))


@pytest.fixture(scope="module")
def gradient_norm(task: Task) -> float:
    params = jax.jit(task.initial_state)().params
    return norm(jax.jit(jax.grad(loss_of(task)))(params, tokens(task), None))


@pytest.mark.parametrize("preset", EACH)
def test_live_arrays_after_a_step_are_what_is_said(
    preset: str, task: Task, programs: dict[str, Program], gradient_norm: float
) -> None:
    """Their layouts, memory and norms, and replicas are equal."""
    program = programs[preset]
    mesh, memory = describe_mesh(program.placement.mesh), program.description.memory
    state = compile_initial_state(program.placement)()
    before = jax.device_get(state.params)
    batch = Batch(*map(jax.device_put, tokens(task), program.placement.batch_shardings))
    after, scalars = program.step(state, batch)
    arrays = [array for array in program.description.arrays if array.kind != "batch"]
    shardings = jax.tree.leaves(program.placement.state_shardings)
    for leaf, array, sharding in zip(jax.tree.leaves(after), arrays, shardings, strict=True):
        assert (leaf.shape, leaf.nbytes) == (tuple(array.shape), array.bytes)
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim), array.name
        assert boxes(leaf.sharding, leaf.shape) == shards_of(array, program), array.name
        held = [shard.data.nbytes for shard in leaf.addressable_shards]
        assert {*held} == {bytes_per_device(array, mesh)}
        assert wasted_bytes(array, mesh) == sum(held) - leaf.nbytes
        assert replicas(array.compiled_spec, mesh) * leaf.nbytes == sum(held)
    assert memory
    kinds = (memory.parameters, memory.moments, memory.scalars, memory.batch)
    assert min(kinds) > 0
    assert (sum(kinds), memory.padding) == (memory.arguments, 0)
    assert memory.peak == memory.arguments + memory.outputs - memory.aliased + memory.temporaries
    moved = jax.tree.map(np.subtract, jax.device_get(after.params), before)
    found = {name: float(value) for name, value in scalars.items()}
    assert found["grad_norm"] == pytest.approx(gradient_norm, rel=1e-5)
    assert found["param_norm"] == pytest.approx(norm(after.params), rel=1e-5)
    assert found["update_norm"] == pytest.approx(norm(moved), rel=1e-3), "parameters are rounded"
    norms = [info for info in program.description.collectives or () if [3] in info.shapes]
    assert [info.kind for info in norms] == ["all-reduce"], "all norms are summed at once"
    assert not unequal_replicas(step(after, program, 1))


@pytest.mark.parametrize("preset", INSPECTED)
def test_gradients_and_activations_agree_with_jax(
    preset: str, task: Task, programs: dict[str, Program], inspected: dict[str, PresetInspected]
) -> None:
    program, arrays = programs[preset], inspected[preset].arrays
    assert inspected[preset].problem is None
    assert {array.name for array in arrays if array.kind == "activation"} == ACTIVATIONS
    parameters = [array.name for array in program.description.arrays if array.kind == "parameter"]
    assert [array.name for array in arrays if array.kind == "gradient"] == [f"grad.{name}" for name in parameters]
    seen = Observed()  # by jax's own `inspect_array_sharding`
    lowered = trace_step(program.placement, seen).lower()
    compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": "0"})
    collectives = inventory(parse(compiled.as_text() or ""), dict(program.placement.mesh.shape))
    assert traffic(collectives) == traffic(program.description.collectives or []), "inspecting changed the program"
    for array in arrays:
        sharding = seen.shardings[array.name]
        assert shards_of(array, program) == boxes(sharding, tuple(array.shape)), array.name


def test_measured_memory_follows_live_arrays(task: Task, programs: dict[str, Program]) -> None:
    devices = jax.devices()
    before = measure(devices)
    assert before.source == "live arrays"
    state = compile_initial_state(programs["fsdp"].placement)()
    jax.block_until_ready(state)
    memory = programs["fsdp"].description.memory
    assert memory
    held, more = (
        memory.parameters + memory.moments + memory.scalars,
        jax.device_put(np.zeros(1000, np.int8), devices[3]),
    )

    def grown() -> dict[int, int]:
        after = measure(devices)
        assert after.bytes_in_use == max(after.bytes_by_device.values())
        return {id: size - before.bytes_by_device[id] for id, size in after.bytes_by_device.items()}

    assert grown() == {device.id: held + 1000 * (device is devices[3]) for device in devices}
    del state, more
    assert set(grown().values()) == {0}


def test_a_layout_that_no_spec_can_express_is_reported(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reshape, a dim may be split over half of a mesh axis, for which jax has no spec."""

    def halves(self: Task, params: object, variables: object, batch: object, key: object) -> object:
        from shardtui.engine.parallel.constraints import observe

        x = batch.inputs.reshape(2, 8, 128)  # type: ignore[attr-defined] # 16 rows over 8 devices: 2 × 4
        observe(x, None, None, None, name="halves")
        return outcome(self, params, variables, batch, key)

    outcome = Task.outcome
    monkeypatch.setattr(Task, "outcome", halves)
    found = inspect_program(place(task, load_preset("dp"), jax.devices()))
    assert found.problem
    assert f"test_inspection.py:{halves.__code__.co_firstlineno + 4}" in found.problem
    assert all(array.name != "halves" for array in found.arrays)


WARNINGS = """
W1121 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization. The compiler cannot go from \\
sharding {mesh['fsdp'=4,'model'=2], [{'fsdp'}, {}, {}]} to {devices=[1,1,4,2]<=[8] last_tile_dim_replicate} \\
efficiently for HLO operation %fake_parameter.2 = f32[4,128,128]{2,1,0} parameter(2). As the last resort, …
I1121 something else
E0101 spmd_partitioner.cc:630] [spmd] Involuntary full rematerialization. The compiler was not able to go from \\
sharding {devices=[2,4]<=[8]} to {devices=[4,2]<=[2,4]T(1,0)} without doing a full rematerialization \\
of the tensor for HLO operation: %dot.1 = f32[8,16] dot(%a, %b), \\
metadata={op_name="jit(run)/shard_map/psum" stack_frame_id=7}
E0101 [spmd] Involuntary full rematerialization. The compiler was not able to go from sharding {replicated} to \\
{manual} without doing a full rematerialization of the tensor for HLO operation: %x = bf16[] add(%a, %b), \\
metadata={op_name="jit(f)/add" source_file="/home/me/f.py" source_line=7}
""".replace("\\\n", "")


def test_compiler_warnings_are_mapped_to_source_lines() -> None:
    text = (Path(__file__).parents[1] / "hlo" / "tpu-psum.hlo").read_text().replace("<lambda>", "run")
    one, other, third = rematerializations(WARNINGS, text)
    assert (one.operation, one.shape) == ("%fake_parameter.2 = f32[4,128,128]{2,1,0} parameter", [4, 128, 128])
    assert one.from_sharding == "{mesh['fsdp'=4,'model'=2], [{'fsdp'}, {}, {}]}"
    assert (one.op_name, one.source) == ("", "")
    assert (other.operation, other.shape) == ("%dot.1 = f32[8,16] dot", [8, 16])
    assert other.op_name == "jit(run)/shard_map/psum"
    assert other.source.startswith("/home/me/shardtui/tests/collective_programs.py:")
    assert third.source == "/home/me/f.py:7"


COMPILED = (11, 12, 15, 131, 653)
"""A mixture of experts, explicit axis types with overrides, odd sizes, a pipeline whose blocks with remat save their
input split, and interleaved stages with a replicated state."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed % 3 else seed for seed in range(24)]
)
def test_placed_presets(seed: int) -> None:
    assert Checks(case(seed)).placed().wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", COMPILED)
def test_compiled_and_trained_presets(seed: int) -> None:
    checks = Checks(case(seed))
    if program := checks.described():
        checks.trained(program)
    assert checks.checked.wrong == []


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed: int) -> None:
    assert wrong_of_program(seed) == []
