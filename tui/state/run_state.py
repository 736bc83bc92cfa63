"""What a viewer knows of a run, and what follows from it. `interpreter` alone updates it from events."""

import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

from ...engine.analysis.layout import shards_differ
from ...engine.analysis.lint import Finding, lint
from ...engine.spec.attempt import Attempt
from ...engine.spec.config import RunConfig, WatchedRun
from ...engine.wire.checkpoints import CheckpointInfo
from ...engine.wire.descriptions import ArrayInfo, PresetInfo
from ...engine.wire.events import (
    AnyEvent,
    DevicesDiffer,
    EngineReady,
    MemoryMeasured,
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
from .attempts import Attempts
from .evaluations import Evaluations
from .losses import Losses
from .wall_time import WallTime

if TYPE_CHECKING:  # the first frame does not wait for them
    from ...engine.planning.ranking import Row
    from .comparison import Comparison
    from .goodput import Goodput
    from .playback import Playback
    from .tour import Tour

RECENT_STEPS = 32
"""The step time is the median of this many steps."""


class Phase(StrEnum):
    """What the run does. The value is shown in the header."""

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


@dataclass
class RunState:
    """A viewer's model of one run. Long because each field stands here with its meaning, and what follows from them."""

    phase: Phase = Phase.STARTING
    """What the run does now."""
    about: RunConfig | WatchedRun | None = None
    """Configuration of the run, or description of the external loop; None before the first event."""
    pid: int | None = None
    """Process id of the engine or of the external loop; None before the first event."""
    ready: EngineReady | None = None
    """Devices, presets and model; None until the engine has found its devices."""
    preset: str = ""
    """Name of the active preset; empty before training."""
    step: int = 0
    """Steps done."""
    losses: Losses = field(default_factory=Losses)
    """Loss of each step."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    """Held-out losses."""
    wall_time: WallTime = field(default_factory=WallTime)
    """The time since the run's first event, divided into parts."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Seconds of each of the last steps under the active preset."""
    timed: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    """Seconds of the last steps under each preset, preferably without a compilation in the background."""
    input_wait: float | None = None
    """Fraction of the last report's time spent waiting for batches; None if the engine cannot measure it."""
    compiling: PresetCompiling | None = None
    """The preset that is being compiled, while training continues; None for none."""
    compiled: dict[str, PresetCompiled] = field(default_factory=dict[str, PresetCompiled])
    """By preset, since the engine started."""
    inspected: dict[str, PresetInspected] = field(default_factory=dict[str, PresetInspected])
    """Gradients and activations by preset, once a view has requested them."""
    kept: ProgramsKept | None = None
    """Compiled programs in memory; None if the engine did not report them."""
    stalled: Stalled | None = None
    """Where training is stalled; None again from the next event on."""
    memory: MemoryMeasured | None = None
    """Memory in use on the fullest device; None until it is measured."""
    hosts: dict[int, HostStatus] = field(default_factory=dict[int, HostStatus])
    """By process, as last reported; empty for a run of one process."""
    hosts_lost: dict[int, str] = field(default_factory=dict[int, str])
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
    estimates: "dict[str, Row]" = field(default_factory=dict[str, "Row"])
    """Estimates by preset, once a view has requested them: not from events."""
    previewed: PresetPreviewed | None = None
    """The last preview that this viewer requested."""
    switches: list[Switched] = field(default_factory=list[Switched])
    """Completed switches, oldest first."""
    marks: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Step and preset of each switch and of each restored checkpoint."""
    checkpoints: list[CheckpointInfo] = field(default_factory=list[CheckpointInfo])
    """Those that the run can resume from, oldest first."""
    saving: int | None = None
    """The step that is being saved, while training continues; None for none."""
    profiling: Profiling | ProfileWriting | None = None
    """The trace that is being recorded or written; None for none."""
    profiled: Profiled | None = None
    """The last profile, with the account of a step; None before the first."""
    measured: list[PartsMeasured] = field(default_factory=list[PartsMeasured])
    """The parts of the step whenever they were measured, in order."""
    attempt: Attempt | None = None
    """The start of the engine by a supervisor; None without one."""
    attempts: Attempts = field(default_factory=Attempts)
    """What went before: who was lost, and what that cost."""
    sampled: Sampled | None = None
    """The last sample of text; None before the first."""
    is_paused: bool = False
    """Stays set during another phase, such as a switch."""
    paused_by: str | None = None
    """Why the engine paused by itself; None if the user paused it."""
    failed_switch: SwitchFailed | None = None
    """The last switch, if it failed."""
    problems: list[str] = field(default_factory=list[str])
    """Why the run failed or crashed, or this viewer was disconnected."""
    events: list[AnyEvent] = field(default_factory=list[AnyEvent])
    """All events for the log: without steps, memory, hosts' progress and previews."""

    @property
    def config(self) -> RunConfig | None:
        """The run's configuration; None for a run in an external loop."""
        return self.about if isinstance(self.about, RunConfig) else None

    @property
    def watched(self) -> WatchedRun | None:
        """The external loop that trains the run and takes no commands; None for an engine of its own."""
        return self.about if isinstance(self.about, WatchedRun) else None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, failed or crashed."""
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
    def goodput(self) -> "Goodput":
        """Where the wall time went, of all engines of the run."""
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
        """Whether this viewer is running a comparison."""
        return self.comparison is not None and not self.comparison.is_over

    @property
    def newest(self) -> CheckpointInfo | None:
        """The newest checkpoint; None if there is none."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def layout(self) -> PresetCompiled | None:
        """The active preset's arrays and mesh; None until it is compiled."""
        return self.compiled.get(self.preset)

    @property
    def inspection(self) -> PresetInspected | None:
        """Gradients and activations of the active preset; None until they are inspected."""
        return self.inspected.get(self.preset)

    @property
    def arrays(self) -> list[ArrayInfo]:
        """All known arrays of the active preset's step."""
        inner = self.inspection.arrays if self.inspection else []
        return [*self.layout.arrays, *inner] if self.layout else []

    @property
    def findings(self) -> list[Finding]:
        """Lint findings of the active preset; empty until it is compiled."""
        if self.layout is None or self.ready is None:
            return []
        return lint(self.layout, self.inspection, self.ready.flops_per_step)

    @property
    def first_preset(self) -> str:
        """The preset of the first steps; empty if a restored checkpoint hides it."""
        if not self.marks:
            return self.preset
        is_first = self.switches and self.marks[0] == (self.switches[0].step, self.switches[0].to_preset)
        return self.switches[0].from_preset if is_first else ""

    @property
    def previous(self) -> str | None:
        """The preset before the last switch; None before the first."""
        return self.switches[-1].from_preset if self.switches else None

    @property
    def changed(self) -> set[str]:
        """Names of the arrays whose sharding the last switch changed."""
        before = self.compiled.get(self.previous or "")
        if before is None or self.layout is None:
            return set()
        inner = self.inspected.get(before.preset)
        old = {array.name: array for array in (*before.arrays, *(inner.arrays if inner else ()))}
        return {
            array.name
            for array in self.arrays
            if array.name in old and shards_differ(old[array.name], array, before.mesh, self.layout.mesh)
        }

    @property
    def seconds_per_step(self) -> float | None:
        """Median time of the last steps under the active preset; None before the first."""
        return median(self.recent) if self.recent else None

    @property
    def counted(self) -> str:
        """`tokens`, or `examples` if a user's function makes the batches."""
        return self.ready.counted if self.ready else "tokens"

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens or examples per second, of all devices; None before the first step."""
        seconds = self.seconds_per_step
        tokens = self.ready.tokens_per_step if self.ready else None
        return tokens / seconds if tokens and seconds else None

    @property
    def flops_per_second(self) -> float | None:
        """The model's FLOP/s by formula, of all devices; None if unknown."""
        seconds = self.seconds_per_step
        flops = self.ready.flops_per_step if self.ready else None
        return flops / seconds if flops and seconds else None

    @property
    def flop_utilisation(self) -> float | None:
        """Model FLOP utilisation: the model's FLOP/s by formula ÷ the chips' peak in bfloat16; None if unknown."""
        from ...engine.spec.topology import peak_flops  # the first frame does not wait for it

        flops, ready = self.flops_per_second, self.ready
        peak = peak_flops(ready.devices[0].kind) if ready and ready.devices else None
        return flops / (peak * len(ready.devices)) if ready and flops and peak else None

    def seconds_under(self, preset: str) -> float | None:
        """Returns the median step time under a preset; None if it did not run."""
        return median(self.timed[preset]) if preset in self.timed else None

    def is_compiled(self, preset: str) -> bool:
        """Returns whether a switch to the preset needs no compilation."""
        return preset in (self.kept.presets if self.kept else self.compiled)

    def preset_info(self, name: str) -> PresetInfo | None:
        """Returns the run's preset of that name; None if it has none."""
        return next((info for info in self.ready.presets if info.name == name), None) if self.ready else None
