"""The JSON of `shardtui plan`, which docs/json.md describes."""

from msgspec import Struct

from ...engine.planning.ranking import Board, Bound, Cost, Row, Verdict, ranked, recommendation
from ...engine.spec.pipeline_info import PipelineInfo
from ...engine.spec.topology import Wiring

SCHEMA = 1


class RowReport(Struct, frozen=True, kw_only=True):
    preset: str
    mesh: dict[str, int]
    verdict: Verdict
    bound: Bound | None
    """What takes longest in a step."""
    estimate: Cost | None
    no_estimate: str
    """Why there is none, although it can be laid out."""
    compiled: Cost | None
    problems: list[str]
    wiring: list[Wiring]
    pipeline: PipelineInfo | None


class PlanReport(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    model: str
    topology: str
    recommendation: str
    rows: list[RowReport]
    """Best first."""


def plan_report(board: Board) -> PlanReport:
    return PlanReport(
        model=board.model,
        topology=board.topology,
        recommendation=recommendation(board.rows, board.topology),
        rows=[_row(row) for row in ranked(board.rows)],
    )


def _row(row: Row) -> RowReport:
    cost = row.timed
    return RowReport(
        preset=row.preset,
        mesh=row.mesh,
        verdict=row.verdict,
        bound=cost.bound if cost else None,
        estimate=row.estimate,
        no_estimate=row.no_estimate,
        compiled=row.compiled,
        problems=row.problems,
        wiring=row.wiring,
        pipeline=row.pipeline,
    )
