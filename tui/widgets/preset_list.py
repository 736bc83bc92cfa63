"""The presets with the mesh each gives on these devices. Enter goes on under the highlighted one."""

import time
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ...engine.base import figures
from ...engine.wire.descriptions import PresetInfo
from ...engine.wire.events import ProgramsKept
from ..messages import PresetChosen
from ..state.availability import why_not
from ..state.run_state import RunState
from .choices import Choices
from .lines import entitle

MESH_WIDTH = 6
TIME_WIDTH = 7
TIMES_SECONDS = 10.0
"""After which step times are taken anew."""


class PresetList(Choices):
    """Selecting an option posts `PresetChosen`."""

    HELP = """\
## Presets

Each row: the preset, its mesh here, and the step time once it has run. `●` is active, `○` is compiled, `◌` is
being compiled, `✗` does not fit: the panel below says why. **Enter** moves the running training to the highlighted
preset and compares a 64-bit digest of every array before and after. One on which the cursor rests is compiled ahead
while a core is free or training is paused. A run that is only watched has the one layout of its own program. Below: how
many programs are kept in memory, their size by estimate, and the bound (`--keep-programs`); the least recently used go
first.
"""
    BINDING_GROUP_TITLE = "Presets"
    BINDINGS: ClassVar[list[BindingType]] = [("enter", "select", "Switch")]

    def on_mount(self) -> None:
        entitle(self, "presets")
        self.shown: dict[str, Content] = {}
        self.times: dict[str, float | None] = {}
        self.timed_at = 0.0
        self.followed: str | None = None
        self.state = RunState()

    def on_resize(self) -> None:
        self.show_state(self.state)

    def show_state(self, state: RunState) -> None:
        """Adds the presets once they are known, then redraws the rows that changed."""
        self.state = state
        if state.ready is None:
            return
        self.take_times(state)
        width = self.scrollable_content_region.width - 1
        rows = {info.name: preset_row(info, state, self.times.get(info.name), width) for info in state.ready.presets}
        if rows.keys() != self.shown.keys():
            self.set_options(Option(row, id=name) for name, row in rows.items())
            self.followed = state.preset or next(iter(rows))
            self.highlighted = self.get_option_index(self.followed)
        else:
            for name, row in rows.items():
                if not row.is_same(self.shown[name]):
                    self.replace_option_prompt(name, row)
        self.shown = rows
        entitle(self, "presets", programs_kept(state.kept) if state.kept else "")
        self.follow(state.preset)

    def follow(self, active: str | None) -> None:
        """The cursor goes where the training goes, unless it was moved from there."""
        if active and active != self.followed:
            if self.highlighted_preset == self.followed:
                self.highlighted = self.get_option_index(active)
            self.followed = active

    def take_times(self, state: RunState) -> None:
        """Now and then: another time draws the whole list again."""
        now = time.monotonic()
        if self.times.keys() != state.timed.keys() or now - self.timed_at > TIMES_SECONDS:
            self.times, self.timed_at = {name: state.seconds_under(name) for name in state.timed}, now

    @property
    def highlighted_preset(self) -> str | None:
        return self.highlighted_option.id if self.highlighted_option else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action == "select" and why_not("switch", self.state))

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id:
            self.post_message(PresetChosen(event.option_id))


def programs_kept(kept: ProgramsKept) -> str:
    """`3 compiled ≈ 98 MB of 2 GB`"""
    return f"{len(kept.presets)} compiled ≈ {figures.size(kept.bytes)} of {figures.size(kept.limit_bytes)}"


def preset_row(info: PresetInfo, state: RunState, seconds: float | None, width: int) -> Content:
    """`● dp-tp2    4×2  212 ms`; the time goes first where the row is narrow."""
    mark, style = sign(info, state)
    step_time = (figures.seconds(seconds) if seconds else "").rjust(TIME_WIDTH) if width >= 32 else ""
    mesh = "×".join(str(size) for size in info.mesh.values()).rjust(MESH_WIDTH)
    room = max(4, width - 2 - MESH_WIDTH - len(step_time))
    name = Content(info.name).truncate(room, ellipsis=True).pad_right(0)
    padding = " " * (room - name.cell_length)
    tone = "" if info.fits else "$foreground 60%"
    return Content.assemble(
        (f"{mark} ", style), name.stylize(tone), padding, (mesh, "$foreground 60%"), (step_time, "$foreground 60%")
    )


def sign(info: PresetInfo, state: RunState) -> tuple[str, str]:
    """And its style."""
    if info.name == state.preset:
        return "●", "$success"
    if state.compiling and info.name == state.compiling.preset:
        return "◌", "$warning"
    if state.is_compiled(info.name):
        return "○", "$success"
    return (" ", "") if info.fits else ("✗", "$error")
