"""Every event of a run. One file, although it is long, because it is the vocabulary of `events.jsonl`."""

from typing import Literal

from msgspec import Struct

from ..spec.attempt import Attempt
from ..spec.config import RunConfig, Sampling, WatchedRun
from ..spec.model_config import AttentionKernel
from ..spec.pipeline_info import PipelineInfo
from .checkpoints import CheckpointInfo, Digest
from .descriptions import (
    ArrayInfo,
    CollectiveInfo,
    CorpusInfo,
    DeviceInfo,
    MemoryInfo,
    MeshInfo,
    PeakBuffer,
    PeakMemory,
    PresetInfo,
    Preview,
    ProductInfo,
    RematerializationInfo,
)
from .hosts import HostInfo, HostStatus
from .step_breakdown import PartTime, StepBreakdown
from .version import VERSION


class Event(Struct, frozen=True, tag=True, kw_only=True):
    """Something that happened."""

    seq: int = 0
    """Counts from 1 without gaps, across restarts of the run; 0 for an event that is sent to one viewer only."""
    time: float = 0.0
    """Seconds since the epoch, by the engine's clock."""


class Welcome(Event, frozen=True):
    """The answer to `Hello`. The viewer receives all later events; earlier ones are in `events.jsonl`."""

    protocol: int = VERSION
    """Protocol version of the engine."""


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
        """Returns `config`, or `watched` if the training loop is external."""
        about = self.config or self.watched
        assert about, "one of them is always set"
        return about


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
    """Model FLOPs, by formula, or counted in the jaxpr of a user's model; not those of the compiled program."""
    corpus: CorpusInfo | None
    """Where batches come from; null if unknown."""
    presets: list[PresetInfo]
    """The presets of the run, including those that do not fit."""
    preset_problems: list[str]
    """Why preset files cannot be read, one line each."""
    hosts: list[HostInfo] = []
    """The processes if there are several; else empty."""
    counted: Literal["tokens", "examples"] = "tokens"
    """What `tokens_per_step` counts: `examples` if a user's function makes the batches."""
    held_out: CorpusInfo | None = None
    """The held-out data; null if there are none."""


Phase = Literal["wait", "trace", "lower", "compile", "transfers"]
"""Phase of a compilation: queued; Python to jaxpr; jaxpr to HLO; HLO to machine code; the transfers of the state."""


class PresetCompiling(Event, frozen=True):
    """Compilation for a preset has entered a phase."""

    preset: str
    """Name of the preset."""
    phase: Phase = "wait"
    """`wait`: queued; `trace`: Python to jaxpr; `lower`: jaxpr to HLO; `compile`: HLO to machine code; `transfers`: the
    programs that move the state."""
    ahead: bool = False
    """True if it is compiled ahead, with no switch waiting for it."""


class AheadEnded(Event, frozen=True):
    """An ahead-of-time compilation is ready, or was abandoned."""

    preset: str
    """Name of the preset."""
    problem: str | None
    """Why it is not ready; null if it is."""


class PresetCompiled(Event, frozen=True):
    """The program of a preset is ready. Its layout is valid for as long as the preset is active."""

    preset: str
    """Name of the preset."""
    compile_seconds: float | None
    """Seconds of compilation; null if an external loop compiled it."""
    from_cache: bool
    """True if the step's machine code came from the compilation cache."""
    mesh: MeshInfo
    """The mesh built from the devices."""
    arrays: list[ArrayInfo]
    """Arrays of the state and batch."""
    collectives: list[CollectiveInfo] | None
    """Collectives of the program, without those that move nothing between devices; null if the compiled HLO is
    missing or cannot be parsed."""
    memory: MemoryInfo | None
    """Predicted memory on one device; null if the backend does not report it."""
    pipeline: PipelineInfo | None = None
    """Stages and micro-batches; null if the preset has no pipeline."""
    unused_rules: list[str] = []
    """Logical axes that the preset shards but no array of the user's model has."""
    products: list[ProductInfo] = []
    """Matrix products by scope, most FLOPs first; empty with an external loop, or if the HLO cannot be parsed."""
    attention: AttentionKernel | None = None
    """How attention is computed; null for a user's model."""
    at_peak: PeakMemory | None = None
    """The peak of a device's memory, predicted from the order of the program; null with an external loop, and if the
    HLO cannot be parsed."""
    peak_buffers: list[PeakBuffer] = []
    """What fills the memory at that peak: the 20 largest buffers, the largest first; empty if `at_peak` is null."""


class ProgramsKept(Event, frozen=True):
    """Compiled programs in memory: switching to one compiles nothing. Reported when the set changes."""

    presets: list[str]
    """Names of the presets, least recently used first."""
    bytes: int
    """Estimated bytes of host memory they use."""
    limit_bytes: int
    """Limit of `bytes`: beyond it the least recently used are dropped."""


class PresetInspected(Event, frozen=True):
    """What a separate compilation reports: layouts inside the step, and the compiler's warnings."""

    preset: str
    """Name of the preset."""
    arrays: list[ArrayInfo]
    """Gradients and activations. One entry describes all stacked blocks."""
    rematerializations: list[RematerializationInfo]
    """Involuntary full rematerializations that the compiler warned of."""
    problem: str | None
    """Why layouts are missing; null if none are."""


class PresetAdded(Event, frozen=True):
    """A preset that was created in the run is added to it."""

    preset: PresetInfo
    """The new preset, as `shardtui presets` lists it."""


class PresetPreviewed(Event, frozen=True):
    """The answer to `PreviewPreset`, sent only to the viewer that requested it."""

    number: int
    """Number of the request."""
    before: Preview
    """Estimate of the preset it is compared with."""
    after: Preview
    """Estimate of the requested preset."""


class TrainingStarted(Event, frozen=True):
    """Training begins."""

    preset: str
    """The active preset."""
    step: int = 0
    """Number of steps done before, in earlier starts of the run."""


class StepsDone(Event, frozen=True, gc=False):
    """Steps completed since the last such event, a few events per second. Lists are in order and end with step `step`.

    A long history consists of these, so the garbage collector does not track them: they are never part of a cycle.
    """

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


class MemoryMeasured(Event, frozen=True):
    """Bytes in use on the fullest device; reported when they change."""

    source: Literal["allocator", "live arrays"]
    """`allocator`: the figure of the device's allocator; `live arrays`: the sum of live arrays, without temporaries, if
    the allocator reports none."""
    bytes_in_use: int
    """Accurate to 5 %: smaller changes are not reported."""
    peak_bytes: int | None
    """Allocator's peak since the engine started, possibly without temporaries of programs; null if not reported."""
    limit_bytes: int | None
    """Bytes that the device has for the run; null if unknown."""


class HostsMeasured(Event, frozen=True):
    """Status of every process, every few seconds, if there are several."""

    hosts: list[HostStatus]
    """Status of each process."""


class HostsLost(Event, frozen=True):
    """Processes are lost. The others end as well, since each holds a part of the state."""

    reasons: dict[int, str]
    """Reason by process index."""
    hosts: list[HostStatus]
    """Last reported status of each process."""


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


class Switching(Event, frozen=True):
    """Training is paused while the state moves."""

    to_preset: str
    """The preset to switch to."""
    step: int
    """Number of completed steps."""


class Switched(Event, frozen=True):
    """The receipt of a switch."""

    from_preset: str
    """The preset before the switch."""
    to_preset: str
    """The preset after the switch."""
    step: int
    """Number of steps before the switch; step + 1 is the first with the new preset."""
    arrays: int
    """Number of arrays that were moved and compared."""
    bytes_moved: int
    """Bytes that each device received and did not hold before, summed over devices."""
    stall_seconds: float
    """Seconds from the end of the last step to the verified arrival of the state in its new sharding."""
    compile_seconds: float
    """Seconds of background compilation for this switch; 0 if everything was already compiled."""
    digests_equal: bool
    """True if no array has changed."""
    loss_before: float | None
    """Loss of the last step before the switch; null if there is none, or if it was not finite."""
    digest: Digest = "sum32"
    """How arrays were compared: `mix64`, a 64-bit digest that misses an accidental change with probability 2⁻⁶⁴, or
    `sum32`, the wrapping sum of older versions, which misses some changes."""


class SwitchFailed(Event, frozen=True):
    """A switch failed. Training continues with the old preset."""

    to_preset: str
    """The preset to switch to."""
    step: int
    """Number of completed steps."""
    problems: list[str]
    """What went wrong, one line each."""
    preset: str = ""
    """The active preset; empty in events of older versions."""


class SwitchCancelled(Event, frozen=True):
    """A switch was cancelled while its program was compiling."""

    to_preset: str
    """The preset of the cancelled switch."""


class CheckpointSaving(Event, frozen=True):
    """The state is copied to the host; it is written while training continues."""

    step: int
    """Number of completed steps."""
    stall_seconds: float
    """Seconds that training was paused for the copy."""


class CheckpointSaved(Event, frozen=True):
    """A checkpoint is on disk, and its files were read back to digest them."""

    step: int
    """Number of completed steps when the state was copied."""
    bytes: int
    """Size on disk."""
    arrays: int
    """Number of arrays in it."""
    seconds: float
    """Seconds from the start of the copy to the commit."""


class CheckpointFailed(Event, frozen=True):
    """A checkpoint could not be saved and was discarded. Training continues."""

    step: int
    """Number of completed steps when the state was copied."""
    problems: list[str]
    """What went wrong, one line each."""


class CheckpointDamaged(Event, frozen=True):
    """A checkpoint was found damaged when it was read, and was renamed."""

    step: int
    """Step of the checkpoint."""
    problems: list[str]
    """Every file and array that differs from what was written."""
    set_aside: str
    """Its new name."""


class CheckpointsKept(Event, frozen=True):
    """The checkpoints that the run can resume from; reported when they change."""

    checkpoints: list[CheckpointInfo]
    """The checkpoints, oldest first."""


class Restored(Event, frozen=True):
    """The receipt of a restore: a checkpoint was loaded."""

    step: int
    """Step of the checkpoint; step + 1 is the next."""
    from_preset: str
    """The preset it was saved with."""
    from_devices: int
    """Number of devices it was saved on."""
    preset: str
    """The active preset, which it was loaded into."""
    arrays: int
    """Number of arrays that were loaded and compared."""
    seconds: float
    """Seconds to check the files, load, and compare the digests."""
    digests_equal: bool
    """True if every array equals the saved one."""
    rolled_back: list[int]
    """Steps of later checkpoints, which were renamed and set aside."""
    digest: Digest = "sum32"
    """How arrays were compared: `mix64`, a 64-bit digest that misses an accidental change with probability 2⁻⁶⁴, or
    `sum32`, the wrapping sum of older versions, which misses some changes."""


class RestoreFailed(Event, frozen=True):
    """A restore failed. The state is unchanged."""

    step: int
    """Step of the checkpoint."""
    problems: list[str]
    """What went wrong, one line each."""


class Profiling(Event, frozen=True):
    """Profiling of the next `steps` steps begins."""

    step: int
    """Number of steps completed before."""
    steps: int
    """Number of steps to profile."""


class ProfileWriting(Event, frozen=True):
    """The steps are profiled. Training is paused while the trace is written, which may take longer than the steps."""

    step: int
    """Number of completed steps."""
    steps: int
    """Number of profiled steps."""


class Profiled(Event, frozen=True):
    """The trace of the last `steps` steps up to `step` is written."""

    step: int
    """The last profiled step."""
    steps: int
    """Number of profiled steps."""
    directory: str
    """Directory for `xprof --logdir`; it may contain earlier traces."""
    preset: str = ""
    """The preset of the profiled steps; empty in events of older versions."""
    account: StepBreakdown | None = None
    """Where the time of a step went, on all devices; null if a trace cannot be read."""
    problem: str | None = None
    """Why there is no account; null if there is one."""


class ProfileFailed(Event, frozen=True):
    """Profiling failed. Training continues."""

    step: int
    """Number of completed steps."""
    problems: list[str]
    """What went wrong, one line each."""


class PartsMeasured(Event, frozen=True):
    """Where the time of a step went, measured from time to time because of `--profile-every`."""

    step: int
    """The last of the measured steps."""
    preset: str
    """Their preset."""
    step_seconds: float | None
    """Seconds per step; null if the trace cannot be read."""
    parts: list[PartTime]
    """Parts of the step, which add up to it; empty if the trace cannot be read."""
    pause_seconds: float
    """Seconds that training paused for this."""
    problem: str | None = None
    """Why the trace cannot be read; null if it was."""


class Sampled(Event, frozen=True):
    """Text sampled from the model between two steps, by a command or every so many steps."""

    step: int
    """Number of completed steps."""
    preset: str
    """The active preset."""
    number: int
    """That of the command; 0 for a sample that was due."""
    sampling: Sampling
    """What was to be sampled."""
    text: str
    """What follows the prompt; bytes that are not UTF-8 are replaced. Empty with a problem."""
    seconds: float
    """Seconds that training waited, without compiling."""
    compile_seconds: float
    """Seconds that training waited for the sampler to compile; 0 after the first sample under a preset."""
    problem: str | None = None
    """Why there is no text; null if there is."""


class Paused(Event, frozen=True):
    """Training is paused until `Resumed`."""

    step: int
    """Number of completed steps."""
    problem: str | None = None
    """Why the engine paused by itself, and what to do; null if the user paused it."""


class Resumed(Event, frozen=True):
    """Training continues after a pause."""

    step: int
    """Number of completed steps."""


class Stalled(Event, frozen=True):
    """Training makes no progress, although no compilation or save is running."""

    seconds: float
    """Seconds without progress."""
    where: str
    """`function (file:line)` that the training thread is in, or the user's code that it waits for; with process index
    and host if it is another process."""
    verdict: str = ""
    """Which processes are stuck, and which wait for them; empty until that is certain."""
    stacks: str = ""
    """The file with the stacks of all processes; empty as long as `verdict` is."""


class CommandRefused(Event, frozen=True):
    """A command was refused; sent only to the viewer that sent the command."""

    problem: str
    """Why it was refused."""
    protocol: int | None = None
    """Protocol version of the engine, if the viewer was refused for using another; else null."""


class Failed(Event, frozen=True):
    """The run ended with an error."""

    problems: list[str]
    """What went wrong, one line each."""
    refused: bool
    """True if the request was invalid, so that nothing was started."""
    by_supervisor: bool = False
    """True if the supervisor of the run reports it: the run is not started again."""


class EngineStopped(Event, frozen=True):
    """The last event of a run that finished or was stopped."""

    step: int
    """Number of completed steps."""
    reason: Literal["finished", "stopped", "signalled"]
    """`finished`: all steps are done; `stopped`: by the user; `signalled`: by a signal."""


class EngineLost(Event, frozen=True):
    """The engine died without a last event. Not sent by an engine: a viewer concludes it."""

    reason: str
    """The cause, as far as the viewer can determine it."""
    process: int = 0
    """Index of the process that died first, as far as the viewer can determine it."""


class Disconnected(Event, frozen=True):
    """The viewer lost the engine, which still runs, or cannot read how it ended. Not sent by an engine."""

    reason: str
    """Why the viewer cannot follow the run."""


class Inspection(Struct, frozen=True, kw_only=True):
    """What `shardtui inspect` reports about one preset on some devices, without training; not an event."""

    devices: list[DeviceInfo]
    """Devices of the mesh."""
    versions: dict[str, str]
    """Versions of Python and the packages, by name."""
    flops_per_step: float
    """Model FLOPs."""
    compiled: PresetCompiled
    """Layouts of the state and batch, collectives and memory."""
    inspected: PresetInspected
    """Layouts of gradients and activations, and the compiler's warnings."""


StepEvent = TrainingStarted | StepsDone | Evaluated | MemoryMeasured | Sampled | Paused | Resumed | Stalled
SwitchEvent = Switching | Switched | SwitchFailed | SwitchCancelled
PresetEvent = (
    PresetAdded | PresetCompiling | PresetCompiled | AheadEnded | ProgramsKept | PresetInspected | PresetPreviewed
)
CheckpointEvent = (
    CheckpointSaving
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointDamaged
    | CheckpointsKept
    | Restored
    | RestoreFailed
)
ProfileEvent = Profiling | ProfileWriting | Profiled | ProfileFailed | PartsMeasured
HostEvent = HostsMeasured | HostsLost | DevicesDiffer
ConnectionEvent = Welcome | CommandRefused | Disconnected
EngineEvent = EngineStarted | EngineReady | Failed | EngineStopped | EngineLost
"""The life cycle of an engine."""

AnyEvent = (
    StepEvent | SwitchEvent | PresetEvent | CheckpointEvent | ProfileEvent | HostEvent | EngineEvent | ConnectionEvent
)
"""Every event, by topic: the interpreter and the log have one function for each family."""
