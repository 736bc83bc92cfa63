"""The JSON of `shardtui compare`."""

from typing import Literal

from msgspec import Struct

from ...engine.analysis.traffic import Flow
from ...engine.planning.ranking import Measured, Row, StepCost, Verdict
from ...engine.spec.pipeline_info import PipelineInfo
from ...engine.wire.descriptions import DeviceInfo


class Prediction(Struct, frozen=True, kw_only=True):
    """The predicted cost of one step on one device."""

    argument_bytes: int
    """Bytes of the state and the batch."""
    peak_bytes: int
    """Most bytes that a step holds at once."""
    capacity_bytes: int | None
    """Bytes that a device has; null if unknown."""
    bytes_sent: int | None
    """Bytes that the device sends to its neighbors on rings per step, without collectives whose count depends on data;
    null if the compiler's text cannot be read."""
    overlapped_share: float | None
    """Share of `bytes_sent`, 0 to 1, that is sent while the device computes; null by formula, or if nothing is sent."""
    collectives: list[Flow] | None
    """Collectives summed by kind and mesh axes; null if the compiler's text cannot be read."""


class ComparedPreset(Struct, frozen=True, kw_only=True):
    """One preset as predicted and as measured."""

    preset: str
    """Name of the preset."""
    mesh: dict[str, int]
    """Size by mesh axis, in order; empty if the mesh does not fill the devices."""
    pipeline: PipelineInfo | None
    """Stages of its pipeline; null if it has none."""
    verdict: Verdict
    """Whether it fits, by the compiled program if there is one, else by formula; `not known` if there is neither."""
    problems: list[str]
    """Why it is invalid, or was not measured; one line each."""
    estimate: Prediction | None
    """Cost by formula; null if the layout is invalid, or for the reason in `no_estimate`."""
    no_estimate: str
    """Why there is no `estimate` for a valid layout: the formulas do not cover it, or the model is a user's; else
    empty."""
    compiled: Prediction | None
    """Cost of the compiled program; null if there is none, or the backend does not report its memory."""
    measured: Measured | None
    """Steps measured on these devices; null if there are none."""


class CompareReport(Struct, frozen=True, kw_only=True):
    """Presets measured one after the other in one engine."""

    schema: int = 2
    """Version of this schema; grows when a field changes its meaning or is removed."""
    model: str
    """Name of the model."""
    devices: list[DeviceInfo]
    """Devices of the run; empty if no preset fits."""
    versions: dict[str, str]
    """Versions of Python and the packages, by name; empty if no preset fits."""
    memory_source: Literal["allocator", "live arrays"] | None
    """Source of `bytes_in_use`: `allocator`, or `live arrays` (without temporaries) if the backend has no allocator
    statistics; null if nothing was measured."""
    steps: int
    """Steps to measure under each preset."""
    warm_up: int
    """Steps after each switch that are not measured. Steps during a compilation, a save or a trace are not measured
    either."""
    rows: list[ComparedPreset]
    """The presets, fastest first; those that were not measured come last."""
    recommendation: str
    """The best one and why, in a sentence."""
    complete: bool
    """Whether `steps` steps of every preset were measured."""


def compared_preset(row: Row) -> ComparedPreset:
    """Returns the JSON form of a row."""
    return ComparedPreset(
        preset=row.preset,
        mesh=row.mesh,
        pipeline=row.pipeline,
        verdict=row.verdict,
        problems=row.problems,
        estimate=_prediction(row.estimate),
        no_estimate=row.no_estimate,
        compiled=_prediction(row.compiled),
        measured=row.measured,
    )


def _prediction(cost: StepCost | None) -> Prediction | None:
    if cost is None:
        return None
    return Prediction(
        argument_bytes=cost.argument_bytes,
        peak_bytes=cost.peak_bytes,
        capacity_bytes=cost.capacity_bytes,
        bytes_sent=cost.bytes_sent,
        overlapped_share=cost.overlapped_share,
        collectives=cost.collectives,
    )
