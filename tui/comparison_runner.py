"""Runs a comparison in a live run: passes it each event, and sends its next command to the engine."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from textual.app import App

from ..engine.wire.events import AnyEvent
from .client.engine_client import EngineClient
from .lookups import Lookups
from .notices import Notices
from .state.announcements import end_of_comparison
from .state.interpreter import apply
from .state.run_state import RunState
from .terminal.driver import Redraws

if TYPE_CHECKING:  # the first frame does not wait for it
    from .state.comparison import Comparison


class ComparisonRunner(Struct, eq=False):
    _app: App[None]
    _client: EngineClient
    _state: RunState
    _notices: Notices
    _redraws: Redraws
    _lookups: Lookups

    def begin(self, left_out: Collection[str] = ()) -> None:
        self._app.run_worker(self._begin(left_out), exclusive=True, group="comparison")

    async def _begin(self, left_out: Collection[str]) -> None:
        """Waits for the estimates first: their process slows the steps down."""
        from .state.comparison import Comparison, comparable_presets

        await self._lookups.wait_for_estimates()
        state = self._state
        if state.is_comparing or self._notices.refuses("measure") or not state.ready or not state.preset:
            return
        used = state.memory.bytes_in_use if state.memory else None
        chosen = [name for name in comparable_presets(state.ready.presets) if name not in left_out]
        if not chosen:
            self._notices.warn(["every preset is left out: include one with -"])
            return
        state.comparison = Comparison(chosen, state.preset, bytes_in_use=used)
        if command := state.comparison.proceed():
            await self._client.send(command)
        self._redraws.now()

    def apply(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            apply(self._state, event)
            if self._state.comparison and self._state.is_comparing:
                self._follow(self._state.comparison, event)

    def _follow(self, comparison: "Comparison", event: AnyEvent) -> None:
        if command := comparison.follow(event, self._state.preset, self._state.is_quiet):
            self._app.run_worker(self._client.send(command))
        if comparison.is_over:
            is_shown = self._app.current_mode == "compare"
            if notice := end_of_comparison(comparison, self._state.preset, is_shown):
                self._notices.show(notice)

    async def abandon(self) -> None:
        """Cancels the comparison when the UI exits, without a redraw."""
        if self._state.comparison and (command := self._state.comparison.cancel()):
            await self._client.send(command)
