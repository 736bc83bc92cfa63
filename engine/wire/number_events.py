"""Events of the numbers inside arrays: parameters, gradients, updates, moments, activations and experts."""

import math

from msgspec import Struct

from ..base import formatting
from .event import Event, Level

UPDATE = "update."
"""Begins the name of an array of updates; the name of their parameter follows."""
STANDS_OUT = 10.0
"""A value stands out if it is this many times the others' median, or less than one part in as many."""


class ShardNumbers(Struct, frozen=True):
    """What one device holds of an array, where it stands out."""

    device: int
    """Id of the device."""
    ranges: list[list[int]]
    """First index and end of each dim of the shard; of one layer of a stacked array, dim 0 is that layer."""
    rms: float
    """Root mean square of the shard's finite elements."""
    max: float
    """Largest magnitude of its finite elements."""
    nonfinite: int
    """Elements that are NaN or infinite."""
    usual: float
    """Median of the root mean squares of the array's shards, of this layer."""


class ArrayNumbers(Struct, frozen=True):
    """Numbers of one array; lists have a value for each layer of a stacked array, else one."""

    name: str
    """The array's name; of an update, its parameter's after `update.`."""
    kind: str
    """`parameter`, `moment`, `variable`, `gradient`, `update` or `activation`."""
    is_stacked: bool
    """Whether the lists are of layers."""
    rms: list[float]
    """Root mean square of all finite elements."""
    max: list[float]
    """Largest magnitude of all finite elements."""
    mean: list[float]
    """Mean of all finite elements."""
    zeros: list[float]
    """Share of elements that are exactly 0."""
    nonfinite: list[int]
    """Elements that are NaN or infinite."""
    shards: list[ShardNumbers] = []
    """Shards that stand out: one that holds a non-finite element, or whose root mean square is ten times the median of
    the array's shards or a tenth of it. At most eight, the worst first."""


class ExpertNumbers(Struct, frozen=True):
    """How tokens are spread over experts, layer by layer."""

    load: list[list[float]]
    """Tokens of each layer and expert ÷ their fair share: [layers][experts]."""
    dropped: list[float] | None
    """Share of each layer's tokens × choices that found no place in their expert; null without a capacity."""
    logits_max: list[float]
    """Largest magnitude of each layer's router logits."""
    device_parts: int
    """Parts over which the active preset splits the experts, in order; 1 if every device has all."""


MOST_INDICES, MOST_DEVICES = 8, 4
"""Indices along a dim, and devices, that are written out."""


class NonfiniteOrigin(Struct, frozen=True, kw_only=True):
    """Where the first value of a step that is not finite comes from: an operation, or an array before the step."""

    what: str
    """The scalar that is not finite: `loss`, `grad_norm` or `update_norm`."""
    is_nan: bool
    """Whether the value is NaN; else it is infinite."""
    name: str
    """The array; of an operation, the first value with a name that its result is part of, or empty."""
    kind: str
    """`activation` for an operation; else the kind of the array: `parameter`, `moment`, `variable` or `batch`."""
    shape: list[int]
    """Shape of the value."""
    dims: list[str]
    """Logical axis of each dim, empty where unknown."""
    indices: list[list[int]]
    """Indices of the elements along each dim, the first `MOST_INDICES`."""
    elements: int
    """How many elements are not finite; of an activation only NaN if it is."""
    devices: list[int]
    """Ids of the devices that hold them, of an operation by the rules; empty if unknown."""
    operation: str = ""
    """The primitive, such as `exp`; empty for an array."""
    scope: str = ""
    """Named scopes around the operation."""
    is_backward: bool = False
    """Whether it is in the backward pass."""
    layer: int | None = None
    """The layer, from 0; null outside the blocks."""
    source: str = ""
    """`file:line` of the operation, outside libraries."""
    largest_input: float | None = None
    """Largest finite magnitude of its inputs."""

    @property
    def line(self) -> str:
        """The origin in words."""
        held = f" on device {self.device_words}" * bool(self.devices)
        if not self.operation:
            return f"{self.kind} {self.name} before the step: {self.element_words}{held}"
        layer = "" if self.layer is None else f", layer {self.layer}"
        at = f" ({formatting.short_source(self.source)})" * bool(self.source)
        way = f" on the way to {self.name}" * bool(self.name)
        inputs = "" if self.largest_input is None else f"; largest finite input {self.largest_input:.3g}"
        backward = ", backward pass" * self.is_backward
        scope = f" in {self.scope}" * bool(self.scope)
        return f"`{self.operation}`{scope}{at}{layer}{backward}{way}: {self.element_words}{held}{inputs}"

    @property
    def element_words(self) -> str:
        """How many elements are not finite, and where: `1 of 16 elements infinite (batch 5)`."""
        where = "; ".join(map(_indices, self.dims, self.indices, self.shape))
        value = "NaN" if self.is_nan else "infinite"
        return f"{self.elements:,} of {math.prod(self.shape):,} elements {value}{f' ({where})' * bool(where)}"

    @property
    def device_words(self) -> str:
        return f"{', '.join(map(str, self.devices[:MOST_DEVICES]))}{' …' * (len(self.devices) > MOST_DEVICES)}"


def _indices(dim: str, indices: list[int], size: int) -> str:
    if len(indices) == size or not indices:
        return f"all of {dim}" if dim else "all"
    first, *_, last = [indices[0], *indices]
    listed = f"{first} to {last}" if last - first == len(indices) - 1 > 1 else ", ".join(map(str, indices))
    return f"{dim} {listed}{' …' * (len(indices) == MOST_INDICES)}".strip()


class Explaining(Event, frozen=True):
    """A step whose loss or gradient is not finite is repeated from the state before it, to find where it comes from."""

    step: int
    """The step."""
    from_step: int
    """Steps done at the checkpoint from which it is repeated; 0 for a new state."""

    LEVEL = Level.WARNING

    @property
    def line(self) -> str:
        back = f"from step {self.from_step:,}" if self.from_step else "from the start"
        return f"step {self.step:,} is not finite: repeating {back} to find where it comes from"


class NonfiniteExplained(Event, frozen=True):
    """Where the loss or gradient of a step became not finite. The run is as before that step."""

    step: int
    """The step; the run has done one step less."""
    origin: NonfiniteOrigin | None
    """The first non-finite value; null with a problem."""
    problem: str | None = None
    """Why it is unknown; null if it is not."""
    seconds: float = 0.0
    """Seconds that it took."""

    LEVEL = Level.WARNING

    @property
    def line(self) -> str:
        found = self.origin.line if self.origin else f"unknown: {self.problem}"
        return f"step {self.step:,}, first non-finite value: {found}"


class NumbersMeasured(Event, frozen=True):
    """Numbers of every array at a step: parameters and moments before it, its gradients, updates and activations."""

    step: int
    """The step whose gradients these are; parameters are those after step `step` - 1."""
    preset: str
    """The active preset."""
    seconds: float
    """Seconds that training waited for them."""
    arrays: list[ArrayNumbers]
    """Numbers of each array, in the order of the state."""
    experts: ExpertNumbers | None = None
    """Load of the experts; null for models without."""
    problem: str | None = None
    """Why there are none; null if there are."""

    @property
    def level(self) -> Level:
        return Level.WARNING if self.problem else Level.UNLOGGED

    @property
    def line(self) -> str:
        return f"step {self.step:,}: no numbers of arrays: {self.problem}" if self.problem else ""
