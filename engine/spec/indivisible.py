"""A dim that cannot be split as a preset asks for."""

from msgspec import Struct


class Indivisible(Struct, frozen=True):
    """A dim whose size is not divisible by the number of devices that the preset splits it over."""

    logical_axis: str
    """The logical axis of the dim."""
    size: int
    """Elements along the dim."""
    parts: int
    """Devices that it was to be split over."""
