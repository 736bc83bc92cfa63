"""The list of presets. Enter switches the run to the highlighted one."""

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import OptionList

from ...engine.base import formatting
from ...engine.spec.preset_files import is_pitfall
from ...engine.wire.descriptions import PresetInfo
from ...engine.wire.events import ProgramsKept
from ..bindings import identified
from ..messages import PresetChosen
from ..state.availability import why_not
from ..state.run_state import RunState
from .choices import Choices
from .lines import set_titles

BY_AXIS = {"pipeline": "pipeline", "expert": "experts", "seq": "sequence", "fsdp": "fully sharded", "model": "tensor"}
"""Group by mesh axis; the first that a preset has decides."""
DATA, VARIANTS, PITFALLS, YOURS, UNFIT = "data", "variants", "pitfalls", "yours", "do not fit"
FOLDED = (VARIANTS, PITFALLS, UNFIT)
"""Groups that are folded at first."""
ORDER = (DATA, "tensor", "fully sharded", "pipeline", "sequence", "experts", YOURS, *FOLDED)
OF_VARIANTS = ("-explicit", "-1d")
"""Ends of the names of presets that lay out the step as another one does, for another compiler or other axis types."""


def grouped(presets: Sequence[PresetInfo]) -> dict[str, list[PresetInfo]]:
    found = {name: [info for info in presets if group_of(info) == name] for name in ORDER}
    return {name: infos for name, infos in found.items() if infos}


def group_of(info: PresetInfo) -> str:
    """Returns the group of a preset: its most particular mesh axis, its source, or that it does not fit."""
    if not info.fits:
        return UNFIT
    if is_pitfall(info.name):
        return PITFALLS
    if info.source != "built-in":
        return YOURS
    if info.name.endswith(OF_VARIANTS):
        return VARIANTS
    split = [axis for axis in BY_AXIS if info.mesh.get(axis, 1) > 1 or (axis == "fsdp" and axis in info.mesh)]
    return BY_AXIS[split[0]] if split else DATA


HEADING = "# "
"""Begins the id of a heading: no preset has a name with a space."""
MESH_WIDTH = 6
TIME_WIDTH = 7
TIMES_REFRESH_SECONDS = 10.0
"""Seconds after which the shown step times are updated."""


class StepTimes:
    """The step time of each preset that has run, updated every few seconds only: a changed time redraws the list."""

    def __init__(self) -> None:
        self.at = 0.0
        self.found: Mapping[str, float | None] = {}

    def of(self, state: RunState) -> Mapping[str, float | None]:
        now = time.monotonic()
        if self.found.keys() != state.timed.keys() or now - self.at > TIMES_REFRESH_SECONDS:
            self.found, self.at = {name: state.seconds_under(name) for name in state.timed}, now
        return self.found


class PresetList(Choices):
    """A row for each preset: its state, name, mesh and step time. Selecting one posts `PresetChosen`."""

    HELP = """\
## Presets

Each row: the preset, its mesh on these devices, and its step time once it has run. `●` active, `○` compiled, `◌`
compiling, `✗` does not fit: the panel below says why. **Enter** on a heading with `▸` lists its presets; on a preset
it switches the running training to that one and compares a 64-bit digest of every array before and after; **escape**
cancels a switch that has not begun to move the state. The preset under the cursor is precompiled while a core is free
or training is paused. A run in an external loop has the one layout of its own program. The lower border shows how many
compiled programs are in memory, their estimated size and the limit (`--keep-programs`); the least recently used are
dropped first.
"""
    BINDING_GROUP_TITLE = "Presets"
    BINDINGS: ClassVar[list[BindingType]] = identified("presets", [("enter", "select", "Switch")])

    def on_mount(self) -> None:
        set_titles(self, "presets")
        self.times = StepTimes()
        self.unfolded: set[str] = set()
        """Groups that the user has unfolded."""
        self.followed: str | None = None
        self.state = RunState()

    def on_resize(self) -> None:
        self.show_state(self.state)

    def show_state(self, state: RunState) -> None:
        """Adds the presets once they are known, then redraws the rows that changed."""
        self.state = state
        if state.ready is None:
            return
        width = self.scrollable_content_region.width - 1
        rows = self.rows(state.ready.presets, width)
        self.show_rows(rows, {id for id in rows if is_heading(id)})
        if self.highlighted is None:
            self.followed = state.preset or next((id for id in rows if not id.startswith(HEADING)), None)
            self.put_cursor_on(self.followed)
        set_titles(self, "presets", programs_kept(state.kept, width) if state.kept else "")
        self.follow(state.preset)

    def rows(self, presets: Sequence[PresetInfo], width: int) -> dict[str, Content]:
        found, times = dict[str, Content](), self.times.of(self.state)
        for group, infos in grouped(presets).items():
            is_active = any(info.name == self.state.preset for info in infos)
            is_folded = group in FOLDED and group not in self.unfolded and not is_active
            found[f"{HEADING}{group}"] = heading(group, len(infos), is_folded)
            for info in () if is_folded else infos:
                found[info.name] = preset_row(info, self.state, times.get(info.name), width)
        return found

    def follow(self, active: str | None) -> None:
        """Moves the cursor to the active preset, unless the user has moved it elsewhere."""
        if active and active in self.shown and active != self.followed:
            if self.highlighted_preset == self.followed:
                self.put_cursor_on(active)
            self.followed = active

    @property
    def highlighted_preset(self) -> str | None:
        id = self.highlighted_id
        return None if id is None or id.startswith(HEADING) else id

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        is_heading = self.highlighted is not None and self.highlighted_preset is None
        return action != "select" or is_heading or not why_not("switch", self.state)

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self.highlighted_preset:
            self.post_message(PresetChosen(self.highlighted_preset))
        elif event.option_id:
            self.unfolded ^= {event.option_id.removeprefix(HEADING)}
            self.show_state(self.state)


def is_heading(id: str) -> bool:
    """Returns whether the row of this id only divides the list. Enter folds and unfolds the groups of others."""
    return id.startswith(HEADING) and id.removeprefix(HEADING) not in FOLDED


def heading(group: str, count: int, is_folded: bool) -> Content:
    """Returns the heading of a group, with a mark and a count if it can be folded."""
    mark = "▸" if is_folded else "▾"
    return Content.styled(f"{mark} {count} {group}" if group in FOLDED else group, "$text-muted")


def programs_kept(kept: ProgramsKept, width: int) -> str:
    """Returns how many programs are kept in memory, and their bytes: `3 compiled ≈ 98 MB of 2 GB`, or less of it."""
    words = f"{len(kept.presets)} compiled ≈ {formatting.size(kept.bytes)}"
    whole = f"{words} of {formatting.size(kept.limit_bytes)}"
    return whole if len(whole) < width else words


def preset_row(info: PresetInfo, state: RunState, seconds: float | None, width: int) -> Content:
    """Returns one row: `● dp-tp2    4×2  212 ms`. A narrow row leaves out the time."""
    mark, style = state_mark(info, state)
    step_time = (formatting.seconds(seconds) if seconds else "").rjust(TIME_WIDTH) if width >= 32 else ""
    mesh = "×".join(str(size) for size in info.mesh.values()).rjust(MESH_WIDTH)
    room = max(4, width - 2 - MESH_WIDTH - len(step_time))
    name = Content.styled(info.name, "" if info.fits else "$text-muted").truncate(room, ellipsis=True, pad=True)
    return Content.assemble((f"{mark} ", style), name, (mesh + step_time, "$text-muted"))


def state_mark(info: PresetInfo, state: RunState) -> tuple[str, str]:
    """Returns the mark of a preset's state and its style: active, compiling, compiled, or does not fit."""
    if info.name == state.preset:
        return "●", "$success"
    if state.compiling and info.name == state.compiling.preset:
        return "◌", "$warning"
    if state.is_compiled(info.name):
        return "○", "$success"
    return (" ", "") if info.fits else ("✗", "$error")
