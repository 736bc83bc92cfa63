"""Requests for a search."""

from typing import Literal

from msgspec import Struct

Goal = Literal["tokens-per-second", "fits-largest-batch", "least-traffic"]
"""What a search maximizes, or of traffic minimizes: tokens of all devices per second; sequences of the
largest batch that a step holds at once; bytes that a device sends per token."""


CHOSEN = ("batch_size", "remat", "accumulate_steps")
"""Settings that a search chooses unless they are given."""


class SearchRequest(Struct, frozen=True, kw_only=True):
    """A request for a search."""

    goal: Goal = "tokens-per-second"
    """Measure of the best candidate."""
    kept: list[str] = []
    """Settings that keep their values, such as `batch_size`; the search chooses the others."""
    is_mesh_fixed: bool = False
    """Whether only settings of the named presets are searched, and none is kept: what makes them fit."""
    minutes: float = 10.0
    """After how many minutes it ends with the best so far."""
