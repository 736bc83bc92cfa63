"""The second line: preset, model, devices, run, step and phase."""

from textual.content import Content

from ...engine.base import formatting
from ...engine.spec.training_words import training_words
from ...engine.wire.events import PresetCompiling, ProfileWriting, Profiling
from ..state.run_state import Phase, RunState
from .lines import StateLines, axes_content, cut

PHASE_MARKS = {
    Phase.STARTING: ("◌", "$warning"),
    Phase.COMPILING: ("◌", "$warning"),
    Phase.TRAINING: ("●", "$success"),
    Phase.SWITCHING: ("⇄", "$warning"),
    Phase.PAUSED: ("‖", "$accent"),
    Phase.STOPPED: ("■", "$text-muted"),
    Phase.FAILED: ("✗", "$error"),
    Phase.LOST: ("✗", "$error"),
    Phase.DISCONNECTED: ("?", "$error"),
}
GAP = 2
"""Least cells between the left and the right part."""


class StatusBar(StateLines):
    """On the left what runs on which devices; on the right work in progress, the step and the phase."""

    DEFAULT_CSS = """
    StatusBar { background: $panel; padding: 0 1; }
    """

    def on_mount(self) -> None:
        self.set_interval(1.0, self.tick)

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        return [status_line(state, width, state.now)]

    def tick(self) -> None:
        """Updates the seconds of a compilation, a stall or a trace being written: no event reports them."""
        waits = self.state.compiling or self.state.stalled or self.state.reconnecting
        if waits or isinstance(self.state.profiling, ProfileWriting):
            self.draw()


def status_line(state: RunState, width: int, now: float) -> Content:
    """Returns the line, without the last parts on the left if it is narrow; the phase is always shown."""
    right = Content.assemble(*_right(state, now))
    parts = _left(state)
    for kept in range(len(parts), 0, -1):
        left = Content(" · ").join(parts[:kept])
        if left.cell_length + GAP + right.cell_length <= width:
            return Content.assemble(left, " " * (width - left.cell_length - right.cell_length), right)
    return cut(right, width)


def _left(state: RunState) -> list[Content]:
    parts: list[Content] = []
    if state.preset:
        parts.append(Content.styled(state.preset, "bold"))
        if state.layout:
            parts.append(axes_content(formatting.axes(state.layout.mesh.axes), state.layout.mesh.axes))
    model = state.about.model_name if state.about else ""
    if state.ready:
        parts.append(Content(f"{model} {formatting.count(state.ready.parameters)}"))
        device = state.ready.devices[0]
        simulated = " (simulated)" if state.ready.simulated else ""
        processes = f" in {len(state.ready.hosts)} processes" if state.ready.hosts else ""
        parts.append(Content(f"{len(state.ready.devices)} × {device.kind}{simulated}{processes}"))
    elif model:
        parts.append(Content(model))
    if state.about:
        parts.append(Content.styled(state.name, "$text-muted"))
        if words := training_words(state.about, state.layout.remat if state.layout else None):
            parts.append(Content.styled(words, "$text-muted"))
    return parts


def _right(state: RunState, now: float) -> list[Content | tuple[str, str] | str]:
    mark, style = PHASE_MARKS[state.phase]
    parts: list[Content | tuple[str, str] | str] = []
    if state.compiling and state.preset:
        parts.append((f"{_compiling(state.compiling, now)}  ", "$warning"))
    if state.stalled:
        seconds = state.stalled.seconds + max(0.0, now - state.stalled.time)
        parts.append((f"! stalled {seconds:.0f} s in {state.stalled.where}  ", "$error"))
    if state.saving is not None:
        parts.append((f"saving {state.saving:,}  ", "$accent"))
    if state.comparison and state.is_comparing:
        parts.append((f"comparing {state.comparison.position} of {len(state.comparison.presets)}  ", "$accent"))
    if (attempt := state.attempt) and attempt.number > 1:
        left = attempt.remaining and f", {attempt.remaining}"
        parts.append((f"attempt {attempt.number}{left}  ", "$warning" if left else "$text-muted"))
    if state.watched:
        parts.append(("external loop  ", "$accent"))
    if state.playback:
        parts.append((f"{state.playback.label}  ", "$accent"))
    if state.is_over and state.step and (share := state.goodput.share) is not None:
        parts.append((f"goodput {formatting.percent(share)}  ", "$text-muted"))
    if state.step:
        parts.append(f"step {state.step:,}{_left_words(state)}  ")
    word = "loading jax" if state.phase is Phase.STARTING else state.phase.value
    if state.phase is Phase.COMPILING and state.compiling:
        word = _compiling(state.compiling, now)
    if state.reconnecting:
        word = f"reconnecting {max(0.0, now - state.reconnecting.time):.0f} s"
    if state.profiling and state.phase is Phase.TRAINING:
        mark, style, word = "●", "$accent", _tracing(state.profiling, now)
    parts.append((f"{mark} {word}", style))
    return parts


def _left_words(state: RunState) -> str:
    """Returns `of 2,000, 12 min left` for a run that ends by itself, at the pace of the last steps."""
    last = state.config.steps if state.config else None
    if not last or state.is_over:
        return ""
    left = state.seconds_left or 0.0
    return f" of {last:,}, {formatting.rough_seconds(left)} left" if left > 0 else f" of {last:,}"


def _tracing(event: Profiling | ProfileWriting, now: float) -> str:
    """Returns `tracing 5 steps`, then `writing the trace 12 s`, during which no step runs."""
    if isinstance(event, Profiling):
        return f"tracing {formatting.counted(event.steps, 'step')}"
    return f"writing the trace {max(0, int(now - event.time))} s"


def _compiling(begun: PresetCompiling, now: float) -> str:
    """Returns the preset being compiled, its phase and its seconds: `fsdp: lowering 3 s`."""
    ahead = "precompiling " if begun.ahead else ""
    return f"{ahead}{begun.preset}: {begun.phase_words} {max(0, int(now - begun.time))} s"
