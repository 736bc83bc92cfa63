"""Events of the engine: its start and end, its processes and devices, and its connections."""

from typing import Literal

from msgspec import Struct

from ..base import formatting
from ..spec.attempt import Attempt
from ..spec.config import RunConfig, WatchedRun
from ..spec.training_words import training_words
from .descriptions import CorpusInfo, Counted, DeviceInfo, PresetInfo
from .event import VERSION, Event, Level
from .hosts import HostInfo, HostStatus


class EngineStarted(Event, frozen=True):
    """The engine process has started; jax is not loaded yet."""

    protocol: int
    """Protocol version of the engine."""
    pid: int
    """Process id of the engine."""
    config: RunConfig | None
    """The run's configuration; null if the training loop is external."""
    watched: WatchedRun | None = None
    """The run's configuration if the training loop is external; else null."""
    attempt: Attempt | None = None
    """The attempt that begins, of a supervised run; else null."""

    @property
    def about(self) -> RunConfig | WatchedRun:
        about = self.config or self.watched
        assert about, "one of them is always set"
        return about

    @property
    def line(self) -> str:
        begun = "watching" if self.watched else "engine started: run"
        words = training_words(self.about)
        loading = "" if self.watched else "; loading jax"
        after = ""
        if (attempt := self.attempt) and (lost := attempt.lost):
            left = attempt.remaining and f", {attempt.remaining}"
            after = f"; attempt {attempt.number}{left}, after process {lost.process} was lost ({lost.why})"
        return f"{begun} {self.about.run}, process {self.pid}{after}{words and f'; {words}'}{loading}"


class EngineReady(Event, frozen=True):
    """Devices are found, the corpus is read, presets are checked. With an external loop, unknown fields are null."""

    versions: dict[str, str]
    """Versions of Python and the packages, by name."""
    devices: list[DeviceInfo]
    """Devices of all processes."""
    simulated: bool
    """True if the devices are simulated on the CPU."""
    memory_limit: int | None
    """Bytes of memory that one device has for the run; null if unknown."""
    warnings: list[str]
    """Warnings for the user, one line each."""
    dtype: str | None
    """Dtype of the computation; null if a user's model chooses it."""
    parameters: int
    """Number of trainable parameters, without padding rows."""
    padding_parameters: int
    """Number of parameters in padding rows."""
    tokens_per_step: int | None
    """Tokens, or examples (see `counted`), in the global batch; null if unknown."""
    flops_per_step: float | None
    """Model FLOPs, by formula, or counted in the jaxpr of a user's model; not the compiled program's."""
    corpus: CorpusInfo | None
    """Where batches come from; null if unknown."""
    presets: list[PresetInfo]
    """The presets of the run, including those that do not fit."""
    preset_problems: list[str]
    """Why preset files cannot be read, one line each."""
    hosts: list[HostInfo] = []
    """The processes if there are several; else empty."""
    counted: Counted = "tokens"
    """The unit of `tokens_per_step`: `examples` if a user's function makes the batches."""
    held_out: CorpusInfo | None = None
    """The held-out data; null if there are none."""

    @property
    def peak_flops(self) -> float | None:
        """The peak FLOP/s of all devices in bfloat16; None if unknown."""
        from ..spec.topology import chip_of  # the first frame does not wait for it

        chip = chip_of(self.devices[0].kind) if self.devices else None
        return chip.flops * len(self.devices) if chip else None

    @property
    def line(self) -> str:
        padding = f" (+ {formatting.count(self.padding_parameters)} padding)" if self.padding_parameters else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        dtype = f" computed in {self.dtype}" if self.dtype else ""
        corpus = f", {self.corpus.words}" if self.corpus else ""
        return (
            f"{len(self.devices)} × {self.devices[0].kind}{' (simulated)' if self.simulated else ''}, "
            f"{formatting.count(self.parameters)} parameters{padding}{dtype}{corpus}; {versions}"
            + "".join(f"; invalid preset ignored: {problem}" for problem in self.preset_problems)
            + "".join(f"; {warning}" for warning in self.warnings)
        )


class Failed(Event, frozen=True):
    """The run ended with an error."""

    LEVEL = Level.ERROR

    problems: list[str]
    """The problems, one line each."""
    refused: bool
    """True if the request was invalid, so that nothing was started."""
    by_supervisor: bool = False
    """True if the supervisor of the run reports it: the run is not started again."""

    @property
    def line(self) -> str:
        return f"{'refused' if self.refused else 'failed'}: {'; '.join(self.problems)}"


class EngineStopped(Event, frozen=True):
    """The last event of a run that finished or was stopped."""

    step: int
    """Number of completed steps."""
    reason: Literal["finished", "stopped", "signalled"]
    """`finished`: all steps are done; `stopped`: by the user; `signalled`: by a signal."""

    @property
    def line(self) -> str:
        return f"engine stopped ({self.reason}) at step {self.step:,}"


class ClockChanged(Event, frozen=True):
    """The machine's clock was set. Events before have the time by the clock as it was."""

    LEVEL = Level.WARNING

    seconds: float
    """By so much it was set ahead; back if negative."""

    @property
    def line(self) -> str:
        way = "ahead" if self.seconds > 0 else "back"
        return f"the machine's clock was set {formatting.seconds(abs(self.seconds))} {way}"


class EngineLost(Event, frozen=True):
    """The engine died without a last event. Not sent by an engine: a viewer concludes it."""

    LEVEL = Level.ERROR

    reason: str
    """The cause, as far as the viewer can determine it."""
    process: int = 0
    """Index of the process that died first, as far as the viewer can determine it."""

    @property
    def line(self) -> str:
        return f"engine lost: {self.reason}"


class MetricsFailed(Event, frozen=True):
    """The process that writes the curves elsewhere, `--to`, has ended with an error; training goes on. Not sent by an
    engine: the viewer that started it concludes it."""

    LEVEL = Level.WARNING
    TOPIC = "curves"

    problem: str
    """Why the curves are not written, or no longer."""

    @property
    def line(self) -> str:
        return f"curves are not written: {self.problem}"


class HostsMeasured(Event, frozen=True):
    """Status of every process, every few seconds, if there are several."""

    LEVEL = Level.UNLOGGED

    hosts: list[HostStatus]
    """Status of each process."""


class HostsLost(Event, frozen=True):
    """Processes are lost. The others end as well, since each holds a part of the state."""

    LEVEL = Level.ERROR

    reasons: dict[int, str]
    """Reason by process index."""
    hosts: list[HostStatus]
    """Last reported status of each process."""

    @property
    def line(self) -> str:
        return "; ".join(f"process {process} was lost: {reason}" for process, reason in self.reasons.items())


class WrongDevice(Struct, frozen=True):
    """A device that does not hold what its replicas hold."""

    id: int
    """Id of the device."""
    kind: str
    """Its kind, such as `TPU v4`."""
    process: int
    """Index of its process."""
    host: str
    """Name of its host."""


class DevicesDiffer(Event, frozen=True):
    """Replicas of arrays differ. The run goes back to the newest checkpoint, which was saved while they were equal."""

    LEVEL = Level.ERROR

    step: int
    """Number of completed steps when they were compared."""
    devices: list[WrongDevice]
    """The devices that are wrong, or of which one is, if that is not certain."""
    is_certain: bool
    """True if most replicas agree that these devices are wrong; of two replicas that differ, either may be."""
    arrays: list[str]
    """Names of the arrays that differ."""
    problem: str
    """The same in words."""

    @property
    def line(self) -> str:
        return self.problem


class Welcome(Event, frozen=True):
    """The answer to `Hello`. The viewer receives all later events; earlier ones are in `events.jsonl`."""

    LEVEL = Level.DETAIL

    protocol: int = VERSION
    """Protocol version of the engine."""

    @property
    def line(self) -> str:
        return f"connected, protocol {self.protocol}"


class CommandRefused(Event, frozen=True):
    """A command was refused; sent only to the viewer that sent the command."""

    LEVEL = Level.WARNING

    problem: str
    """Why it was refused."""
    protocol: int | None = None
    """Protocol version of the engine, if the viewer was refused for using another; else null."""

    @property
    def line(self) -> str:
        return f"command refused: {self.problem}"


class Disconnected(Event, frozen=True):
    """The viewer lost the engine, which still runs, or cannot read how it ended. Not sent by an engine."""

    LEVEL = Level.ERROR

    reason: str
    """Why the viewer cannot follow the run."""
    reconnects: bool = False
    """Whether the viewer tries to connect again."""

    @property
    def line(self) -> str:
        return f"disconnected: {self.reason}"


class Reconnected(Event, frozen=True):
    """The viewer follows the engine again; the events that it has missed follow. Not sent by an engine."""

    @property
    def line(self) -> str:
        return "connected again"
