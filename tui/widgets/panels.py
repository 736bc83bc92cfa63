"""The small panels of the Watch view: the preset, the last switch, this step, memory and traffic."""

from textual.content import Content

from ...engine.base import formatting
from ...engine.hlo.traffic import Flow, flows
from ...engine.wire.events import MemoryMeasured, Switched
from ..state.run_state import RunState
from ..state.step_words import pipeline_words
from ..state.tables import share
from .lines import StateLines, axes_content, bar, cut, set_titles, wrapped


class Panel(StateLines):
    """Lines in a border with a title."""


class AboutPreset(Panel):
    """The lesson of the highlighted preset, or why it does not fit."""

    preset: str | None = None
    """The highlighted preset; None before one is highlighted."""

    def show_preset(self, preset: str | None) -> None:
        self.preset = preset
        self.show_state(self.state)

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        info = state.preset_info(self.preset) if self.preset else None
        if info is None:
            return []
        set_titles(self, info.name)
        text = info.teaches or info.summary
        if info.pipeline:
            text = f"{pipeline_words(info.pipeline)}. {text}"
        return wrapped([(text, "") if info.fits else (" ".join(info.problems), "$error")], width)


class LastSwitch(Panel):
    """The receipt of the last switch, or why it was refused; why the run paused by itself or failed."""

    def on_mount(self) -> None:
        self.set_interval(1.0, self.tick)

    def tick(self) -> None:
        if self.state.pending:
            self.show_state(self.state)

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        happened = " ".join(state.problems) or state.paused_by
        set_titles(
            self,
            "what happened" if happened else "external loop" if state.watched else "last switch",
            _saved_note(state),
        )
        if happened:
            return wrapped([(happened, "$error")], width)
        if pending := state.pending:
            seconds = max(0, int(state.now - pending.time))
            return _under_way(state.preset, pending.preset, f"{pending.phase_words} {seconds} s")
        if state.requested:
            return _under_way(state.preset, state.requested, "requested, no answer yet")
        if failed := state.failed_switch:
            problem = f"cannot switch to {failed.to_preset}: {' '.join(failed.problems)}"
            return wrapped([(problem, "$error")], width)
        if state.watched:
            return wrapped([("external loop: it decides its own layout", "$text-muted")], width)
        if not state.switches:
            how = "" if state.playback else ": press enter on a preset"
            return wrapped([(f"no switch yet{how}", "$text-muted")], width)
        return _receipt(state.switches[-1], width)


class ThisStep(Panel):
    """Figures beyond the headline: time spent waiting for batches, model FLOP/s, the bubble of a pipeline, the
    last sample of text."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        set_titles(self, "this step")
        waited, flops = state.input_wait, state.flops_per_second
        if not state.seconds_per_step:
            return []
        rows = [
            ("input wait", "" if waited is None else share(waited)),
            ("model", "" if flops is None else f"{formatting.rate(flops)}FLOP/s"),
        ]
        if state.layout and state.layout.pipeline:
            rows.append(("bubble", formatting.percent(state.layout.pipeline.bubble)))
        lines = [_row(label, value, width) for label, value in rows if value]
        if state.sampled and not state.sampled.problem:
            sampled = state.sampled.sampling.prompt + state.sampled.text
            texts = (f"sample of step {state.sampled.step:,}", " ".join(sampled.split()))
            lines += wrapped(((text, "") for text in texts), width)
        return lines


class MemoryPerDevice(Panel):
    """Bytes that the compiled step needs on one device, as predicted, and the bytes measured in use."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        memory = state.layout.memory if state.layout else None
        limit = state.ready.memory_limit if state.ready else None
        set_titles(self, "memory, predicted", _in_use(state.memory, limit, width) if state.memory and memory else "")
        if memory is None:
            return []
        parts = (
            ("params", memory.parameters),
            ("moments", memory.moments),
            ("temps", memory.temporaries),
            ("peak", memory.peak),
        )
        return [bar(label, 8, part, memory.peak, formatting.size(part), width) for label, part in parts]


class Traffic(Panel):
    """Collectives of a step, added up by kind and mesh axes."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        set_titles(self, "sent per step")
        if state.layout is None or state.layout.collectives is None:
            return []
        rows = [_flow(flow, width) for flow in flows(state.layout.collectives)]
        return rows or [Content.styled("none", "$text-muted")]


def _under_way(active: str, wanted: str, doing: str) -> list[Content]:
    return [
        Content(f"{active} → {wanted}"),
        Content.styled(doing, "$warning"),
        Content.styled("escape cancels", "$text-muted"),
    ]


def _receipt(switch: Switched, width: int) -> list[Content]:
    moved, stalled = formatting.size(switch.bytes_moved), formatting.seconds(switch.stall_seconds)
    texts = (f"moved {moved}, stalled {stalled}", f"{moved}, stalled {stalled}")
    return [
        Content(f"{switch.from_preset} → {switch.to_preset} at step {switch.step:,}"),
        Content(next((text for text in texts if len(text) <= width), texts[-1])),
        Content.styled(f"all {switch.arrays} digests equal", "$success"),
    ]


def _saved_note(state: RunState) -> str:
    """Returns the last saved step, or in a run that is over the key that resumes from it."""
    newest = state.newest
    if state.watched:
        return ""
    if state.is_over and not state.playback and not state.host:
        return f"r: resume from step {newest.step if newest else 0:,}"
    return f"saved {newest.step:,}" if newest else ""


def _in_use(measured: MemoryMeasured, limit: int | None, width: int) -> str:
    used = formatting.size(measured.bytes_in_use)
    of_limit = f"{used} of {formatting.size(limit)} in use" if limit else ""
    return of_limit if 0 < len(of_limit) <= width - 2 else f"{used} in use"


def _flow(flow: Flow, width: int) -> Content:
    """Returns one row: `all-reduce model    22 ops  4.72 MB`. A narrow row leaves out the count."""
    label, moved = f"{flow.kind} {formatting.over(flow.axes, flow.network)}", formatting.in_step(flow.sent)
    amount = f"{formatting.counted(flow.count, 'op')}  {moved:>7}"
    value = amount if len(label) + len(amount) < width else moved
    return _labelled(axes_content(label, flow.axes).stylize_before("$text-muted"), value, width)


def _row(label: str, value: str, width: int) -> Content:
    return _labelled(Content.styled(label, "$text-muted"), value, width)


def _labelled(label: Content, value: str, width: int) -> Content:
    name = cut(label, max(width - len(value) - 1, 0))
    return Content.assemble(name, value.rjust(max(width - name.cell_length, len(value) + 1)))
