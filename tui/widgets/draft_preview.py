"""The preview of a draft: what a step would cost and which arrays change, or why the draft is invalid."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from ...engine.wire.events import PresetPreviewed
from ..state.preview_request import NO_ENGINE
from .preset_diff import Changes, Costs


class DraftPreview(Vertical):
    """Costs before and after, and below them the arrays that change or the problems."""

    def compose(self) -> ComposeResult:
        yield Costs()
        yield Changes()

    def show_preview(self, name: str, previewed: PresetPreviewed, limit: int | None) -> None:
        """Shows the engine's answer. `limit`: bytes of memory on a device, None if unknown."""
        problems = previewed.after.problems
        self.query_one(Costs).show_costs(None if problems else previewed, limit)
        if problems:
            self.query_one(Changes).show_problems(name, problems)
        else:
            self.query_one(Changes).show_changes(previewed)

    def show_without_engine(self, name: str, problems: Sequence[str]) -> None:
        """Shows the problems that are known without an engine, or that there is none to ask."""
        self.query_one(Costs).show_costs(None, None)
        if problems:
            self.query_one(Changes).show_problems(name, problems)
        else:
            self.query_one(Changes).show_contents("no preview", [Content(NO_ENGINE)])
