"""The small panels of the Watch view: what the preset teaches, the last switch, this step, memory, traffic."""

import textwrap

from textual.content import Content

from ...engine.analysis.traffic import Flow, flows
from ...engine.base import figures
from ...engine.wire.events import MemoryMeasured, Switched
from ..state.run_state import RunState
from .lines import Lines, entitle


class Panel(Lines):
    def on_mount(self) -> None:
        self.state = RunState()

    def show_state(self, state: RunState) -> None:
        self.state = state
        self.show(self.lines_for(state, self.size.width))

    def on_resize(self) -> None:
        self.show_state(self.state)

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        raise NotImplementedError


class AboutPreset(Panel):
    """Of the highlighted preset: why it does not fit, or what it teaches."""

    preset: str | None = None

    def show_preset(self, preset: str | None) -> None:
        self.preset = preset
        self.show_state(self.state)

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        info = state.preset_info(self.preset) if self.preset else None
        if info is None:
            return []
        entitle(self, info.name)
        text = info.teaches or info.summary
        if info.pipeline:
            text = f"{info.pipeline.words}. {text}"
        return _wrapped(text, width) if info.fits else _wrapped(" ".join(info.problems), width, "$error")


class LastSwitch(Panel):
    """The receipt of the last switch, or why there was none; why the run paused by itself, or ended badly."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        happened = " ".join(state.problems) or state.paused_by
        entitle(self, "what happened" if happened else "watched" if state.watched else "last switch", _kept(state))
        if happened:
            return _wrapped(happened, width, "$error")
        if state.refused:
            return _wrapped(f"not to {state.refused.to_preset}: {' '.join(state.refused.problems)}", width, "$error")
        if state.watched:
            return _wrapped("only watched: its own loop decides", width, "$foreground 60%")
        if not state.switches:
            return [Content.styled("none yet: enter on a preset", "$foreground 60%")]
        return _receipt(state.switches[-1], width)


class ThisStep(Panel):
    """The last loss, and rates and times of the last steps. Where there is little room the last rows are cut."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        entitle(self, "this step")
        seconds, waited = state.seconds_per_step, state.input_wait
        tokens, flops = state.tokens_per_second, state.flops_per_second
        if not seconds or not state.ready:
            return []
        counted = state.ready.counted
        rows = [
            ("loss", f"{state.losses[-1]:.4f}" if state.losses else ""),
            ("step time", figures.seconds(seconds)),
            (f"{counted}/s", "" if tokens is None else f"{float(f'{tokens:.3g}'):,.0f}"),
            ("input wait", "" if waited is None else f"{waited:.1%}"),
            ("model", "" if flops is None else f"{figures.rate(flops)}FLOP/s"),
        ]
        if state.layout and state.layout.pipeline:
            rows.append(("bubble", figures.part(state.layout.pipeline.bubble)))
        return [_row(label, value, width) for label, value in rows if value]


class MemoryPerDevice(Panel):
    """What the compiled step needs of one device, as predicted, and what is in use as measured."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        memory = state.layout.memory if state.layout else None
        limit = state.ready.memory_limit if state.ready else None
        entitle(self, "memory, predicted", _in_use(state.memory, limit, width) if state.memory and memory else "")
        if memory is None:
            return []
        parts = (
            ("params", memory.parameters),
            ("moments", memory.moments),
            ("temps", memory.temporaries),
            ("peak", memory.peak),
        )
        return [_bar(label, part, memory.peak, width) for label, part in parts]


class Traffic(Panel):
    """What a step moves, by kind and mesh axes."""

    def lines_for(self, state: RunState, width: int) -> list[Content]:
        entitle(self, "traffic per step")
        if state.layout is None or state.layout.collectives is None:
            return []
        rows = [_flow(flow, width) for flow in flows(state.layout.collectives)]
        return rows or [Content.styled("none", "$foreground 60%")]


def _receipt(switch: Switched, width: int) -> list[Content]:
    moved, stalled = figures.size(switch.bytes_moved), figures.seconds(switch.stall_seconds)
    texts = (f"moved {moved}, stalled {stalled}", f"{moved}, stalled {stalled}")
    digests = f"all {switch.arrays} digests equal" if switch.digests_equal else "DIGESTS DIFFER"
    return [
        Content(f"{switch.from_preset} → {switch.to_preset} after {switch.step:,}"),
        Content(next((text for text in texts if len(text) <= width), texts[-1])),
        Content.styled(digests, "$success" if switch.digests_equal else "$error"),
    ]


def _kept(state: RunState) -> str:
    """`saved 1,200`, and in the end the key that goes on from there."""
    newest = state.newest
    if state.watched:
        return ""
    if state.is_over:
        return f"r: go on from step {newest.step if newest else 0:,}"
    return f"saved {newest.step:,}" if newest else ""


def _in_use(measured: MemoryMeasured, limit: int | None, width: int) -> str:
    used = figures.size(measured.bytes_in_use)
    whole = f"{used} of {figures.size(limit)} in use" if limit else ""
    return whole if 0 < len(whole) <= width - 2 else f"{used} in use"


def _flow(flow: Flow, width: int) -> Content:
    """`all-reduce model    22 ops  4.72 MB`; the count goes first where the row is narrow."""
    label, moved = f"{flow.kind} {figures.over(flow.axes)}", figures.in_step(flow.bytes_per_device)
    amount = f"{figures.ops(flow.count)}  {moved:>7}"
    return _row(label, amount if len(label) + len(amount) < width else moved, width)


def _row(label: str, value: str, width: int) -> Content:
    return Content.assemble((f"{label} ", "$foreground 60%"), value.rjust(width - len(label) - 1))


def _bar(label: str, part: int, whole: int, width: int) -> Content:
    """`params  ▇▇▇░░░  1.6 MB`"""
    value = figures.size(part).rjust(8)
    room = max(0, width - 9 - len(value))
    filled = max(1, round(room * part / whole)) if whole and room else 0
    return Content.assemble(
        (f"{label:<8} ", "$foreground 60%"),
        ("━" * filled, "$primary"),
        ("─" * (room - filled), "$surface-lighten-2"),
        value,
    )


def _wrapped(text: str, width: int, style: str = "") -> list[Content]:
    return [Content.styled(line, style) for line in textwrap.wrap(text, max(width, 8))]
