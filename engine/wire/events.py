"""What happens in a run. All of it in one file, long as it is: it is the vocabulary of `events.jsonl`."""

from typing import Literal

from msgspec import Struct

from ..spec.config import RunConfig, WatchedRun
from ..spec.pipeline_info import PipelineInfo
from .descriptions import (
    ArrayInfo,
    CheckpointInfo,
    CollectiveInfo,
    CorpusInfo,
    DeviceInfo,
    Digest,
    HostInfo,
    HostStatus,
    MemoryInfo,
    MeshInfo,
    PresetInfo,
    ProductInfo,
    RematerializationInfo,
    Weighed,
)
from .version import VERSION


class Event(Struct, frozen=True, tag=True, kw_only=True):
    """Something that happened. `seq` counts from 1 without gaps; 0 for what only one viewer is told."""

    seq: int = 0
    time: float = 0.0
    """Seconds since the epoch, as the engine's clock has it."""


class Welcome(Event, frozen=True):
    """The answer to `Hello`: from now on the viewer hears what happens. What happened before is in the file."""

    protocol: int = VERSION


class EngineStarted(Event, frozen=True):
    """The process is there; jax is not loaded yet."""

    protocol: int
    pid: int
    config: RunConfig | None
    watched: WatchedRun | None = None
    """In the place of `config` where the loop is not ours."""

    @property
    def about(self) -> RunConfig | WatchedRun:
        about = self.config or self.watched
        assert about, "one of them is always told"
        return about


class EngineReady(Event, frozen=True):
    """Devices found, corpus read, presets checked. What is None is not known of a run that is only watched."""

    versions: dict[str, str]
    devices: list[DeviceInfo]
    simulated: bool
    """The devices are CPU cores pretending to be several."""
    memory_limit: int | None
    """Bytes that one device has for the run, as far as can be told."""
    warnings: list[str]
    dtype: str | None
    """Of the computation; None where only a user's model knows."""
    parameters: int
    """Trainable elements, without padding rows."""
    padding_parameters: int
    tokens_per_step: int | None
    flops_per_step: float | None
    """Of the model (`task.flops_per_step`), not of what the compiler made of it."""
    corpus: CorpusInfo | None
    presets: list[PresetInfo]
    preset_problems: list[str]
    hosts: list[HostInfo] = []
    """Where there are several processes."""
    counted: Literal["tokens", "examples"] = "tokens"
    """What `tokens_per_step` is of: examples where a user's function makes the batches."""


Phase = Literal["wait", "trace", "lower", "compile", "movers"]
"""Of a compilation: behind another one; Python to jaxpr; jaxpr to HLO; HLO to machine code; the moves of the state."""


class PresetCompiling(Event, frozen=True):
    """From now on the compiler is in this phase of what the preset needs."""

    preset: str
    phase: Phase = "wait"
    ahead: bool = False
    """No switch waits for it yet."""


class AheadEnded(Event, frozen=True):
    """What is compiled ahead is ready, or is not waited for any more."""

    preset: str
    problem: str | None
    """Why it is not ready."""


class PresetCompiled(Event, frozen=True):
    """The program of a preset is ready; its layout will hold for as long as the preset is active."""

    preset: str
    compile_seconds: float | None
    """None where others compiled it."""
    from_cache: bool
    """The step's machine code was there from an earlier start."""
    mesh: MeshInfo
    arrays: list[ArrayInfo]
    """Of the state and the batch."""
    collectives: list[CollectiveInfo] | None
    """None where the compiler's text cannot be read or is not there."""
    memory: MemoryInfo | None
    """None where the backend does not tell."""
    pipeline: PipelineInfo | None = None
    idle_rules: list[str] = []
    """Logical axes that the preset splits, and that no array of a user's model has."""
    products: list[ProductInfo] = []
    """The one with most operations first. None are told of a run that is only watched, or of a text we cannot read."""


class ProgramsKept(Event, frozen=True):
    """Compiled programs in memory, to which a switch compiles nothing; reported when they change."""

    presets: list[str]
    """Least recently used first."""
    bytes: int
    """Of host memory, estimated."""
    limit_bytes: int


class PresetInspected(Event, frozen=True):
    """What had to be asked of the compiler apart: layouts inside the step, and its warnings."""

    preset: str
    arrays: list[ArrayInfo]
    """Gradients and activations. One of the stacked blocks stands for all."""
    rematerializations: list[RematerializationInfo]
    problem: str | None
    """Why layouts are missing."""


class PresetAdded(Event, frozen=True):
    """The run has one more preset, which was made in it."""

    preset: PresetInfo


class PresetWeighed(Event, frozen=True):
    """The answer to `WeighPreset`; told to the one viewer that asked."""

    number: int
    before: Weighed
    after: Weighed


class TrainingStarted(Event, frozen=True):
    preset: str
    step: int = 0
    """Done before, by an engine of the same run."""


class StepsDone(Event, frozen=True, gc=False):
    """A batch of steps, a few a second. `losses` and `step_seconds` are in order and end with step `step`.

    A long history is made of these, so the garbage collector is spared them: they are never part of a cycle.
    """

    step: int
    losses: list[float | None]
    """None where the loss was not a number or infinite; then `nonfinite` names the field."""
    step_seconds: list[float]
    input_wait_seconds: float | None
    """In which the devices waited for the batches of these steps, at most: what is fetched beside a step costs none.
    None where the run is only watched."""
    nonfinite: list[str] = []


class MemoryMeasured(Event, frozen=True):
    """Bytes of the fullest device; told when they change."""

    source: Literal["allocator", "live arrays"]
    bytes_in_use: int
    peak_bytes: int | None
    """The allocator's, since the engine began. Temporaries of a program may be missing from it."""
    limit_bytes: int | None


class HostsMeasured(Event, frozen=True):
    """Every few seconds, where there are several processes."""

    hosts: list[HostStatus]


class HostsLost(Event, frozen=True):
    """Processes that are gone; the others end as well, since each of them holds a part of the state."""

    reasons: dict[int, str]
    """By process."""
    hosts: list[HostStatus]
    """As each was last seen."""


class Switching(Event, frozen=True):
    """Training stands still while the state moves."""

    to_preset: str
    step: int


class Switched(Event, frozen=True):
    """The receipt of a switch."""

    from_preset: str
    to_preset: str
    step: int
    """Steps done before the switch; step + 1 is the first under the new preset."""
    arrays: int
    bytes_moved: int
    """Bytes that a device received and did not hold before, summed over devices."""
    stall_seconds: float
    """From the end of the last step under the old preset to the state's arrival under the new one, verified."""
    compile_seconds: float
    """Spent in the background for this switch; 0 where everything was kept from before."""
    digests_equal: bool
    loss_before: float | None
    digest: Digest = "sum32"


class SwitchFailed(Event, frozen=True):
    """The old preset goes on as if nothing had been asked."""

    to_preset: str
    step: int
    problems: list[str]
    preset: str = ""
    """The one that trains; not told by older engines."""


class SwitchCancelled(Event, frozen=True):
    to_preset: str


class CheckpointSaving(Event, frozen=True):
    """The state is copied; writing goes on beside the steps."""

    step: int
    stall_seconds: float
    """In which training stood still for it."""


class CheckpointSaved(Event, frozen=True):
    """It is on the disk, and what was written was read again for its digests."""

    step: int
    bytes: int
    arrays: int
    seconds: float
    """From the copy to the end."""


class CheckpointFailed(Event, frozen=True):
    """Nothing was kept of it; training goes on."""

    step: int
    problems: list[str]


class CheckpointDamaged(Event, frozen=True):
    """One that was found damaged when it was wanted, and renamed."""

    step: int
    problems: list[str]
    set_aside: str


class CheckpointsKept(Event, frozen=True):
    """All that the run can go on from, oldest first; told when that changes."""

    checkpoints: list[CheckpointInfo]


class Restored(Event, frozen=True):
    """The receipt of a checkpoint that was loaded."""

    step: int
    """Steps done: step + 1 is the next."""
    from_preset: str
    from_devices: int
    preset: str
    arrays: int
    seconds: float
    """To check the files, load, and compare the digests."""
    digests_equal: bool
    rolled_back: list[int]
    """Later checkpoints, which were set aside."""
    digest: Digest = "sum32"


class RestoreFailed(Event, frozen=True):
    """The state is the one from before."""

    step: int
    problems: list[str]


class Profiling(Event, frozen=True):
    """The next `steps` steps are traced."""

    step: int
    """Done before."""
    steps: int


class ProfileWriting(Event, frozen=True):
    """The steps are traced. Training stands still while the trace is written, which may take longer than they did."""

    step: int
    steps: int


class Profiled(Event, frozen=True):
    """The trace of the `steps` steps up to `step` is written."""

    step: int
    steps: int
    directory: str
    """For `xprof --logdir`; it may hold traces from before."""


class ProfileFailed(Event, frozen=True):
    """Training goes on."""

    step: int
    problems: list[str]


class Paused(Event, frozen=True):
    step: int
    problem: str | None = None
    """Why the engine paused by itself, and what to do."""


class Resumed(Event, frozen=True):
    step: int


class Stalled(Event, frozen=True):
    """Nothing has happened for a while, though nothing is waited for: no step, no compilation, no save."""

    seconds: float
    where: str
    """`function (file:line)` in which the training thread is, or the user's code that it waits for."""


class CommandRefused(Event, frozen=True):
    """Told to the one viewer that sent it."""

    problem: str
    protocol: int | None = None
    """The engine's, where it refuses the viewer for speaking another one."""


class Failed(Event, frozen=True):
    """The run cannot go on. `refused` where the request was at fault and nothing had begun."""

    problems: list[str]
    refused: bool


class EngineStopped(Event, frozen=True):
    """The last event of a run that ended by itself or was told to."""

    step: int
    reason: Literal["finished", "stopped", "signalled"]


class EngineLost(Event, frozen=True):
    """Not sent by an engine: what a viewer concludes when one is gone without a word."""

    reason: str
    process: int = 0
    """Of several processes, the one that was gone first, as far as can be known from here."""


class Disconnected(Event, frozen=True):
    """Not sent by an engine: this viewer does not hear it any more, though it goes on, or cannot read how it ended."""

    reason: str


class Inspection(Struct, frozen=True, kw_only=True):
    """What is to be known of one preset on some devices without training; not an event."""

    devices: list[DeviceInfo]
    versions: dict[str, str]
    flops_per_step: float
    compiled: PresetCompiled
    inspected: PresetInspected


AnyEvent = (
    Welcome
    | EngineStarted
    | EngineReady
    | PresetCompiling
    | PresetCompiled
    | AheadEnded
    | ProgramsKept
    | PresetInspected
    | PresetAdded
    | PresetWeighed
    | TrainingStarted
    | StepsDone
    | MemoryMeasured
    | HostsMeasured
    | HostsLost
    | Switching
    | Switched
    | SwitchFailed
    | SwitchCancelled
    | CheckpointSaving
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointDamaged
    | CheckpointsKept
    | Restored
    | RestoreFailed
    | Profiling
    | ProfileWriting
    | Profiled
    | ProfileFailed
    | Paused
    | Resumed
    | Stalled
    | CommandRefused
    | Failed
    | EngineStopped
    | EngineLost
    | Disconnected
)
