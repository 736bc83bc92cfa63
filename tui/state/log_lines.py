"""Events as text, one line each: for the Log view and for `shardtui train`."""

import shlex

from ...engine.base import figures
from ...engine.spec.attempt import Attempt
from ...engine.spec.preset_reader import name_of
from ...engine.wire.checkpoints import CheckpointInfo
from ...engine.wire.descriptions import CorpusInfo
from ...engine.wire.events import (
    AheadEnded,
    AnyEvent,
    CheckpointDamaged,
    CheckpointEvent,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSaving,
    CheckpointsKept,
    CommandRefused,
    ConnectionEvent,
    DevicesDiffer,
    Disconnected,
    EngineEvent,
    EngineLost,
    EngineReady,
    EngineStarted,
    EngineStopped,
    Evaluated,
    Failed,
    HostEvent,
    HostsLost,
    HostsMeasured,
    MemoryMeasured,
    PartsMeasured,
    Paused,
    PresetAdded,
    PresetCompiled,
    PresetCompiling,
    PresetEvent,
    PresetInspected,
    PresetPreviewed,
    Profiled,
    ProfileEvent,
    ProfileFailed,
    ProfileWriting,
    Profiling,
    ProgramsKept,
    Restored,
    RestoreFailed,
    Resumed,
    Sampled,
    Stalled,
    StepEvent,
    StepsDone,
    SwitchCancelled,
    Switched,
    SwitchEvent,
    SwitchFailed,
    Switching,
    TrainingStarted,
    Welcome,
)
from .attempts import remaining
from .training_words import training_words

MAX_PARTS = 4
"""Parts of a step in a line, the largest."""
PHASES = {
    "wait": "waiting for the compiler",
    "trace": "tracing",
    "lower": "lowering",
    "compile": "compiling",
    "transfers": "compiling the transfers",
}
"""By phase of a compilation, as `PresetCompiling` reports it."""

DIGESTS_EQUAL = {
    "mix64": "digests equal (64-bit)",
    "sum32": "checksums equal (32-bit, of an older version)",
}
"""By kind of digest, as `Switched` and `Restored` report it."""


def in_words(event: AnyEvent) -> str:
    """Returns the event as a line of text."""
    if isinstance(event, StepEvent):
        return _step(event)
    if isinstance(event, SwitchEvent):
        return _switch(event)
    if isinstance(event, PresetEvent):
        return _preset(event)
    if isinstance(event, CheckpointEvent):
        return _checkpoint(event)
    if isinstance(event, ProfileEvent):
        return _profile(event)
    if isinstance(event, HostEvent):
        return _hosts(event)
    if isinstance(event, EngineEvent):
        return _engine(event)
    return _connection(event)


def _step(event: StepEvent) -> str:
    match event:
        case TrainingStarted():
            return f"training under {event.preset}" + (f" from step {event.step:,}" if event.step else "")
        case StepsDone():
            loss = event.losses[-1]
            return f"step {event.step:,}: loss {'not finite' if loss is None else f'{loss:.4f}'}"
        case Evaluated():
            loss = "not finite" if event.loss is None else f"{event.loss:.4f}"
            over = f"{event.batches} batches in {figures.seconds(event.seconds)}"
            return f"step {event.step:,}: held-out loss {loss} over {over}"
        case MemoryMeasured():
            return f"memory in use per device: {figures.size(event.bytes_in_use)} ({event.source})"
        case Sampled():
            return _sampled(event)
        case Paused():
            return f"paused at step {event.step:,}" + (f": {event.problem}" if event.problem else "")
        case Resumed():
            return f"resumed at step {event.step:,}"
        case Stalled():
            found = f": {event.verdict}: stacks in {event.stacks}" if event.verdict else ""
            return f"stalled for {figures.seconds(event.seconds)} in {event.where}{found}"


def _sampled(event: Sampled) -> str:
    if event.problem:
        return f"step {event.step:,}: no sample: {event.problem}"
    waited = figures.seconds(event.seconds)
    compiled = f" after compiling for {figures.seconds(event.compile_seconds)}" if event.compile_seconds else ""
    return f'step {event.step:,}: "{event.sampling.prompt}" → "{event.text}" in {waited}{compiled}'


def _switch(event: SwitchEvent) -> str:
    match event:
        case Switching():
            return f"moving the state to {event.to_preset} at step {event.step:,}"
        case Switched():
            return receipt(event)
        case SwitchFailed():
            return f"switch to {event.to_preset} failed: {'; '.join(event.problems)}"
        case SwitchCancelled():
            return f"switch to {event.to_preset} cancelled"


def _preset(event: PresetEvent) -> str:
    match event:
        case PresetAdded(preset=info):
            return f"new preset {info.name}, {info.summary}: {figures.axes(info.mesh)}"
        case PresetCompiling():
            return f"{event.preset}: {PHASES[event.phase]}{' (precompiling)' if event.ahead else ''}"
        case PresetCompiled():
            source = ", from the compilation cache" if event.from_cache else ""
            seconds = "" if event.compile_seconds is None else f" in {figures.seconds(event.compile_seconds)}"
            attention = f" with {event.attention} attention" if event.attention else ""
            return f"compiled {event.preset}{attention}{seconds}{source}: {figures.axes(event.mesh.axes)}"
        case AheadEnded():
            return f"{event.preset}: {f'not precompiled: {event.problem}' if event.problem else 'precompiled'}"
        case ProgramsKept():
            size, limit = figures.size(event.bytes), figures.size(event.limit_bytes)
            return f"compiled programs in memory: {', '.join(event.presets)}: {size} of {limit} (estimated)"
        case PresetInspected():
            return f"inspected {event.preset}: {event.problem or f'{len(event.arrays)} gradients and activations'}"
        case PresetPreviewed():
            return "previewed a preset"


def _checkpoint(event: CheckpointEvent) -> str:
    match event:
        case CheckpointSaving():
            return f"saving step {event.step:,}: stalled {figures.seconds(event.stall_seconds)} to copy it"
        case CheckpointSaved():
            size, seconds = figures.size(event.bytes), figures.seconds(event.seconds)
            return f"checkpoint of step {event.step:,}: {event.arrays} arrays, {size} on disk after {seconds}"
        case CheckpointFailed():
            return f"checkpoint of step {event.step:,} failed: {'; '.join(event.problems)}"
        case CheckpointDamaged():
            aside = f", set aside as {event.set_aside}" if event.set_aside else ""
            return f"checkpoint of step {event.step:,} is damaged{aside}: {'; '.join(event.problems)}"
        case CheckpointsKept():
            return f"checkpoints kept: {', '.join(f'{kept.step:,}' for kept in event.checkpoints) or 'none'}"
        case Restored():
            return restored(event)
        case RestoreFailed():
            return f"restoring step {event.step:,} failed: {'; '.join(event.problems)}"


def _profile(event: ProfileEvent) -> str:
    match event:
        case Profiling():
            return f"tracing {event.steps} steps after step {event.step:,}"
        case ProfileWriting():
            return f"writing the trace of {event.steps} steps"
        case Profiled():
            problem = f", but not read: {event.problem}" if event.problem else ""
            return f"{profile(event)}{problem}; to open it in xprof: {opened_by(event)}"
        case PartsMeasured():
            return _parts(event)
        case ProfileFailed():
            return f"no profile at step {event.step:,}: {'; '.join(event.problems)}"


def _parts(event: PartsMeasured) -> str:
    if event.problem:
        return f"no parts of step {event.step:,}: {event.problem}"
    largest = sorted(event.parts, key=lambda part: -part.share)[:MAX_PARTS]
    parts = ", ".join(f"{part.name} {figures.percent(part.share)}" for part in largest)
    paused = f"paused {figures.seconds(event.pause_seconds)} to measure"
    return f"step {event.step:,} of {figures.seconds(event.step_seconds or 0.0)}: {parts}; {paused}"


def _hosts(event: HostEvent) -> str:
    match event:
        case HostsMeasured():
            return f"{len(event.hosts)} processes: {', '.join(f'step {host.step:,}' for host in event.hosts)}"
        case HostsLost():
            return "; ".join(f"process {process} was lost: {reason}" for process, reason in event.reasons.items())
        case DevicesDiffer():
            return event.problem


def _engine(event: EngineEvent) -> str:
    match event:
        case EngineStarted():
            begun = "watching" if event.watched else "engine started: run"
            words = training_words(event.about)
            loading = "" if event.watched else "; loading jax"
            attempt = _attempt(event.attempt)
            return f"{begun} {event.about.run}, process {event.pid}{attempt}{words and f'; {words}'}{loading}"
        case EngineReady():
            return _ready(event)
        case Failed():
            return f"{'refused' if event.refused else 'failed'}: {'; '.join(event.problems)}"
        case EngineStopped():
            return f"engine stopped ({event.reason}) at step {event.step:,}"
        case EngineLost():
            return f"engine lost: {event.reason}"


def _attempt(attempt: Attempt | None) -> str:
    if attempt is None or attempt.lost is None:
        return ""
    left = f", {some}" if (some := remaining(attempt)) else ""
    return f"; attempt {attempt.number}{left}, after process {attempt.lost.process} was lost ({attempt.lost.why})"


def _connection(event: ConnectionEvent) -> str:
    match event:
        case Welcome():
            return f"connected, protocol {event.protocol}"
        case CommandRefused():
            return f"command refused: {event.problem}"
        case Disconnected():
            return f"disconnected: {event.reason}"


def receipt(event: Switched) -> str:
    """Returns the receipt of a switch: bytes moved, seconds stalled and compiled, whether the digests are equal."""
    digests = f"all {event.arrays} {DIGESTS_EQUAL[event.digest]}" if event.digests_equal else "DIGESTS DIFFER"
    compiled = f", compiled in {figures.seconds(event.compile_seconds)} while training" if event.compile_seconds else ""
    return (
        f"{event.from_preset} → {event.to_preset} at step {event.step:,}: moved {figures.size(event.bytes_moved)}, "
        f"stalled {figures.seconds(event.stall_seconds)}{compiled}, {digests}"
    )


def restored(event: Restored) -> str:
    """Returns which checkpoint was restored, from where, and how long it took."""
    later = ", ".join(f"{step:,}" for step in event.rolled_back)
    return (
        f"restored step {event.step:,}, saved under {name_of(event.from_preset)} on {event.from_devices} devices: "
        f"{event.arrays} {DIGESTS_EQUAL[event.digest]}, {figures.seconds(event.seconds)}"
        + (f"; set aside: {later}" if later else "")
    )


def profile(event: Profiled) -> str:
    """Returns which steps a profile covers."""
    first = event.step - event.steps + 1
    return f"profile of steps {first:,} to {event.step:,} written"


def opened_by(event: Profiled) -> str:
    """Returns the commands that open a profile."""
    return f"`pip install xprof`, then `xprof --port 6006 --logdir {shlex.quote(event.directory)}`"


def _ready(event: EngineReady) -> str:
    device = event.devices[0]
    padding = f" (+ {figures.count(event.padding_parameters)} padding)" if event.padding_parameters else ""
    versions = ", ".join(f"{name} {version}" for name, version in event.versions.items())
    dtype = f" computed in {event.dtype}" if event.dtype else ""
    corpus = f", {_corpus(event.corpus)}" if event.corpus else ""
    return (
        f"{len(event.devices)} × {device.kind}{' (simulated)' if event.simulated else ''}, "
        f"{figures.count(event.parameters)} parameters{padding}{dtype}{corpus}; {versions}"
        + "".join(f"; invalid preset ignored: {problem}" for problem in event.preset_problems)
        + "".join(f"; {warning}" for warning in event.warnings)
    )


def _corpus(corpus: CorpusInfo) -> str:
    if not corpus.files:
        return f"batches from {corpus.source} (the first: {figures.size(corpus.bytes)}, sha256 {corpus.sha256[:12]})"
    read = f"{corpus.files} files, sha256 {corpus.sha256[:12]}"
    if corpus.tokens:
        return f"{figures.count(corpus.tokens)} tokens from {corpus.source} ({read})"
    return f"{figures.size(corpus.bytes)} of text from {corpus.source} ({read})"


def loss_words(info: CheckpointInfo) -> str:
    """Returns the loss by which checkpoints are ranked: `e 2.3146` if it is held out, else `2.3146`, or nothing."""
    if info.eval_loss is not None:
        return f"e {info.eval_loss:.4f}"
    return "" if info.loss is None else f"{info.loss:.4f}"
