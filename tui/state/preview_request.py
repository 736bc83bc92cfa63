"""The engine's preview of a draft: requested after each edit, awaited, and then used as the user requested."""

from collections.abc import Callable

import msgspec

from ...engine.spec.preset_writer import preset_text
from ...engine.wire.commands import PreviewPreset
from ...engine.wire.descriptions import Preview
from ...engine.wire.events import EngineReady, PresetPreviewed
from .draft import Draft
from .run_state import RunState

NO_ENGINE = (
    "Not connected to an engine, and only an engine can tell how each array would be laid out. r resumes the run."
)


class PreviewRequest:
    """A request for a preview of the current draft. After an edit, or with another engine, earlier answers are void."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the current request, which its answer carries."""
        self.answer: PresetPreviewed | None = None
        self._engine: tuple[EngineReady | None, bool] = (None, False)
        """The engine that the request is for, and whether it was live."""
        self._then: Callable[[Preview], object] | None = None
        """Called with the preview once that is shown."""

    def renew(self, state: RunState) -> None:
        self.number += 1
        self.answer = self._then = None
        self._engine = (state.ready, state.is_live)

    def is_current(self, state: RunState) -> bool:
        return self._engine == (state.ready, state.is_live)

    def command(self, draft: Draft) -> PreviewPreset:
        """Returns the command that requests the preview. Summaries do not affect it and are left out."""
        before, after = (
            preset_text(msgspec.structs.replace(preset, summary="", teaches=""))
            for preset in (draft.origin, draft.preset)
        )
        return PreviewPreset(self.number, draft.name, before, after)

    def accept(self, previewed: PresetPreviewed | None) -> bool:
        """Stores the answer. Returns False if it belongs to another request, or is stored already."""
        if previewed is None or previewed is self.answer or previewed.number != self.number:
            return False
        self.answer = previewed
        return True

    def when_answered(self, then: Callable[[Preview], object]) -> None:
        """Calls `then` with the draft's preview, now or in `proceed`; never if the draft changes before."""
        self._then = then
        self.proceed()

    def proceed(self) -> None:
        """Calls the callback, if there is an answer. Call it once that is shown."""
        if self.answer and (then := self._then):
            self._then = None
            then(self.answer.after)


def apply_problems(draft: Draft, state: RunState) -> list[str]:
    """Returns why the run cannot switch to the draft, as far as that is known before its preview."""
    if not state.is_live:
        return [NO_ENGINE]
    if draft.name in draft.used_names and (draft.is_changed or draft.name != draft.origin.name):
        return [f"the run already has a preset {draft.name}: choose another name"]
    return []


def save_problems(draft: Draft, state: RunState) -> list[str]:
    return draft.problems() or ([] if state.is_live else [NO_ENGINE])
