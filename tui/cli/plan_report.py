"""The JSON of `shardtui plan`."""

from collections.abc import Sequence

from msgspec import Struct

from ...engine.analysis.finding import Finding
from ...engine.planning.fitting import Fit
from ...engine.planning.goal import in_order
from ...engine.planning.ranking import Board, Bound, Choice, Cost, Row, Verdict
from ...engine.spec.pipeline_info import PipelineInfo
from ...engine.spec.search import Goal
from ...engine.spec.topology import Topology, Wiring, load_topology
from ..state.chip_hours import Prices, yield_of
from ..state.recommendation import recommendation
from .search_report import SearchReport

SCHEMA = 2


class PlannedPreset(Struct, frozen=True, kw_only=True):
    """One preset on a slice."""

    preset: str
    """Name of the preset."""
    topology: str
    """The slice, such as `v5p:4x4x4`."""
    slices: int
    """Number of such slices, connected by DCN."""
    mesh: dict[str, int]
    """Size by mesh axis, in order."""
    verdict: Verdict
    """Whether it fits, by the compiled program if there is one, else by `estimate`; `not known` if there is neither."""
    bound: Bound | None
    """What takes longest in a step; null if unknown."""
    estimate: Cost | None
    """Cost by formula, or where none covers the layout, from the trace; null if the layout is invalid, or for the
    reason in `no_estimate`."""
    no_estimate: str
    """Why there is no `estimate` for a valid layout, such as that its step cannot be traced; else empty."""
    compiled: Cost | None
    """Cost of the program that the TPU compiler made; null if there is none."""
    overlapped_share: float | None
    """Share of the bytes sent, 0 to 1, that `compiled` sends while the device computes; null without a program, or if
    nothing is sent."""
    problems: list[str]
    """Why it is invalid, or why there is no `compiled`; one line each."""
    wiring: list[Wiring]
    """The links that each mesh axis uses."""
    pipeline: PipelineInfo | None
    """Stages of its pipeline; null if it has none."""
    settings: dict[str, Choice]
    """Settings of `--set` that a search chose; else empty."""
    fit: Fit | None
    """What was compiled to make it fit; null unless `--fit` asks for it and it is too large."""
    largest_batch: int | None
    """The largest batch size in `fit` that fits, with nothing else changed; null if there is none."""
    findings: list[Finding]
    """What is likely to be wrong with how the mesh lies over the slices."""
    tokens_per_chip_hour: float | None
    """Tokens that a chip trains in an hour, by the step time of `compiled`, else of `estimate`; null if unknown."""
    tokens_per_dollar: float | None
    """The same ÷ the `--price` of the chip; null without one."""


class PlanReport(Struct, frozen=True, kw_only=True):
    """Predictions for one step under each preset on a slice; nothing is measured."""

    schema: int = SCHEMA
    """Version of this schema; grows when a field changes its meaning or is removed."""
    model: str
    """Name of the model."""
    topology: str
    """The slice, such as `v5p:4x4x4`; of several topologies the first."""
    slices: int
    """Number of such slices, connected by DCN."""
    recommendation: str
    """The best one of each topology and why, a sentence each."""
    rows: list[PlannedPreset]
    """Topology by topology, best first: presets that fit by step time, then those that are too large by how much, then
    those of unknown cost, then invalid ones. Of a search, those that fit by its goal, compiled ones first."""
    searches: list[SearchReport]
    """With `--search`, what was found on each topology."""


def plan_report(*boards: Board, prices: Prices | None = None, searches: Sequence[SearchReport] = ()) -> PlanReport:
    """Returns the JSON form of boards, each ranked. `searches`: that of each board, or none."""
    goals: list[Goal | None] = [search.goal for search in searches] or [None] * len(boards)
    planned = [(board, load_topology(board.topology)) for board in boards]
    first, topology = planned[0]
    return PlanReport(
        model=first.model,
        topology=topology.name,
        slices=topology.slices,
        recommendation="; ".join(
            recommendation(board.rows, where.title, goal) for goal, (board, where) in zip(goals, planned, strict=True)
        ),
        rows=[
            _planned(row, where, prices or {})
            for goal, (board, where) in zip(goals, planned, strict=True)
            for row in in_order(board.rows, goal)
        ],
        searches=list(searches),
    )


def _planned(row: Row, topology: Topology, prices: Prices) -> PlannedPreset:
    cost, tokens = row.timed, yield_of(row, topology, prices)
    return PlannedPreset(
        preset=row.preset,
        topology=topology.name,
        slices=topology.slices,
        mesh=row.mesh,
        verdict=row.verdict,
        bound=cost.bound if cost else None,
        estimate=row.estimate,
        no_estimate=row.no_estimate,
        compiled=row.compiled,
        overlapped_share=row.compiled.overlapped_share if row.compiled else None,
        problems=row.problems,
        wiring=row.wiring,
        pipeline=row.pipeline,
        settings=row.settings,
        fit=row.fit,
        largest_batch=row.fit.largest_batch if row.fit else None,
        findings=row.findings,
        tokens_per_chip_hour=tokens.per_chip_hour,
        tokens_per_dollar=tokens.per_dollar,
    )
