"""The wire: events that say what happened and commands that ask for something, as length-prefixed msgpack.

The same events, one JSON object a line, are the run's `events.jsonl`. That file is the history; the socket carries
only what happens from now on, so a viewer that was away reads the file and then listens.
"""

import asyncio
import math
import struct
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ..spec.config import FILE_NAME, MOST_PROFILED, RunConfig, WatchedRun
from ..spec.pipeline_info import PipelineInfo

VERSION = 2
"""Of the messages. A viewer and an engine of two versions do not talk, but for `Stop`."""
LARGEST_COMMAND = 64 * 1024
"""Bytes. Only a preset comes near it."""
LARGEST_EVENT = 64 * 1024 * 1024
"""Bytes. A layout of a model with thousands of arrays stays far below."""

_LENGTH = struct.Struct(">I")


class DeviceInfo(Struct, frozen=True):
    id: int
    platform: str
    kind: str
    process: int
    coords: list[int] | None = None
    """On the torus of a TPU slice."""
    core: int | None = None
    """On its chip."""


class MeshInfo(Struct, frozen=True):
    """Devices on named axes. `device_ids` are in row-major order of `axes`."""

    axes: dict[str, int]
    device_ids: list[int]


class ArrayInfo(Struct, frozen=True, kw_only=True):
    """What one array of a step is and how it is laid out. Holds no data."""

    name: str
    kind: Literal["parameter", "moment", "variable", "scalar", "batch", "gradient", "activation"]
    """`variable`: what a module of the user's changes itself, such as the running mean of BatchNorm."""
    shape: list[int]
    dtype: str
    bytes: int
    logical_axes: list[str | None]
    spec: list[list[str]]
    """As intended: for each dim the mesh axes it is split over, major first; empty for a dim that is whole."""
    compiled_spec: list[list[str]]
    """The same as the compiler has it."""
    reasons: list[str]
    """For each dim, why its spec is what it is; empty where the run is only watched."""
    fell_back: list[list[str]] = []
    """For each dim the mesh axes that a rule asked for and that it could not take; empty where all dims could."""
    type: str = ""
    """As `jax.typeof` prints it, `float32[512@fsdp,4@model]`; empty where axis types are automatic, as no type then
    says how an array lies."""


class CollectiveInfo(Struct, frozen=True, kw_only=True):
    """One collective of a compiled step."""

    kind: str
    """`all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute` …"""
    axes: list[str]
    """The mesh axes along which its devices lie."""
    group_size: int
    """Devices in a group: the product of the axes' sizes, or less where it takes only a part of an axis."""
    count: int | None
    """Times it runs in a step; None where that depends on data."""
    bytes_each: int
    """Of the whole array on one device: what is reduced or exchanged, what a gather yields, what a scatter takes."""
    bytes_per_device: int | None
    """`count` × `bytes_each`: in one step."""
    dtype: str
    shapes: list[list[int]]
    """Of its results on one device."""
    op_name: str
    source: str
    """`file:line` of the operation it belongs to; empty where the compiler does not say."""
    written: bool
    """It stands in the user's code; otherwise the compiler inserted it."""
    gathered: list[str] = []
    """Of a gather: by result the array of the state or the batch whose parts it puts together, empty where it is none
    of these."""
    multiplied: bool = False
    """Of a gather: a matrix product takes what it yields."""


class ProductInfo(Struct, frozen=True, kw_only=True):
    """The matrix products, and convolutions, in one part of a compiled step."""

    scope: str
    """Its named scopes in the code, `blocks/attention`; empty where it has none."""
    flops: float
    """Of the step as it is written, on however many devices: what remat computes again is in it."""
    flops_per_device: float
    """Of one device, as compiled."""
    source: str
    """`file:line` of the largest; empty where the compiler does not say."""


class MemoryInfo(Struct, frozen=True, kw_only=True):
    """Predicted bytes on one device, from the compiled step. The arguments' kinds and `padding` sum to `arguments`."""

    parameters: int
    moments: int
    scalars: int
    batch: int
    variables: int = 0
    """What a module of the user's changes itself."""
    padding: int
    """What the device's layouts add to the arguments."""
    arguments: int
    outputs: int
    aliased: int
    """Of the outputs, what takes the place of arguments."""
    temporaries: int
    peak: int
    peak_source: Literal["compiler", "sum"]
    """`compiler`: its own figure; `sum`: arguments + outputs - aliased + temporaries."""


class RematerializationInfo(Struct, frozen=True, kw_only=True):
    """An "involuntary full rematerialization" that the compiler warned of: it replicates an array to re-split it."""

    operation: str
    """The HLO operation's name and type."""
    shape: list[int]
    from_sharding: str
    to_sharding: str
    op_name: str
    source: str


class PresetInfo(Struct, frozen=True, kw_only=True):
    """A preset as it stands on the devices of this run. `mesh` is empty where it cannot be built."""

    name: str
    summary: str
    teaches: str
    source: str
    mesh: dict[str, int]
    fits: bool
    problems: list[str]
    """Why it cannot run here, one line each."""
    pipeline: PipelineInfo | None = None
    """None where it has none, or does not fit."""


class PresetListing(Struct, frozen=True, kw_only=True):
    """What `shardtui presets --json` prints."""

    schema: int = 1
    devices: int
    presets: list[PresetInfo]
    problems: list[str]
    """Of preset files that cannot be read."""


Digest = Literal["sum32", "mix64"]
"""By what arrays are compared: the 64 bits of `digest.digests`; before these came, the 32 of `digest.linear_sums`."""


class CheckpointInfo(Struct, frozen=True, kw_only=True):
    """A checkpoint that a run can go on from."""

    step: int
    time: float
    preset: str
    devices: int
    loss: float | None
    bytes: int
    digest: Digest = "sum32"

    @property
    def rank(self) -> float:
        """The least is the best: its loss; one whose loss is not known comes last."""
        return math.inf if self.loss is None else self.loss


class CheckedInfo(Struct, frozen=True, kw_only=True):
    """What a check of one checkpoint found: each file and each array against its digest."""

    step: int
    checkpoint: CheckpointInfo | None
    """None where it cannot even say what it is."""
    problems: list[str]


class Verification(Struct, frozen=True, kw_only=True):
    """What `shardtui verify --json` prints."""

    schema: int = 1
    directory: str
    checkpoints: list[CheckedInfo]
    set_aside: list[str]
    """Names of the damaged and the rolled back ones."""


class HostInfo(Struct, frozen=True):
    """One process of a run on several hosts."""

    process: int
    processes: int
    """That there are, as it was told."""
    name: str
    """Of the host."""
    pid: int


class HostStatus(Struct, frozen=True):
    """How one process of several stands, a second ago or less."""

    process: int
    step: int
    """Steps it has done."""
    bytes_in_use: int
    """Of its fullest device."""
    is_stopping: bool = False
    """It was told to stop, which it hands on to process 0."""
    is_closing: bool = False
    """It ends, as all do."""
    problem: str = ""
    """Why it ends, and the run with it."""
    stalled: str = ""
    """`function (file:line)` where it has been for a while."""
    beat: int = 0
    """Counts its reports."""


class CorpusInfo(Struct, frozen=True):
    """Where batches come from: text, or a function of the user's."""

    source: str
    files: int
    """0 for a function: `bytes` and `sha256` are those of its first batch."""
    bytes: int
    sha256: str


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


class Weighed(Struct, frozen=True, kw_only=True):
    """What a preset would be on these devices, by formula. Where it cannot be there are only problems."""

    problems: list[str]
    mesh: MeshInfo | None = None
    arrays: list[ArrayInfo] = []
    """Of the state and the batch; not compiled, but the compiler keeps to what is asked for them."""
    argument_bytes: int | None = None
    """On one device, as the next two."""
    no_estimate: str = ""
    """Why no formula gives the next two."""
    peak_bytes: int | None = None
    sent_bytes: dict[str, int] = {}
    """In a step; by mesh axis, or axes such as `data × model`."""


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


PresetName = Annotated[str, Meta(pattern=rf"^{FILE_NAME.pattern}\Z")]


class Command(Struct, frozen=True, tag=True):
    """Something asked of the engine. It takes effect between two steps."""


class Hello(Command, frozen=True):
    """What a viewer says first."""

    protocol: int = VERSION


class SwitchPreset(Command, frozen=True):
    """Go on under another preset. Asking for the active one takes back a switch that is still being compiled."""

    preset: PresetName


class AddPreset(Command, frozen=True):
    """Keep a new preset with the run, and go on under it."""

    preset: PresetName
    text: str
    """Of its file."""


class WeighPreset(Command, frozen=True):
    """Say what a preset would be, beside another one, with `PresetWeighed`. No step waits for it, nothing is kept."""

    number: int
    """Comes back with the answer."""
    preset: PresetName
    before: str
    """As the text of its file, like `after`."""
    after: str


class PreparePreset(Command, frozen=True):
    """A switch to this preset is likely: compile it while a core is free. In the place of what was likely before."""

    preset: PresetName


class InspectPreset(Command, frozen=True):
    """Ask the compiler for what `PresetInspected` tells. It costs about half a compilation beside the steps."""

    preset: PresetName


class Pause(Command, frozen=True):
    pass


class Resume(Command, frozen=True):
    pass


class StepOnce(Command, frozen=True):
    """One step, then pause."""


class SaveCheckpoint(Command, frozen=True):
    pass


class RestoreCheckpoint(Command, frozen=True):
    """Go back to a checkpoint; later ones are set aside."""

    step: int


class ProfileSteps(Command, frozen=True):
    """Trace the next steps."""

    steps: Annotated[int, Meta(ge=1, le=MOST_PROFILED)]


class Stop(Command, frozen=True):
    """Finish the step, save, and end."""

    unhurried: bool = False
    """However long the save takes: who asks watches whether it moves, and --stop-timeout does not count."""


AnyCommand = (
    Hello
    | SwitchPreset
    | AddPreset
    | WeighPreset
    | PreparePreset
    | InspectPreset
    | SaveCheckpoint
    | RestoreCheckpoint
    | ProfileSteps
    | Pause
    | Resume
    | StepOnce
    | Stop
)

encode_json = msgspec.json.Encoder().encode
_json_decoder = msgspec.json.Decoder(AnyEvent)
decode_event_json, decode_event_lines = _json_decoder.decode, _json_decoder.decode_lines
_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(AnyEvent).decode
_decode_command = msgspec.msgpack.Decoder(AnyCommand).decode


class BadFrame(Exception):
    """A frame that cannot be read: too long, or not one of the messages."""


class UnknownMessage(BadFrame):
    """The frame is whole, and the next one can be read."""


def mismatch(viewer: int, engine: int) -> str:
    """Why the two do not talk, and which side to update."""
    said = f"this viewer speaks protocol {viewer}, the run's engine protocol {engine}: "
    if viewer < engine:
        return f"{said}update shardtui here, or attach with the version that trains the run"
    return f"{said}attach with the version that trains the run, or restart the run under this one"


def frame(message: Event | Command) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_command(reader: asyncio.StreamReader) -> AnyCommand:
    """Raises BadFrame, and IncompleteReadError at the end of the stream."""
    return _decoded(_decode_command, await _read_body(reader, LARGEST_COMMAND))


async def read_event(reader: asyncio.StreamReader) -> AnyEvent:
    """Raises BadFrame, and IncompleteReadError at the end of the stream."""
    return _decoded(_decode_event, await _read_body(reader, LARGEST_EVENT))


async def _read_body(reader: asyncio.StreamReader, largest: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > largest:
        raise BadFrame(f"a frame of {length} bytes: at most {largest}")
    return await reader.readexactly(length)


def _decoded(decode: Any, body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnknownMessage(f"not a message of protocol {VERSION}: {error}") from error
