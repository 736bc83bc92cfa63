"""Events of the numbers inside arrays: parameters, gradients, updates, moments, activations and experts."""

from msgspec import Struct

from .event import Event, Level


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
