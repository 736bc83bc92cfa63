"""Rules: edits a preset, and previews how each array would be sharded and what a step would cost."""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, OptionList

from ...engine.base.output import printable
from ...engine.spec.preset import LOGICAL_AXES, OF_SENT_TOKENS, ONLY_ACTIVATIONS
from ...engine.spec.preset_writer import write_preset
from ...engine.wire.commands import AddPreset
from ..bindings import identified
from ..messages import CommandRequested, PresetChosen
from ..state.availability import why_not
from ..state.draft import Draft, read_draft, replaced_by, user_file
from ..state.preview_request import PreviewRequest, apply_problems, save_problems
from ..state.run_state import RunState
from ..widgets.preset_diff import DraftPreview
from ..widgets.prompt import NEW_AXIS, Prompt, editable_text, stepped, with_text
from ..widgets.rule_list import Row, RuleList
from .confirm import Confirm
from .run_screen import RunScreen

PREVIEW_DELAY_SECONDS = 0.15
"""Seconds between the last change of the draft and the request for its preview."""


def is_of_activations(axis: str, of_parameters: Container[str]) -> bool:
    """Returns whether activations have this logical axis, in a model whose parameters have those others."""
    return axis in ONLY_ACTIVATIONS or (axis in OF_SENT_TOKENS and "experts" in of_parameters)


class RulesScreen(RunScreen):
    """On the left the draft's name, mesh axes and rules as rows; on the right the preview of the draft."""

    HELP = """\
## Rules

Edits the preset under the cursor of Watch or Compare: its rules and the sizes of its mesh axes. **←** and **→** step
through the values of a row; press **enter** to type one: a size, or mesh axes such as `data, fsdp`. `●` marks a changed
row, `✗` an invalid one. **+** adds an axis, **-** removes the one under the cursor, **u** undoes all changes.

After each change the engine previews, while training continues, how each array would be laid out and, from a trace,
what a step would hold and send. **a** switches the run to it and adds it to the run's presets; **ctrl+s** saves it for
other runs. **Escape** discards the draft; another view keeps it.
"""
    AUTO_FOCUS: ClassVar[str | None] = "RuleList"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "rules",
        [
            ("plus", "add_axis", "Axis"),
            ("minus", "remove_axis", "Remove"),
            ("u", "reset", "Reset"),
            ("a", "apply", "Apply"),
            ("ctrl+s", "save_preset", "Save"),
            ("escape", "leave", "Leave"),
        ],
    )

    def __init__(self) -> None:
        super().__init__()
        self.draft: Draft | None = None
        self.request = PreviewRequest()
        self.preview_timer: Timer | None = None

    def body(self) -> Iterable[Widget]:
        self.rules, self.prompt = RuleList(), Prompt()
        yield Horizontal(Vertical(self.rules, self.prompt, id="draft"), DraftPreview())

    def edit(self, name: str, state: RunState) -> None:
        """Opens a preset as a draft, unless the present draft has changes."""
        self.state = state
        if self.draft is None or not self.draft.is_changed:
            self.draft = None
            with self.warning():
                self.draft = read_draft(name, state)
            self.close_prompt()
        elif name != self.draft.origin.name:
            self.warn(f"{self.draft.name} is neither applied nor saved: escape discards it")
        if self.draft:
            self.show_draft(self.draft)
        else:
            self.close()

    def show_state(self, state: RunState) -> None:
        super().show_state(state)
        if self.draft is None:
            return
        if not self.request.is_current(state):
            self.show_draft(self.draft)
        elif self.request.accept(state.previewed):
            self.show_known()
            self.request.proceed()

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_known)

    def show_draft(self, draft: Draft) -> None:
        """Shows the draft at once, and its preview as soon as the engine has answered."""
        ready = self.state.ready
        if ready:
            used_names = frozenset(info.name for info in ready.presets)
            draft = replace(draft, devices=len(ready.devices), used_names=used_names)
        self.draft = draft
        self.request.renew(self.state)
        if self.preview_timer:
            self.preview_timer.stop()
        self.show_known()
        if ready and self.state.is_live:
            self.preview_timer = self.set_timer(PREVIEW_DELAY_SECONDS, self.ask_for_preview)

    def ask_for_preview(self) -> None:
        if self.draft:
            self.post_message(CommandRequested(self.request.command(self.draft)))

    def show_known(self) -> None:
        """Shows the draft with its preview, or what is known without one."""
        if (draft := self.draft) is None:
            return
        answer, ready = self.request.answer, self.state.ready
        problems = answer.after.problems if answer else list(map(printable, draft.problems()))
        self.show_rows(draft, problems)
        if answer or not self.state.is_live:
            limit = ready.memory_limit if ready else None
            self.query_one(DraftPreview).show_preview(draft.name, problems, answer, limit)

    def show_rows(self, draft: Draft, problems: Sequence[str]) -> None:
        """Shows the draft's rows, with one for each logical axis of the model."""
        known = {name: None for array in self.state.arrays for name in array.logical_axes if name}
        built_in = [axis for axis in LOGICAL_AXES if not known or axis in known or is_of_activations(axis, known)]
        self.rules.show_draft(draft, [*dict.fromkeys((*built_in, *known))], problems)

    def action_turn(self, by: int) -> None:
        """Gives the row under the cursor its next value (`by` 1) or the previous one (-1)."""
        if self.draft and self.rules.row and (draft := stepped(self.draft, self.rules.row, by)):
            self.show_draft(draft)

    @on(OptionList.OptionSelected, "RuleList")
    def type_value(self) -> None:
        if self.draft and self.rules.row and (value := editable_text(self.draft, self.rules.row)) is not None:
            self.open_prompt(self.rules.row, self.rules.row.key, value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not self.is_mounted:
            return True
        return action == "leave" or not (self.prompt.row or why_not(action, self.state))

    def action_add_axis(self) -> None:
        if self.draft:
            self.open_prompt(NEW_AXIS, "new axis", "")

    def open_prompt(self, row: Row, label: str, value: str) -> None:
        self.prompt.open(row, label, value)
        self.refresh_bindings()

    @on(Input.Submitted)
    def accept_text(self, event: Input.Submitted) -> None:
        row = self.prompt.row
        if self.draft is None or row is None:
            return
        with self.warning():
            draft = with_text(self.draft, row, printable(event.value.strip()))
            self.close_prompt()
            self.show_draft(draft)
            self.rules.put_cursor_on((Row("axis", event.value.strip()) if row is NEW_AXIS else row).id)

    def close_prompt(self) -> None:
        self.prompt.close()
        self.rules.focus()
        self.refresh_bindings()

    def action_remove_axis(self) -> None:
        if self.draft and self.rules.row and self.rules.row.kind == "axis":
            self.show_draft(self.draft.without_axis(self.rules.row.key))

    def action_reset(self) -> None:
        if self.draft:
            self.show_draft(self.draft.reset())

    def action_leave(self) -> None:
        if self.prompt.row:
            self.close_prompt()
        else:
            self.close()

    def close(self) -> None:
        """Discards the draft, and leaves this view."""
        self.draft = None
        self.app.switch_mode("watch")  # pyright: ignore[reportUnknownMemberType]

    def action_apply(self) -> None:
        self.when_valid(apply_problems, self.apply)

    def action_save_preset(self) -> None:
        self.when_valid(save_problems, self.save)

    def when_valid(self, problems_of: Callable[[Draft, RunState], list[str]], then: Callable[[Draft], object]) -> None:
        """Calls `then` with the draft once the engine has found it valid; shows the problems if it is invalid."""
        draft = self.draft
        if draft is None:
            return
        if problems := problems_of(draft, self.state):
            self.warn(*problems)
        else:
            self.request.when_answered(lambda after: self.warn(*after.problems) if after.problems else then(draft))

    def apply(self, draft: Draft) -> None:
        """Switches the run to the draft, or to the preset that it equals, and closes the view."""
        is_known = draft.name in draft.used_names
        added = CommandRequested(AddPreset(draft.name, draft.text))
        self.post_message(PresetChosen(draft.name) if is_known else added)
        self.close()

    @work
    async def save(self, draft: Draft) -> None:
        """Writes the draft to the user's presets; asks first if it would replace a file or hide a built-in preset."""
        path = user_file(draft)
        with self.warning():
            if (question := replaced_by(path)) and not await self.ask(Confirm(question, "Replace", "Keep it")):
                return
            write_preset(path, draft.text)
            self.notify(
                f"{printable(str(path))}\navailable to every run that starts from now on", title="saved", markup=False
            )
