"""Compares presets by memory, traffic and step time: estimated, compiled and measured."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from ..hlo.finding import Finding
from ..hlo.step_cost import StepCost
from ..spec.preset import Indivisible, PipelineInfo
from ..spec.topology import Wiring
from ..wire.descriptions import Counted

Verdict = Literal["fits", "too large", "not known", "infeasible"]
"""Whether a preset fits the devices; `not known` if there is no cost yet, `infeasible` if it cannot be laid out."""
LEAST_TRUSTED = 500_000_000
"""Bytes: padding and small temporaries are a large part of smaller peaks (measured: -49 to +71 %)."""

Choice = bool | int | str
"""A setting that a search chose, such as `remat` or `batch_size`."""
Settings = dict[str, Choice]


class Measured(Struct, frozen=True, kw_only=True):
    """Steps measured on the available devices."""

    steps: int
    """Number of measured steps, without the warm-up."""
    step_seconds: float
    """Median time of a step."""
    fastest_seconds: float
    """Time of the fastest step."""
    slowest_seconds: float
    """Time of the slowest step."""
    lower_quartile_seconds: float
    """Half of the steps took between this and `upper_quartile_seconds`; outliers do not affect it."""
    upper_quartile_seconds: float
    """See `lower_quartile_seconds`."""
    tokens_per_second: float
    """Tokens per step ÷ `step_seconds`."""
    bytes_in_use: int | None
    """Bytes in use on the fullest device; null if not measured."""


class Row(Struct, frozen=True, kw_only=True):
    """A preset with its settings, and its costs."""

    preset: str
    """Name of the preset."""
    mesh: dict[str, int]
    """Size by mesh axis, in order; empty if the mesh does not fill the devices."""
    verdict: Verdict = "not known"
    """Whether it fits, by `compiled`, else by `estimate`; `not known` if there is neither."""
    settings: Settings = {}
    """Settings of `--set` that a search chose."""
    tokens: int = 0
    """Tokens per step, or examples, see `counted`; 0 if it cannot be laid out."""
    counted: Counted = "tokens"
    """The unit of `tokens` and of rates: `examples` if your own function makes the batches."""
    wiring: list[Wiring] = []
    """The links that each mesh axis uses."""
    pipeline: PipelineInfo | None = None
    """Stages of its pipeline; null if it has none."""
    problems: list[str] = []
    """Why it is invalid, or could not be estimated, compiled or run."""
    indivisible: list[Indivisible] = []
    """Dims that are not divisible by their mesh axes, if there is no other problem."""
    laid_out: bool = False
    """Whether its layout is valid; there may be no cost yet."""
    findings: list[Finding] = []
    """Likely mistakes in how its mesh lies over the slices."""
    no_estimate: str = ""
    """Why there is no estimate although the layout is valid; else empty."""
    estimate: StepCost | None = None
    """Traced cost."""
    compiled: StepCost | None = None
    """Cost of the compiled program."""
    measured: Measured | None = None
    """Measured steps."""

    def __post_init__(self) -> None:
        known: Verdict = "not known" if self.laid_out else "infeasible"
        if self.cost is not None:
            known = "fits" if self.cost.fits else "too large"
        force_setattr(self, "verdict", known)

    @property
    def title(self) -> str:
        """Its name and its settings: `fsdp8 batch_size=64 remat=true`."""
        return title_of(self.preset, self.settings)

    @property
    def is_small(self) -> bool:
        """Whether its peak is an estimate that is too small to be trusted."""
        return self.compiled is None and self.estimate is not None and self.estimate.peak_bytes < LEAST_TRUSTED

    @property
    def cost(self) -> StepCost | None:
        """The more accurate cost: compiled, else estimated; None if there is neither."""
        return self.compiled or self.estimate

    @property
    def timed(self) -> StepCost | None:
        """The more accurate cost with a step time: the estimate for a program that does not fit. None if unknown."""
        return next((cost for cost in (self.compiled, self.estimate) if cost and cost.step_seconds), None)

    @property
    def step_seconds(self) -> float | None:
        """Measured time of a step, else predicted; None if unknown."""
        known = self.measured or self.timed
        return known.step_seconds if known else None


class Board(Struct, frozen=True, kw_only=True):
    """Presets to compare, for one model on one set of devices."""

    model: str
    """Name of the model."""
    topology: str
    """A slice such as `v5p:4x4x4`, or the number of available devices."""
    rows: list[Row]
    """One row per preset; of a search the best candidates."""
    estimated: int = 0
    """Candidates that a search estimated."""
    has_all_estimates: bool = True
    """False if a search had no time to estimate all candidates."""


def title_of(preset: str, settings: Settings) -> str:
    return " ".join([preset, *settings_of(settings)])


def settings_of(chosen: Settings) -> list[str]:
    """Returns settings as `--set` takes them: `remat=true`."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in chosen.items()]
