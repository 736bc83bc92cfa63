"""The JSON of `shardtui inspect` and `shardtui lint`."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from ...engine.explain.explanation import Explained, Explanation, Link, ValueOrigin
from ...engine.hlo.finding import Finding
from ...engine.hlo.layout import Shard, bytes_per_device, replicas, shards, shards_differ, wasted_bytes
from ...engine.hlo.lint import lint
from ...engine.hlo.traffic import FlowChange, changes, flows, overlapped_share
from ...engine.spec.preset import PipelineInfo
from ...engine.wire.collective import CollectiveInfo
from ...engine.wire.descriptions import (
    ArrayInfo,
    ArrayKind,
    DeviceInfo,
    MemoryInfo,
    MeshInfo,
    PeakBuffer,
    PeakMemory,
    ProductInfo,
    RematerializationInfo,
)
from ...engine.wire.events import Inspection
from ..state import finding_origins
from ..state.explanation_diff import numbered
from ..state.finding_origins import because

SCHEMA = 3


class ArrayReport(ArrayInfo, frozen=True, kw_only=True):
    """An array that the step takes or computes, its layout, and what that costs."""

    bytes_per_device: int
    """Bytes on the fullest device."""
    replicas: int
    """Number of devices that hold each element."""
    wasted_bytes: int
    """Bytes that all devices hold beyond one copy."""
    shards: list[Shard]
    """Its shards under `compiled_spec`."""
    origin: list[Link] | None
    """From where it got each mesh axis, and why other dims are unsharded, as in `shardtui why --json`: by the
    partitioner's passes, not by the compiler. Null if it is unknown."""


class CollectiveReport(CollectiveInfo, frozen=True, kw_only=True):
    """A collective of the compiled step, and why it is needed."""

    origin: list[str] | None
    """Why it is needed, and the chains of the values involved: `because` of the collectives that the partitioner's
    passes estimate of the same kind, over the same axes and for the same source line. Null if there are none, or
    `source` is unknown."""


class InspectReport(Struct, frozen=True, kw_only=True):
    """The compiled step of one preset."""

    schema: int = SCHEMA
    """Version of this schema; grows when a field changes its meaning or is removed."""
    preset: str
    """Name of the preset."""
    devices: list[DeviceInfo]
    """Devices of the mesh."""
    versions: dict[str, str]
    """Versions of Python and the packages, by name."""
    mesh: MeshInfo
    """The mesh as it is built on the devices."""
    pipeline: PipelineInfo | None
    """Stages of its pipeline; null if it has none."""
    arrays: list[ArrayReport]
    """All arrays that the step takes or computes."""
    collectives: list[CollectiveReport] | None
    """One entry for each collective of the program that moves data between devices (the permutation of a pipeline with
    one stage moves none); null if the compiler's text cannot be read."""
    overlapped_share: float | None
    """Share of the bytes sent, 0 to 1, by collectives that are `overlapped`; null if unknown, or nothing is sent."""
    products: list[ProductInfo]
    """One entry for each part of the step with matrix products or convolutions, the largest first; empty if the
    compiler's text cannot be read. Parts whose FLOPs depend on data (`cond`, `while`, ragged products) and products
    that the compiler made from other operations are left out. If the compiler names a product only by `blocks`, all of
    `blocks` is one part."""
    memory: MemoryInfo | None
    """Memory of one device; null if the backend does not report it."""
    at_peak: PeakMemory | None
    """The peak of a device's memory, predicted from the order of the program; null if the text cannot be read."""
    peak_buffers: list[PeakBuffer]
    """The memory at that peak: the 20 largest buffers, the largest first; empty if `at_peak` is null."""
    rematerializations: list[RematerializationInfo]
    """The compiler's warnings of rematerialized arrays."""
    flops_per_step: float
    """FLOPs of the model per step, by formula; for your own model, counted in the jaxpr that jax traces."""
    compile_seconds: float | None
    """Seconds to compile the step; null if another program compiled it."""
    problem: str | None
    """Why gradients or activations are missing; null if none are."""
    origin_problem: str | None
    """Why every `origin` is null; null if they are known."""


class LayoutChange(Struct, frozen=True, kw_only=True):
    """An array that two presets lay out differently."""

    name: str
    """Module path of the array."""
    kind: ArrayKind
    """Role of the array in the step."""
    compiled_spec: list[list[str]]
    """Spec that the compiler chose under `preset`: for each dim the mesh axes that split it, major first."""
    other_compiled_spec: list[list[str]]
    """Partition spec under `other`."""
    bytes_per_device: int
    """Bytes on the fullest device under `preset`."""
    other_bytes_per_device: int
    """Bytes on the fullest device under `other`."""


class DiffReport(Struct, frozen=True, kw_only=True):
    """Differences between the compiled steps of two presets."""

    schema: int = SCHEMA
    """Version of this schema; grows when a field changes its meaning or is removed."""
    preset: str
    """Name of the first preset."""
    other: str
    """Name of the second preset."""
    mesh: MeshInfo
    """Mesh of `preset`."""
    other_mesh: MeshInfo
    """Mesh of `other`."""
    arrays: list[LayoutChange]
    """Arrays whose shards are on different devices."""
    collectives: list[FlowChange]
    """Collectives of both, summed by kind and mesh axes."""
    memory: MemoryInfo | None
    """Memory of one device under `preset`; null if the backend does not report it."""
    other_memory: MemoryInfo | None
    """Memory of one device under `other`; null if the backend does not report it."""


class HloReport(Struct, frozen=True, kw_only=True):
    """The collectives of a compiled program."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    mesh: dict[str, int]
    """Size by mesh axis, in order, as given."""
    collectives: list[CollectiveInfo]
    """One entry for each collective of the program that moves data between devices."""
    overlapped_share: float | None
    """Share of the bytes sent, 0 to 1, by collectives that are `overlapped`; null if nothing is sent."""


def all_arrays(inspection: Inspection) -> list[ArrayInfo]:
    return [*inspection.compiled.arrays, *inspection.inspected.arrays]


def inspect_report(inspection: Inspection, explained: Explained) -> InspectReport:
    compiled, inspected, found = inspection.compiled, inspection.inspected, explained.explanation
    values = numbered(found.values) if found else {}
    known = asdict(compiled) | asdict(inspected) | asdict(inspection)
    known["arrays"] = [_array(array, compiled.mesh, values.get(array.name)) for array in all_arrays(inspection)]
    if compiled.collectives is not None:
        known["collectives"] = [
            CollectiveReport(**asdict(info), origin=because(info, found.collectives) if found else None)
            for info in compiled.collectives
        ]
    known["overlapped_share"] = overlapped_share(flows(compiled.collectives or ()))
    known["origin_problem"] = explained.problem
    return InspectReport(**{name: known[name] for name in InspectReport.__struct_fields__ if name in known})


def diff_report(one: Inspection, other: Inspection) -> DiffReport:
    meshes = (one.compiled.mesh, other.compiled.mesh)
    others = {array.name: array for array in all_arrays(other)}
    pairs = [(array, others[array.name]) for array in all_arrays(one) if array.name in others]
    return DiffReport(
        preset=one.compiled.preset,
        other=other.compiled.preset,
        mesh=meshes[0],
        other_mesh=meshes[1],
        arrays=[_change(a, b, *meshes) for a, b in pairs if shards_differ(a, b, *meshes)],
        collectives=changes(one.compiled.collectives or (), other.compiled.collectives or ()),
        memory=one.compiled.memory,
        other_memory=other.compiled.memory,
    )


def _array(array: ArrayInfo, mesh: MeshInfo, value: ValueOrigin | None) -> ArrayReport:
    return ArrayReport(
        **asdict(array),
        bytes_per_device=bytes_per_device(array, mesh),
        replicas=replicas(array.compiled_spec, mesh),
        wasted_bytes=wasted_bytes(array, mesh),
        shards=shards(array.shape, array.compiled_spec, mesh),
        origin=value.origin if value else None,
    )


def _change(a: ArrayInfo, b: ArrayInfo, a_mesh: MeshInfo, b_mesh: MeshInfo) -> LayoutChange:
    return LayoutChange(
        name=a.name,
        kind=a.kind,
        compiled_spec=a.compiled_spec,
        other_compiled_spec=b.compiled_spec,
        bytes_per_device=bytes_per_device(a, a_mesh),
        other_bytes_per_device=bytes_per_device(b, b_mesh),
    )


class FindingReport(Finding, frozen=True, kw_only=True):
    """A finding, and where to change what it is about."""

    origin: list[str] | None
    """Where the chains of its arrays, and of what its source line computes and moves, end: each rule and line once, by
    the partitioner's passes. Null if the passes failed."""


class LintReport(Struct, frozen=True, kw_only=True):
    """Likely mistakes in the layout of a preset."""

    schema: int = 1
    """Version of this schema; grows when a field changes its meaning or is removed."""
    preset: str
    """Name of the preset."""
    findings: list[FindingReport]
    """The findings; empty if there are none."""


def findings(inspection: Inspection) -> list[Finding]:
    return lint(inspection.compiled, inspection.inspected, inspection.flops_per_step)


def lint_report(inspection: Inspection, explained: Explained) -> LintReport:
    explanation, arrays = explained.explanation, all_arrays(inspection)
    found = [_finding(each, explanation, arrays) for each in findings(inspection)]
    return LintReport(preset=inspection.compiled.preset, findings=found)


def _finding(found: Finding, explanation: Explanation | None, arrays: Sequence[ArrayInfo]) -> FindingReport:
    ends = explanation and finding_origins.ends(
        found, finding_origins.evidence(found, explanation, arrays), explanation
    )
    return FindingReport(**asdict(found), origin=ends)
