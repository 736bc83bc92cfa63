"""What is said of a run: its devices, meshes, arrays, programs, presets and checkpoints. Structs of plain values."""

import math
from typing import Literal

from msgspec import Struct

from ..spec.pipeline_info import PipelineInfo


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
