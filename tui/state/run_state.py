"""A viewer's knowledge of a run. `interpreter` alone updates it from events."""

import time
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...engine.spec.attempt import Attempt
from ...engine.spec.config import ModelConfig, RunConfig, WatchedRun
from ...engine.wire.checkpoints import CheckpointInfo
from ...engine.wire.descriptions import ArrayInfo, Counted, MeshInfo, PresetInfo
from ...engine.wire.events import (
    AnyEvent,
    DevicesDiffer,
    Disconnected,
    EngineReady,
    MemoryMeasured,
    NonfiniteExplained,
    PartsMeasured,
    PresetCompiled,
    PresetCompiling,
    PresetInspected,
    PresetPreviewed,
    Profiled,
    ProfileWriting,
    Profiling,
    ProgramsKept,
    Sampled,
    Stalled,
    Switched,
    SwitchFailed,
)
from ...engine.wire.hosts import HostStatus
from ...engine.wire.step_breakdown import StepBreakdown
from .attempts import Attempts
from .goodput import Goodput, WallTime
from .losses import Evaluations, Losses
from .numbers import Numbers

if TYPE_CHECKING:  # the first frame does not wait for them
    from ...engine.planning.ranking import Row
    from .comparison import Comparison
    from .playback import Playback
    from .tour import Tour

RECENT_STEPS = 32
"""The step time is the median of this many steps."""


class Phase(StrEnum):
    """The phase of a run, as the header shows it."""

    STARTING = "starting"
    COMPILING = "compiling"
    TRAINING = "training"
    SWITCHING = "switching"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "crashed"
    DISCONNECTED = "disconnected"


OVER = (Phase.STOPPED, Phase.FAILED, Phase.LOST)
"""Phases of a run without an engine."""


class RunState(Struct):
    """A viewer's model of one run. Long because each field stands here with its meaning, and what follows from them."""

    name: str = ""
    """The name of the run's directory: one that is renamed has another in the events before."""
    host: str = ""
    """Where the run is; empty for this host."""
    phase: Phase = Phase.STARTING
    reconnecting: Disconnected | None = None
    """Why the viewer is not connected, while it tries again."""
    about: RunConfig | WatchedRun | None = None
    """Configuration of the run, or description of the external loop; None before the first event."""
    pid: int | None = None
    ready: EngineReady | None = None
    """Devices, presets and model; None until the engine has found its devices."""
    preset: str = ""
    step: int = 0
    losses: Losses = field(default_factory=Losses)
    is_loss_nonfinite: bool = False
    """Whether the loss of the last step was not finite; False also if there is none, or none is known."""
    curves: dict[str, Losses] = {}
    """Other scalars of the steps, by name."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    numbers: Numbers = field(default_factory=Numbers)
    """The numbers inside arrays, as last measured."""
    nonfinite: NonfiniteExplained | None = None
    """The last explanation of a step that was not finite; None for none."""
    nonfinite_mesh: MeshInfo | None = None
    """The mesh of that step; None if it is not known."""
    wall_time: WallTime = field(default_factory=WallTime)
    """The time since the run's first event, divided into parts."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Seconds of each of the last steps under the active preset."""
    timed: dict[str, deque[float]] = {}
    """Seconds of the last steps under each preset, preferably without a compilation in the background."""
    timed_on: list[str] = []
    """Kinds of the devices on which they ran: after a resume on the same, the times still hold."""
    input_wait: float | None = None
    """Fraction of the last report's time spent waiting for batches; None if the engine cannot measure it."""
    requested: str = ""
    """The preset that this viewer has requested, until the engine answers: under load that takes seconds."""
    compiling: PresetCompiling | None = None
    """The preset that is being compiled, while training continues; None for none."""
    compiled: dict[str, PresetCompiled] = {}
    inspected: dict[str, PresetInspected] = {}
    kept: ProgramsKept | None = None
    stalled: Stalled | None = None
    """Where training is stalled; None again from the next event on."""
    memory: MemoryMeasured | None = None
    hosts: dict[int, HostStatus] = {}
    """By process, as last reported; empty for a run of one process."""
    hosts_lost: dict[int, str] = {}
    """Why processes were lost, by process."""
    differing: DevicesDiffer | None = None
    """The devices that were last found to differ from their replicas; None if none were."""
    playback: "Playback | None" = None
    """The clock of a replay, which takes no commands; None for a run that is followed."""
    tour: "Tour | None" = None
    """The lessons that are shown with the views; None without a tour."""
    followed: int | None = None
    """Id of the device whose shards are marked in every array; None for none. The user chooses it."""
    comparison: "Comparison | None" = None
    """The comparison that this viewer runs, or ran last; None before the first."""
    estimates: "dict[str, Row]" = {}
    """Estimates by preset, once a view has requested them: not from events."""
    previewed: PresetPreviewed | None = None
    switches: list[Switched] = []
    marks: list[tuple[int, str]] = []
    """Step and preset of each switch and of each restored checkpoint; step and words of each anomaly."""
    checkpoints: list[CheckpointInfo] = []
    saving: int | None = None
    profiling: Profiling | ProfileWriting | None = None
    profiled: Profiled | None = None
    measured: list[PartsMeasured] = []
    attempt: Attempt | None = None
    """The start of the engine by a supervisor; None without one."""
    attempts: Attempts = field(default_factory=Attempts)
    sampled: Sampled | None = None
    is_paused: bool = False
    """Stays set during another phase, such as a switch."""
    paused_by: str | None = None
    """Why the engine paused by itself; None if the user paused it."""
    failed_switch: SwitchFailed | None = None
    problems: list[str] = []
    events: list[AnyEvent] = []
    """All events for the log: without steps, memory, numbers, hosts' progress and previews."""

    @property
    def config(self) -> RunConfig | None:
        return self.about if isinstance(self.about, RunConfig) else None

    @property
    def watched(self) -> WatchedRun | None:
        """The external loop that trains the run and takes no commands; None for an engine of its own."""
        return self.about if isinstance(self.about, WatchedRun) else None

    @property
    def has_experts(self) -> bool:
        """Whether the model is known to have experts."""
        model, newest = self.config.model if self.config else None, self.numbers.newest
        return (isinstance(model, ModelConfig) and model.experts > 0) or bool(newest and newest.experts)

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def is_live(self) -> bool:
        """Whether an engine runs or starts, and this viewer is connected to it: a replay has none."""
        return not self.is_over and self.phase is not Phase.DISCONNECTED and not self.playback

    @property
    def now(self) -> float:
        """Seconds since the epoch, on the clock by which the events are shown."""
        return self.playback.now if self.playback else time.time()

    @property
    def goodput(self) -> Goodput:
        return self.wall_time.until(self.now if self.is_live else None)

    @property
    def is_quiet(self) -> bool:
        """Whether the run trains, with no background work that slows the steps down."""
        background = (self.compiling, self.saving, self.profiling)
        return self.phase is Phase.TRAINING and all(job is None for job in background)

    @property
    def pending(self) -> PresetCompiling | None:
        """The compilation for a requested switch; None for none."""
        found = self.compiling
        return found if found and not found.ahead and self.preset and (self.is_live or self.playback) else None

    @property
    def is_comparing(self) -> bool:
        return self.comparison is not None and not self.comparison.is_over

    @property
    def newest(self) -> CheckpointInfo | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def layout(self) -> PresetCompiled | None:
        return self.compiled.get(self.preset)

    @property
    def inspection(self) -> PresetInspected | None:
        return self.inspected.get(self.preset)

    @property
    def breakdown(self) -> StepBreakdown | None:
        """Where the time of a step of the active preset goes, as last profiled; None if it was not."""
        return self.profiled.breakdown if self.profiled and self.profiled.preset == self.preset else None

    @property
    def arrays(self) -> list[ArrayInfo]:
        """All known arrays of the active preset's step."""
        return self.arrays_of(self.preset)

    def arrays_of(self, preset: str) -> list[ArrayInfo]:
        found = (self.compiled.get(preset), self.inspected.get(preset))
        return [array for each in found if each for array in each.arrays] if found[0] else []

    @property
    def first_preset(self) -> str:
        """The preset of the first steps; empty if a restored checkpoint hides it."""
        if not self.marks:
            return self.preset
        is_first = self.switches and self.marks[0] == (self.switches[0].step, self.switches[0].to_preset)
        return self.switches[0].from_preset if is_first else ""

    @property
    def previous(self) -> str | None:
        return self.switches[-1].from_preset if self.switches else None

    @property
    def seconds_per_step(self) -> float | None:
        return _median(self.recent) if self.recent else None

    @property
    def counted(self) -> Counted:
        return self.ready.counted if self.ready else "tokens"

    @property
    def tokens_per_second(self) -> float | None:
        seconds = self.seconds_per_step
        tokens = self.ready.tokens_per_step if self.ready else None
        return tokens / seconds if tokens and seconds else None

    @property
    def flops_per_second(self) -> float | None:
        seconds = self.seconds_per_step
        flops = self.ready.flops_per_step if self.ready else None
        return flops / seconds if flops and seconds else None

    @property
    def flop_utilisation(self) -> float | None:
        """Model FLOP utilisation: the model's FLOP/s by formula ÷ the chips' peak in bfloat16; None if unknown."""
        flops = self.flops_per_second
        peak = self.ready.peak_flops if self.ready else None
        return flops / peak if flops and peak else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the last step; None if the run has none, has taken no step yet, or is over."""
        seconds = self.seconds_per_step
        steps = self.config.steps if self.config and not self.is_over else None
        return (steps - self.step) * seconds if steps and seconds else None

    def seconds_under(self, preset: str) -> float | None:
        return _median(self.timed[preset]) if preset in self.timed else None

    def is_compiled(self, preset: str) -> bool:
        return preset in (self.kept.presets if self.kept else self.compiled)

    def preset_info(self, name: str) -> PresetInfo | None:
        return next((info for info in self.ready.presets if info.name == name), None) if self.ready else None


def _median(seconds: Iterable[float]) -> float:
    from statistics import median  # the first frame does not wait for it

    return median(seconds)
