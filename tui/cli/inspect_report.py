"""The JSON of `shardtui inspect` and `shardtui lint`, which docs/json.md describes."""

from collections.abc import Sequence

from msgspec import Struct

from ...engine.analysis.layout import Shard, bytes_per_device, replicas, shards, shards_differ, wasted_bytes
from ...engine.analysis.lint import Finding, lint
from ...engine.analysis.traffic import FlowChange, changes
from ...engine.spec.pipeline_info import PipelineInfo
from ...engine.wire.descriptions import (
    ArrayInfo,
    CollectiveInfo,
    DeviceInfo,
    MemoryInfo,
    MeshInfo,
    ProductInfo,
    RematerializationInfo,
)
from ...engine.wire.events import Inspection

SCHEMA = 1

SpecEntry = str | list[str] | None


class MeshReport(Struct, frozen=True):
    axes: list[str]
    sizes: list[int]
    device_ids: list[int]
    """In row-major order of the axes."""


class ArrayReport(Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    shape: list[int]
    dtype: str
    logical_axes: list[str | None]
    spec: list[SpecEntry]
    compiled_spec: list[SpecEntry]
    bytes: int
    bytes_per_device: int
    replicas: int
    wasted_bytes: int
    reasons: list[str]
    type: str
    """As `jax.typeof` prints it, where axis types are explicit."""
    shards: list[Shard]
    """As compiled."""


class InspectReport(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    preset: str
    devices: list[DeviceInfo]
    versions: dict[str, str]
    mesh: MeshReport
    pipeline: PipelineInfo | None
    arrays: list[ArrayReport]
    collectives: list[CollectiveInfo] | None
    products: list[ProductInfo]
    memory: MemoryInfo | None
    rematerializations: list[RematerializationInfo]
    flops_per_step: float
    compile_seconds: float | None
    problem: str | None
    """Why gradients and activations are missing."""


class LayoutChange(Struct, frozen=True, kw_only=True):
    """An array that two presets lay out differently."""

    name: str
    kind: str
    compiled_spec: list[SpecEntry]
    other_compiled_spec: list[SpecEntry]
    bytes_per_device: int
    other_bytes_per_device: int


class DiffReport(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    preset: str
    other: str
    mesh: MeshReport
    other_mesh: MeshReport
    arrays: list[LayoutChange]
    collectives: list[FlowChange]
    memory: MemoryInfo | None
    other_memory: MemoryInfo | None


class HloReport(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    mesh: dict[str, int]
    collectives: list[CollectiveInfo]


class LintReport(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    preset: str
    findings: list[Finding]


def all_arrays(inspection: Inspection) -> list[ArrayInfo]:
    return [*inspection.compiled.arrays, *inspection.inspected.arrays]


def findings(inspection: Inspection) -> list[Finding]:
    return lint(inspection.compiled, inspection.inspected, inspection.flops_per_step)


def inspect_report(inspection: Inspection) -> InspectReport:
    compiled, inspected = inspection.compiled, inspection.inspected
    return InspectReport(
        preset=compiled.preset,
        devices=inspection.devices,
        versions=inspection.versions,
        mesh=_mesh(compiled.mesh),
        pipeline=compiled.pipeline,
        arrays=[_array(array, compiled.mesh) for array in all_arrays(inspection)],
        collectives=compiled.collectives,
        products=compiled.products,
        memory=compiled.memory,
        rematerializations=inspected.rematerializations,
        flops_per_step=inspection.flops_per_step,
        compile_seconds=compiled.compile_seconds,
        problem=inspected.problem,
    )


def diff_report(one: Inspection, other: Inspection) -> DiffReport:
    meshes = (one.compiled.mesh, other.compiled.mesh)
    others = {array.name: array for array in all_arrays(other)}
    pairs = [(array, others[array.name]) for array in all_arrays(one) if array.name in others]
    return DiffReport(
        preset=one.compiled.preset,
        other=other.compiled.preset,
        mesh=_mesh(meshes[0]),
        other_mesh=_mesh(meshes[1]),
        arrays=[_change(a, b, *meshes) for a, b in pairs if shards_differ(a, b, *meshes)],
        collectives=changes(one.compiled.collectives or (), other.compiled.collectives or ()),
        memory=one.compiled.memory,
        other_memory=other.compiled.memory,
    )


def _mesh(mesh: MeshInfo) -> MeshReport:
    return MeshReport(list(mesh.axes), list(mesh.axes.values()), mesh.device_ids)


def _array(array: ArrayInfo, mesh: MeshInfo) -> ArrayReport:
    return ArrayReport(
        name=array.name,
        kind=array.kind,
        shape=array.shape,
        dtype=array.dtype,
        logical_axes=array.logical_axes,
        spec=_entries(array.spec),
        compiled_spec=_entries(array.compiled_spec),
        bytes=array.bytes,
        bytes_per_device=bytes_per_device(array, mesh),
        replicas=replicas(array.compiled_spec, mesh),
        wasted_bytes=wasted_bytes(array, mesh),
        reasons=array.reasons,
        type=array.type,
        shards=shards(array.shape, array.compiled_spec, mesh),
    )


def _change(a: ArrayInfo, b: ArrayInfo, a_mesh: MeshInfo, b_mesh: MeshInfo) -> LayoutChange:
    return LayoutChange(
        name=a.name,
        kind=a.kind,
        compiled_spec=_entries(a.compiled_spec),
        other_compiled_spec=_entries(b.compiled_spec),
        bytes_per_device=bytes_per_device(a, a_mesh),
        other_bytes_per_device=bytes_per_device(b, b_mesh),
    )


def _entries(spec: Sequence[Sequence[str]]) -> list[SpecEntry]:
    """As a PartitionSpec has them: null, an axis, or several."""
    return [axes[0] if len(axes) == 1 else list(axes) or None for axes in spec]
