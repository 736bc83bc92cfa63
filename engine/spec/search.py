"""Requests for a search."""

from typing import Literal

from msgspec import Struct

Goal = Literal["tokens-per-second", "fits-largest-batch", "least-traffic"]
"""Most tokens of all devices per second, most sequences in a step, or least bytes that a device sends per token."""


CHOSEN = ("batch_size", "remat", "accumulate_steps")


class SearchRequest(Struct, frozen=True, kw_only=True):
    goal: Goal = "tokens-per-second"
    kept: list[str] = []
    """Settings that keep their values, such as `batch_size`."""
    is_mesh_fixed: bool = False
    """Search only settings of the named presets: what makes them fit."""
    minutes: float = 10.0
