"""Describes a run: its devices, meshes, arrays, programs, presets and checkpoints. Structs of plain values."""

from typing import Literal

from msgspec import Struct

from ..base import formatting
from ..spec.preset import PipelineInfo


class DeviceInfo(Struct, frozen=True):
    """A device as jax reports it."""

    id: int
    """The id jax gives it; `device_ids` and `shards` refer to it."""
    platform: str
    """`cpu`, `gpu` or `tpu`."""
    kind: str
    """The hardware's name, such as `TPU v5 lite`."""
    process: int
    """Index of the process that owns it."""
    coords: list[int] | None = None
    """Coordinates on the torus of a TPU slice; null if the backend has none."""
    core: int | None = None
    """Index of the core on its chip; null if the backend has none."""


class MeshInfo(Struct, frozen=True):
    """A device mesh: devices arranged along named axes."""

    axes: dict[str, int]
    """Mesh axis to size, in order."""
    device_ids: list[int]
    """Device ids in row-major order of `axes`."""


Counted = Literal["tokens", "examples"]
"""What a batch has: `examples` if a user's function makes it."""
ArrayKind = Literal["parameter", "moment", "variable", "scalar", "batch", "gradient", "activation"]


class ArrayInfo(Struct, frozen=True, kw_only=True):
    """One array of a step, and how it is laid out."""

    name: str
    """Its module path; moments begin with `mu.` and `nu.`, gradients with `grad.`, the batch with `batch.`."""
    kind: ArrayKind
    """`variable`: non-trainable state that a user's module updates itself, such as the running mean of BatchNorm."""
    shape: list[int]
    """Unsharded shape; stacked blocks are one array with the dim `layers`. An activation inside a block has the shape
    of one layer; in a pipeline, of one micro-batch in every stage."""
    dtype: str
    """Its numpy name."""
    bytes: int
    """Size of the unsharded array."""
    logical_axes: list[str | None]
    """The model's name for each dim; null for a dim without a name."""
    spec: list[list[str]]
    """The intended spec: for each dim the mesh axes that split it, major first; empty for an unsharded dim."""
    compiled_spec: list[list[str]]
    """The spec that the compiler chose, in the same form."""
    reasons: list[str]
    """For each dim the reason for its spec; empty if the training loop is external."""
    dropped_axes: list[list[str]] = []
    """For each dim the mesh axes that a rule requested but that could not be used; empty if all were used."""
    type: str = ""
    """As `jax.typeof` prints it, `float32[512@fsdp,4@model]`; empty if axis types are automatic, because types then do
    not include the sharding."""


class ProductInfo(Struct, frozen=True, kw_only=True):
    """The matrix products and convolutions in one named scope of a compiled step."""

    scope: str
    """Path of named scopes in the code, such as `blocks/attention`; empty outside any scope."""
    flops: float
    """FLOPs of the step as written, summed over devices: 2 per multiply-add, loop iterations included. Counted in the
    jaxpr, so it includes what remat recomputes and the idle ticks of pipeline stages."""
    flops_per_device: float
    """FLOPs of the compiled program on one device; × devices ÷ `flops` is how many times the work is done."""
    source: str
    """`file:line` of the largest; empty if the compiler does not report it."""


class MemoryInfo(Struct, frozen=True, kw_only=True):
    """Predicted bytes on one device, from the compiled step. `parameters`, `moments`, `variables`, `scalars`, `batch`
    and `padding` sum to `arguments`."""

    parameters: int
    """Bytes of the parameters."""
    moments: int
    """Bytes of the optimizer's moments."""
    scalars: int
    """Bytes of single numbers, such as the step."""
    batch: int
    """Bytes of the batch."""
    variables: int = 0
    """Bytes of non-trainable state that a user's module updates itself."""
    padding: int
    """Bytes that the device's memory layouts add to the arguments."""
    arguments: int
    """Bytes of all inputs of the step."""
    outputs: int
    """Bytes of all outputs of the step."""
    aliased: int
    """Bytes of outputs that reuse the memory of donated arguments."""
    temporaries: int
    """Bytes that are allocated only during the step; on TPUs in HBM."""
    peak: int
    """Most bytes in use at once during the step: arguments + outputs - aliased + temporaries."""


class PeakBuffer(Struct, frozen=True, kw_only=True):
    """Memory that a step holds at its peak on one device: an array, or several that use it one after the other."""

    name: str
    """Name of the array of the state or batch that it is, or that it is a copy of; else empty."""
    kind: Literal["argument", "output", "temporary"]
    """`argument`: held from the beginning to the end, also by the output that takes its place if it is donated."""
    bytes: int
    """Bytes in memory."""
    padding: int
    """Of these, bytes that fill up the tiles of the layout."""
    layout: str
    """Dtype, shape on one device and layout, as the compiler prints them; without a layout if nothing is compiled."""
    op_name: str
    """Name that jax gave the operation that computes it, or the instruction's name; empty for an argument."""
    source: str
    """`file:line` of that operation; empty for an argument, or if the compiler does not report it."""
    begin: float
    """When its memory is taken, from 0 to 1 in the order of the program, in which a loop counts once."""
    end: float
    """When it is needed for the last time, in the same order."""


class PeakMemory(Struct, frozen=True, kw_only=True):
    """The peak of a step's memory on one device, rebuilt from the order of the compiled program, or of a traced one."""

    bytes: int
    """Bytes that are live then. The compiler's own figure may differ by a few percent."""
    at: float
    """When the peak is, from 0 to 1 in the order of the program."""
    op_name: str
    """Name that jax gave the operation that runs then."""
    source: str
    """`file:line` of that operation; empty if the compiler does not report it."""
    curve: list[int] = []
    """Bytes that are live over the step: the most in each of at most 200 equal parts of the program. They are in its
    order, where a loop counts once."""


class RematerializationInfo(Struct, frozen=True, kw_only=True):
    """An "involuntary full rematerialization" that the compiler warned of: it replicates an array to reshard it."""

    operation: str
    """The HLO operation's name and type."""
    shape: list[int]
    """Shape of the array."""
    from_sharding: str
    """Sharding before, in the compiler's notation."""
    to_sharding: str
    """Sharding after, in the compiler's notation."""
    op_name: str
    """Name that jax gave the operation."""
    source: str
    """`file:line` of the operation; empty if the compiler does not report it."""


class PresetInfo(Struct, frozen=True, kw_only=True):
    """A preset, and whether it fits the available devices."""

    name: str
    """The name that commands use."""
    summary: str
    """A summary, in one line."""
    teaches: str
    """Its lesson."""
    source: str
    """Path of its file, or `built-in`."""
    mesh: dict[str, int]
    """Mesh axis to size, in order; empty if the mesh cannot be built."""
    fits: bool
    """True if a run can train with it."""
    problems: list[str]
    """Why it does not fit, one line each."""
    pipeline: PipelineInfo | None = None
    """Stages and micro-batches; null if it has no pipeline, or does not fit."""


class PresetListing(Struct, frozen=True, kw_only=True):
    """The presets, and whether each fits the devices."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    devices: int
    """Number of devices."""
    presets: list[PresetInfo]
    """Sorted by name, pitfalls last."""
    problems: list[str]
    """Why preset files cannot be read, one line each."""


class CorpusInfo(Struct, frozen=True):
    """Where batches come from: files, or a user's function."""

    source: str
    """A path, or the function's name."""
    files: int
    """Number of files; 0 for a function, whose `bytes` and `sha256` describe its first batch."""
    bytes: int
    """Total size of the tokens."""
    sha256: str
    """SHA-256 in hexadecimal: of all bytes of text up to 4 GiB, otherwise of the sizes of the files and of samples."""
    tokens: int = 0
    """Number of tokens in token files; 0 for text, where each byte is one, and for a function."""

    @property
    def words(self) -> str:
        if not self.files:
            return f"batches from {self.source} (the first: {formatting.size(self.bytes)}, sha256 {self.sha256[:12]})"
        read = f"{formatting.counted(self.files, 'file')}, sha256 {self.sha256[:12]}"
        if self.tokens:
            return f"{formatting.count(self.tokens)} tokens from {self.source} ({read})"
        return f"{formatting.size(self.bytes)} of text from {self.source} ({read})"


class Preview(Struct, frozen=True, kw_only=True):
    """Traced cost of a preset on these devices. If the preset is invalid, only `problems` is set."""

    problems: list[str]
    """Why it is invalid, one line each."""
    mesh: MeshInfo | None = None
    """Its mesh; null if the preset is invalid."""
    arrays: list[ArrayInfo] = []
    """Arrays of the state and batch. Not compiled, but the compiler keeps the requested shardings of these."""
    argument_bytes: int | None = None
    """Bytes of state and batch on one device; null if the preset is invalid."""
    no_estimate: str = ""
    """Why `peak_bytes` and `sent_bytes` cannot be known; else empty."""
    peak_bytes: int | None = None
    """Peak bytes on one device during a step; null before the step is traced."""
    sent_bytes: dict[str, int] = {}
    """Bytes that one device sends per step, by mesh axis, or axes such as `data × model`."""
