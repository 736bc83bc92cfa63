"""The JSON of `shardtui compare`, which docs/json.md describes."""

from msgspec import Struct

from ...engine.analysis.traffic import Flow
from ...engine.planning.ranking import Cost, Measured, Row
from ...engine.spec.pipeline_info import PipelineInfo
from ...engine.wire.descriptions import DeviceInfo


class CostReport(Struct, frozen=True, kw_only=True):
    """One step on one device, predicted."""

    argument_bytes: int
    peak_bytes: int
    capacity_bytes: int | None
    bytes_sent: int | None
    collectives: list[Flow] | None


class RowReport(Struct, frozen=True, kw_only=True):
    preset: str
    mesh: dict[str, int]
    pipeline: PipelineInfo | None
    verdict: str
    problems: list[str]
    estimate: CostReport | None
    no_estimate: str
    """Why there is none, although it can be laid out."""
    compiled: CostReport | None
    measured: Measured | None


class CompareReport(Struct, frozen=True, kw_only=True):
    schema: int = 1
    model: str
    devices: list[DeviceInfo]
    versions: dict[str, str]
    memory_source: str | None
    steps: int
    warm_up: int
    rows: list[RowReport]
    recommendation: str
    complete: bool


def row_report(row: Row) -> RowReport:
    return RowReport(
        preset=row.preset,
        mesh=row.mesh,
        pipeline=row.pipeline,
        verdict=row.verdict,
        problems=row.problems,
        estimate=_cost(row.estimate),
        no_estimate=row.no_estimate,
        compiled=_cost(row.compiled),
        measured=row.measured,
    )


def _cost(cost: Cost | None) -> CostReport | None:
    if cost is None:
        return None
    return CostReport(
        argument_bytes=cost.argument_bytes,
        peak_bytes=cost.peak_bytes,
        capacity_bytes=cost.capacity_bytes,
        bytes_sent=cost.bytes_sent,
        collectives=cost.collectives,
    )
