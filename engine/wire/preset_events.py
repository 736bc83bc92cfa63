"""Events of presets: their compilation, and the switches between them."""

from typing import Literal

from msgspec import Struct

from ..base import formatting
from ..spec.model_config import AttentionKernel
from ..spec.preset import PipelineInfo
from ..spec.training_words import remat_words
from .collective import CollectiveInfo
from .descriptions import (
    ArrayInfo,
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
from .event import Event, Level

Phase = Literal["wait", "trace", "lower", "compile", "transfers"]

PHASES = {
    "wait": "waiting for the compiler",
    "trace": "tracing",
    "lower": "lowering",
    "compile": "compiling",
    "transfers": "compiling the transfers",
}


class PresetCompiling(Event, frozen=True):
    """Compilation for a preset has entered a phase."""

    preset: str
    """Name of the preset."""
    phase: Phase = "wait"
    """`wait`: queued; `trace`: Python to jaxpr; `lower`: jaxpr to HLO; `compile`: HLO to machine code; `transfers`: the
    programs that move the state."""
    ahead: bool = False
    """True if it is compiled ahead, with no switch waiting for it."""

    @property
    def phase_words(self) -> str:
        return PHASES[self.phase]

    @property
    def line(self) -> str:
        return f"{self.preset}: {self.phase_words}{' (precompiling)' if self.ahead else ''}"


class AheadEnded(Event, frozen=True):
    """An ahead-of-time compilation is ready, or was abandoned."""

    preset: str
    """Name of the preset."""
    problem: str | None
    """Why it is not ready; null if it is."""

    @property
    def line(self) -> str:
        return f"{self.preset}: {f'not precompiled: {self.problem}' if self.problem else 'precompiled'}"


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
    remat: bool | str | None = None
    """What the backward pass recomputes: the setting, or the choice of `auto`; null for a user's model."""
    at_peak: PeakMemory | None = None
    """The peak of a device's memory, predicted from the order of the program; null with an external loop, and if the
    HLO cannot be parsed."""
    peak_buffers: list[PeakBuffer] = []
    """The memory at that peak: the 20 largest buffers, the largest first; empty if `at_peak` is null."""

    @property
    def line(self) -> str:
        source = ", from the compilation cache" if self.from_cache else ""
        seconds = "" if self.compile_seconds is None else f" in {formatting.seconds(self.compile_seconds)}"
        parts = [f"{self.attention} attention"] if self.attention else []
        parts += [remat_words(self.remat)] if self.remat else []
        found = f" with {' and '.join(parts)}" if parts else ""
        return f"compiled {self.preset}{found}{seconds}{source}: {formatting.axes(self.mesh.axes)}"


class ProgramsKept(Event, frozen=True):
    """Compiled programs in memory: switching to one compiles nothing. Reported when the set changes."""

    LEVEL = Level.DETAIL

    presets: list[str]
    """Names of the presets, least recently used first."""
    bytes: int
    """Estimated bytes of host memory they use."""
    limit_bytes: int
    """Limit of `bytes`: beyond it the least recently used are dropped."""

    @property
    def line(self) -> str:
        size, limit = formatting.size(self.bytes), formatting.size(self.limit_bytes)
        return f"compiled programs in memory: {', '.join(self.presets)}: {size} of {limit} (estimated)"


class PresetInspected(Event, frozen=True):
    """Results of a separate compilation: layouts inside the step, and the compiler's warnings."""

    LEVEL = Level.DETAIL

    preset: str
    """Name of the preset."""
    arrays: list[ArrayInfo]
    """Gradients and activations. One entry describes all stacked blocks."""
    rematerializations: list[RematerializationInfo]
    """Involuntary full rematerializations that the compiler warned of."""
    problem: str | None
    """Why layouts are missing; null if none are."""

    @property
    def line(self) -> str:
        return f"inspected {self.preset}: {self.problem or f'{len(self.arrays)} gradients and activations'}"


class PresetAdded(Event, frozen=True):
    """A preset that was created in the run is added to it."""

    preset: PresetInfo
    """The new preset, as `shardtui presets` lists it."""

    @property
    def line(self) -> str:
        return f"new preset {self.preset.name}, {self.preset.summary}: {formatting.axes(self.preset.mesh)}"


class PresetPreviewed(Event, frozen=True):
    """The answer to `PreviewPreset`, sent only to the viewer that requested it: at first without what a trace tells."""

    LEVEL = Level.UNLOGGED

    number: int
    """Number of the request."""
    before: Preview
    """Estimate of the preset it is compared with."""
    after: Preview
    """Estimate of the requested preset."""


class Switching(Event, frozen=True):
    """Training is paused while the state moves."""

    LEVEL = Level.DETAIL

    to_preset: str
    """The preset to switch to."""
    step: int
    """Number of completed steps."""

    @property
    def line(self) -> str:
        return f"moving the state to {self.to_preset} at step {self.step:,}"


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
    """True: a switch that changes an array fails."""
    loss_before: float | None
    """Loss of the last step before the switch; null if there is none, or if it was not finite."""

    @property
    def line(self) -> str:
        seconds = formatting.seconds(self.compile_seconds)
        compiled = f", compiled with its transfers in {seconds} while training" if self.compile_seconds else ""
        return (
            f"{self.from_preset} → {self.to_preset} at step {self.step:,}: moved {formatting.size(self.bytes_moved)}, "
            f"stalled {formatting.seconds(self.stall_seconds)}{compiled}, all {self.arrays} digests equal (64-bit)"
        )


class SwitchFailed(Event, frozen=True):
    """A switch failed. Training continues with the old preset."""

    LEVEL = Level.ERROR

    to_preset: str
    """The preset to switch to."""
    step: int
    """Number of completed steps."""
    problems: list[str]
    """The problems, one line each."""
    preset: str
    """The active preset."""

    @property
    def line(self) -> str:
        return f"switch to {self.to_preset} failed: {'; '.join(self.problems)}"


class SwitchCancelled(Event, frozen=True):
    """A switch was cancelled while its program was compiling."""

    to_preset: str
    """The preset of the cancelled switch."""

    @property
    def line(self) -> str:
        return f"switch to {self.to_preset} cancelled"


class Inspection(Struct, frozen=True, kw_only=True):
    """The report of `shardtui inspect` on one preset on some devices, without training; not an event."""

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
