"""Events of steps: training, evaluations, memory, samples and pauses."""

from typing import Literal

from ..base import formatting
from ..spec.config import Sampling
from .event import Event, Level


class TrainingStarted(Event, frozen=True):
    """Training begins."""

    preset: str
    """The active preset."""
    step: int = 0
    """Number of steps done before, in earlier starts of the run."""

    @property
    def line(self) -> str:
        return f"training under {self.preset}" + (f" from step {self.step:,}" if self.step else "")


class StepsDone(Event, frozen=True, gc=False):
    """Steps completed since the last such event, a few events per second. Lists are in order and end with step `step`.

    A long history consists of these, so the garbage collector does not track them: they are never part of a cycle.
    """

    LEVEL = Level.UNLOGGED

    step: int
    """The last completed step; steps count from 1."""
    losses: list[float | None]
    """Loss of each step; null if it is NaN or infinite: then `nonfinite` names the field."""
    step_seconds: list[float]
    """Duration of each step."""
    input_wait_seconds: float | None
    """Upper bound of the time that devices waited for these steps' batches; prefetching during a step counts as 0. Null
    with an external loop."""
    nonfinite: list[str] = []
    """Names of fields in which null replaces a NaN or infinity."""
    metrics: dict[str, list[float | None]] = {}
    """Other scalars of the steps by name; null if one is not finite or the step has none. Of an engine: `grad_norm`
    (before clipping), `update_norm`, `param_norm`, `learning_rate`, what is added to the loss (`balance_loss`,
    `z_loss`), and what a user's `loss` returns beside it."""

    @property
    def line(self) -> str:
        loss = self.losses[-1]
        norm = self.metrics.get("grad_norm", [None])[-1]
        gradient = "" if norm is None else f"   grad norm {norm:.4g}"
        words = f"{loss:.4f}" if loss is not None else "not finite" if self.nonfinite else "–"
        return f"step {self.step:,}: loss {words}{gradient}"


class Spiked(Event, frozen=True):
    """The loss or the norm of the gradient is far above the last 100 steps: its robust z-score, the distance from their
    median in deviations, is above 10."""

    LEVEL = Level.WARNING

    step: int
    """The step with the value."""
    name: str
    """`loss` or `grad_norm`."""
    value: float
    """Value of the scalar."""
    usual: float
    """Median of the steps before."""
    deviation: float
    """1.4826 × the median absolute deviation of the steps before, at least 1 % of `usual`. Norms are compared by their
    logarithms: then it is the distance of one deviation upwards."""
    rose_before: dict[str, int] = {}
    """Other scalars that had left their course before, with a z-score above 5, and since which step."""

    @property
    def line(self) -> str:
        usual = f"{self.usual:.4g} ± {self.deviation:.2g}"
        first = ", ".join(f"{name} since step {step:,}" for name, step in self.rose_before.items())
        return f"step {self.step:,}: {self.name} {self.value:.4g}, usually {usual}" + (
            f"; before it: {first}" * bool(first)
        )


class StepSkipped(Event, frozen=True):
    """The loss or gradient of a step was not finite, and the step has changed nothing but the number of steps."""

    LEVEL = Level.WARNING

    step: int
    """The step."""
    skipped: int
    """Steps skipped since the engine has started, with this one."""

    @property
    def line(self) -> str:
        return f"step {self.step:,} skipped: its loss or gradient is not finite ({self.skipped:,} skipped so far)"


class Evaluated(Event, frozen=True):
    """The held-out data are evaluated, without dropout. Training was paused meanwhile and is not affected."""

    step: int
    """Number of completed steps."""
    loss: float | None
    """Mean loss of the held-out batches; null if it is NaN or infinite: then `nonfinite` names the field."""
    batches: int
    """Number of held-out batches, the same ones in every evaluation."""
    seconds: float
    """Seconds that training was paused."""
    nonfinite: list[str] = []
    """Names of fields in which null replaces a NaN or infinity."""

    @property
    def line(self) -> str:
        loss = "not finite" if self.loss is None else f"{self.loss:.4f}"
        over = f"{formatting.counted(self.batches, 'batch')} in {formatting.seconds(self.seconds)}"
        return f"step {self.step:,}: held-out loss {loss} over {over}"


class MemoryMeasured(Event, frozen=True):
    """Bytes in use on the devices of process 0; reported when they change."""

    LEVEL = Level.UNLOGGED

    source: Literal["allocator", "live arrays"]
    """`allocator`: the figure of the device's allocator; `live arrays`: the sum of live arrays, without temporaries, if
    the allocator reports none."""
    bytes_in_use: int
    """On the fullest device; accurate to 5 %: smaller changes are not reported."""
    peak_bytes: int | None
    """Its allocator's peak since the engine started, possibly without temporaries of programs; null if not reported."""
    limit_bytes: int | None
    """Bytes that it has for the run; null if unknown."""
    bytes_by_device: dict[int, int]
    """Bytes in use by device id, as accurate."""


class Sampled(Event, frozen=True):
    """Text sampled from the model between two steps, by a command or every so many steps."""

    step: int
    """Number of completed steps."""
    preset: str
    """The active preset."""
    number: int
    """That of the command; 0 for a sample that was due."""
    sampling: Sampling
    """The request."""
    text: str
    """The text after the prompt; bytes that are not UTF-8 are replaced. Empty with a problem."""
    seconds: float
    """Seconds that training waited, without compiling."""
    compile_seconds: float
    """Seconds that training waited for the sampler to compile; 0 after the first sample under a preset."""
    problem: str | None = None
    """Why there is no text; null if there is."""

    @property
    def line(self) -> str:
        if self.problem:
            return f"step {self.step:,}: no sample: {self.problem}"
        compiled = f" after compiling for {formatting.seconds(self.compile_seconds)}" if self.compile_seconds else ""
        waited = f"{formatting.seconds(self.seconds)}{compiled}"
        return f'step {self.step:,}: "{self.sampling.prompt}" → "{self.text}" in {waited}'


class Paused(Event, frozen=True):
    """Training is paused until `Resumed`."""

    step: int
    """Number of completed steps."""
    problem: str | None = None
    """Why the engine paused by itself, and what to do; null if the user paused it."""

    @property
    def level(self) -> Level:
        return Level.ERROR if self.problem else Level.INFO

    @property
    def line(self) -> str:
        return f"paused at step {self.step:,}" + (f": {self.problem}" if self.problem else "")


class Resumed(Event, frozen=True):
    """Training continues after a pause."""

    step: int
    """Number of completed steps."""

    @property
    def line(self) -> str:
        return f"resumed at step {self.step:,}"


class Stalled(Event, frozen=True):
    """Training makes no progress, although no compilation or save is running."""

    LEVEL = Level.WARNING

    seconds: float
    """Seconds without progress."""
    where: str
    """`function (file:line)` that the training thread is in, or the user's code that it waits for; with the process
    index if it waits for another process."""
    verdict: str = ""
    """Which processes are stuck, and which wait for them; empty until that is certain."""
    stacks: str = ""
    """The file with the stacks of all processes; empty as long as `verdict` is."""

    @property
    def line(self) -> str:
        found = f": {self.verdict}: stacks in {self.stacks}" if self.verdict else ""
        return f"stalled for {formatting.seconds(self.seconds)} in {self.where}{found}"
