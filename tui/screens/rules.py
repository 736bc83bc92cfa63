"""Rules: a preset edited live. What every array would become and what a step would cost stand beside it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
from textual import on, work
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Label, OptionList

from ...engine.base.invalid import Invalid
from ...engine.spec.preset import AXIS_NAME, LOGICAL_AXES, reference
from ...engine.spec.preset_file import preset_text, write_preset
from ...engine.spec.preset_files import FILE_NAME, PRESETS, user_presets
from ...engine.spec.preset_reader import LARGEST_AXIS, REST, load_preset, mesh_preset
from ...engine.wire.commands import WeighPreset
from ...engine.wire.events import EngineReady, PresetWeighed
from ...engine.wire.framing import LARGEST_COMMAND
from ..messages import DraftApplied, DraftChanged, PresetChosen, WatchWanted
from ..state.availability import why_not
from ..state.draft import WHOLE, Draft
from ..state.run_state import RunState
from ..terminal.clean import printable
from ..widgets.rule_list import Row, RowTurned, RuleList
from ..widgets.what_follows import Consequences, Costs
from .confirm import Confirm
from .run_screen import RunScreen

REST_SECONDS = 0.15
"""After the last change the engine is asked."""
LARGEST_TEXT = LARGEST_COMMAND // 4
"""Bytes of a preset: two go with a question, and edits come on top."""
NOT_IN_NAMES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]")
LONGEST_NAME = 64
NEW_AXIS = Row("axis", "")
NO_ENGINE = "No engine is heard: only one knows what becomes of each array, and whether it can be laid out. r goes on."


class RulesScreen(RunScreen):
    HELP = """\
## Rules

The preset under the cursor of Watch or Compare, with other rules or axes of other sizes: **←** and **→** step through
the values of a row, **enter** takes what you type: a size, or mesh axes such as `data, fsdp`. `●` marks what is not as
it was, `✗` what cannot be. **+** is for a new axis, **-** removes the one under the cursor, **u** takes all back.

At each change the engine says, beside its steps, what every array would become, and by formula what a step would hold
and send. **a** goes on under it, as any switch does, and the run keeps it. **ctrl+s** saves it for other runs.
**Escape** leaves with nothing changed; another view leaves the draft as it is.
"""
    AUTO_FOCUS: ClassVar[str | None] = "RuleList"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("plus", "add_axis", "Axis"),
        ("minus", "remove_axis", "Remove"),
        ("u", "reset", "Reset"),
        ("a", "apply", "Apply"),
        ("ctrl+s", "save_preset", "Save"),
        ("escape", "leave", "Leave"),
    ]

    def body(self) -> Iterable[Widget]:
        prompt = Horizontal(Label(markup=False), Input(compact=True, max_length=200), id="prompt")
        yield Horizontal(
            Vertical(RuleList(), prompt, id="draft"),
            Vertical(Costs(), Consequences(), id="follows"),
        )

    def on_mount(self) -> None:
        self.draft: Draft | None = None
        self.engine: tuple[EngineReady | None, bool] = (None, False)
        """As the draft was last shown for it, and whether it was heard."""
        self.number = 0
        """Of the last question."""
        self.weighed: PresetWeighed | None = None
        """The answer to it, once it is there."""
        self.waiting: Timer | None = None
        self.then: Callable[[PresetWeighed], object] | None = None
        """What to do as soon as the answer is there."""
        self.typing: Row | None = None
        self.query_one("#prompt").display = False

    def edit(self, name: str, state: RunState) -> None:
        """Begins with this preset, unless one is being edited."""
        self.state = state
        if self.draft is None or not self.draft.is_changed:
            self.draft = self.drafted(name)
        elif name != self.draft.origin.name:
            self.complain(f"{self.draft.name} is neither applied nor saved: escape drops it")
        if self.draft is None:
            self.post_message(WatchWanted())
        self.redraw()

    def redraw(self) -> None:
        if self.draft:
            self.show_draft(self.draft)

    def drafted(self, name: str) -> Draft | None:
        info = self.state.preset_info(name)
        try:
            preset = load_preset(reference(info.name, info.source) if info else name)
        except Invalid as error:
            self.complain(*error.problems)
            return None
        size = len(preset_text(preset).encode())
        if size > LARGEST_TEXT:
            self.complain(f"{preset.source}: {size:,} bytes: at most {LARGEST_TEXT:,} can be edited here")
            return None
        preset = msgspec.structs.replace(preset, name=NOT_IN_NAMES.sub("-", preset.name)[:LONGEST_NAME])
        return Draft(preset, preset, 1, frozenset())

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if self.draft is None:
            return
        if (state.ready, state.is_heard) != self.engine:
            self.redraw()
        elif state.weighed and state.weighed is not self.weighed and state.weighed.number == self.number:
            self.weighed = state.weighed
            self.show_weighed(state.weighed)

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    def show_draft(self, draft: Draft) -> None:
        """Now, and what follows as soon as the engine has said it."""
        ready = self.state.ready
        if ready:
            draft = replace(draft, devices=len(ready.devices), taken=frozenset(info.name for info in ready.presets))
        self.draft, self.engine = draft, (ready, self.state.is_heard)
        self.weighed, self.then, self.number = None, None, self.number + 1
        if self.waiting:
            self.waiting.stop()
        problems = list(map(printable, draft.problems()))
        self.show_rows(problems)
        if not self.state.is_heard:
            self.show_without_engine(draft, problems)
        elif ready:
            self.waiting = self.set_timer(REST_SECONDS, self.ask)

    def show_without_engine(self, draft: Draft, problems: Sequence[str]) -> None:
        self.query_one(Costs).show_costs(None, None)
        told = self.query_one(Consequences)
        if problems:
            told.show_problems(draft.name, problems)
        else:
            told.show_contents("what follows is not known", [Content(NO_ENGINE)])

    def ask(self) -> None:
        if self.draft:
            before, after = (
                preset_text(msgspec.structs.replace(preset, summary="", teaches=""))
                for preset in (self.draft.origin, self.draft.preset)
            )
            self.post_message(DraftChanged(WeighPreset(self.number, self.draft.name, before, after)))

    def show_weighed(self, weighed: PresetWeighed) -> None:
        problems = weighed.after.problems
        self.show_rows(problems)
        limit = self.state.ready.memory_limit if self.state.ready else None
        self.query_one(Costs).show_costs(None if problems else weighed, limit)
        told = self.query_one(Consequences)
        if problems and self.draft:
            told.show_problems(self.draft.name, problems)
        else:
            told.show_changes(weighed)
        if then := self.then:
            self.then = None
            then(weighed)

    def show_rows(self, problems: Sequence[str]) -> None:
        if self.draft:
            known = (name for array in self.state.arrays for name in array.logical_axes if name)
            self.query_one(RuleList).show_draft(self.draft, [*dict.fromkeys((*LOGICAL_AXES, *known))], problems)

    @on(RowTurned)
    def turn(self, message: RowTurned) -> None:
        row, draft = self.query_one(RuleList).row, self.draft
        if draft and row and row.kind == "axis":
            self.show_draft(draft.next_size(row.key, message.by))
        elif draft and row and row.kind == "rule":
            self.show_draft(draft.next_rule(row.key, message.by))

    # Typing

    @on(OptionList.OptionSelected, "RuleList")
    def type_value(self) -> None:
        row, draft = self.query_one(RuleList).row, self.draft
        if draft and row and row.kind == "name":
            self.ask_for(row, "name", draft.name)
        elif draft and row and row.kind == "axis":
            self.ask_for(row, row.key, str(draft.preset.mesh[row.key]))
        elif draft and row and row.kind == "rule":
            self.ask_for(row, row.key, ", ".join(draft.rule(row.key)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What is typed is no key of the view."""
        if not self.is_mounted:
            return True
        return action == "leave" or not (self.typing or why_not(action, self.state))

    def action_add_axis(self) -> None:
        if self.draft:
            self.ask_for(NEW_AXIS, "new axis", "")

    def ask_for(self, row: Row, what: str, value: str) -> None:
        self.typing = row
        self.query_one("#prompt").display = True
        self.query_one(Label).update(what)
        field = self.query_one(Input)
        field.value = value
        field.focus()
        self.refresh_bindings()

    @on(Input.Submitted)
    def take(self, event: Input.Submitted) -> None:
        if self.draft is None or self.typing is None:
            return
        try:
            draft = typed(self.draft, self.typing, printable(event.value.strip()))
        except Invalid as error:
            self.complain(*error.problems)
            return
        row = Row("axis", event.value.strip()) if self.typing is NEW_AXIS else self.typing
        self.stop_typing()
        self.show_draft(draft)
        self.query_one(RuleList).put_cursor_on(row)

    def stop_typing(self) -> None:
        self.typing = None
        self.query_one("#prompt").display = False
        self.query_one(RuleList).focus()
        self.refresh_bindings()

    def action_remove_axis(self) -> None:
        row = self.query_one(RuleList).row
        if self.draft and row and row.kind == "axis":
            self.show_draft(self.draft.without_axis(row.key))

    def action_reset(self) -> None:
        if self.draft:
            self.show_draft(self.draft.reset())

    def action_leave(self) -> None:
        if self.typing:
            self.stop_typing()
        else:
            self.draft = None
            self.post_message(WatchWanted())

    # Effects

    def action_apply(self) -> None:
        """At once where the engine has answered already."""
        draft = self.draft
        if draft is None:
            return
        if not self.state.is_heard:
            self.complain(NO_ENGINE)
        elif draft.name in draft.taken and (draft.is_changed or draft.name != draft.origin.name):
            self.complain(f"the run has a preset {draft.name}: give this one another name")
        elif self.weighed:
            self.apply(self.weighed)
        else:
            self.then = self.apply

    def apply(self, weighed: PresetWeighed) -> None:
        if weighed.after.problems or self.draft is None:
            self.complain(*weighed.after.problems)
            return
        draft, self.draft = self.draft, None
        is_known = draft.name in draft.taken
        self.post_message(PresetChosen(draft.name) if is_known else DraftApplied(draft.name, draft.text))
        self.post_message(WatchWanted())

    def action_save_preset(self) -> None:
        """For other runs, once the engine has said that it can be laid out."""
        if self.draft is None:
            return
        if problems := self.draft.problems():
            self.complain(*problems)
        elif not self.state.is_heard:
            self.complain(NO_ENGINE)
        elif self.weighed:
            self.save(self.weighed)
        else:
            self.then = self.save

    @work
    async def save(self, weighed: PresetWeighed) -> None:
        if weighed.after.problems or self.draft is None:
            self.complain(*weighed.after.problems)
            return
        draft = self.draft
        path = user_presets() / "parallelism" / f"{draft.name}.toml"
        try:
            if (question := replaced_by(path)) and not await self.agrees(question):
                return
            write_preset(path, draft.text)
        except Invalid as error:
            self.complain(*error.problems)
        else:
            self.notify(f"{printable(str(path))}\nfor every run that begins from now on", title="saved", markup=False)

    async def agrees(self, question: str) -> bool:
        asked = Confirm(question, "Replace", "Keep it")
        return self.is_active and await self.app.push_screen(  # pyright: ignore[reportUnknownMemberType]
            asked, wait_for_dismiss=True
        )

    def complain(self, *problems: str) -> None:
        self.notify("\n".join(map(printable, problems)), severity="warning", markup=False)


def typed(draft: Draft, row: Row, text: str) -> Draft:
    """With what was typed for a row, whether or not it can be so. Raises Invalid where it means nothing."""
    if row is NEW_AXIS:
        if not AXIS_NAME.fullmatch(text):
            raise Invalid(f"{text!r}: an axis name is letters, digits and _")
        return draft.with_axis(text)
    match row.kind:
        case "name" if text and not FILE_NAME.fullmatch(text):
            raise Invalid(f"{text!r}: a preset is called by 1 to 64 letters, digits, '.', '_' and '-'")
        case "name":
            return draft.named(text)
        case "axis":
            size = int(text) if re.fullmatch(r"-1|\d{1,7}", text) else 0
            if size != REST and not 1 <= size <= LARGEST_AXIS:
                raise Invalid(f"{text!r}: a size is from 1 to {LARGEST_AXIS:,}, or -1 for what is left")
            return draft.sized(row.key, size)
        case _:
            axes = tuple(filter(None, re.split(r"[\s,+]+", text)))
            return draft.ruled(row.key, () if axes == (WHOLE,) else axes)


def replaced_by(path: Path) -> str | None:
    """What to ask before a preset is written there."""
    name = path.stem
    if path.exists():
        return f"{printable(str(path))} is there already. Replace it?"
    if (PRESETS / "parallelism" / path.name).exists():
        return f"{name} is built in. Shall yours take its place in every run that begins from now on?"
    if mesh_preset(name):
        return f"{name} names a mesh. Shall yours take its place in every run that begins from now on?"
    return None
