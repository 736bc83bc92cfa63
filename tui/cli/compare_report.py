"""The JSON of `shardtui compare`."""

from typing import Literal

from msgspec import Struct

from ...engine.planning.ranking import Row
from ...engine.wire.descriptions import DeviceInfo


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
    rows: list[Row]
    """The presets, fastest first; those that were not measured come last."""
    recommendation: str
    """The best one and why, in a sentence."""
    complete: bool
    """Whether `steps` steps of every preset were measured."""
