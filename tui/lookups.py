"""Requests what takes the engine or this machine time: what a view first shows, a profile, a comparison of presets."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from textual.app import App
from textual.worker import Worker, WorkerError

from ..engine.base.user_error import UserError
from ..engine.spec.config import RunConfig
from ..engine.spec.preset import reference
from ..engine.wire.commands import InspectPreset, ProfileSteps
from ..engine.wire.events import AnyEvent, EngineReady, EngineStarted, PresetAdded, Profiled, ProfileFailed
from .app_keys import PROFILE_STEPS
from .client.engine_client import EngineClient
from .notices import Notices
from .state.announcements import end_of_comparison
from .state.interpreter import apply
from .state.run_state import RunState
from .terminal.driver import Redraws

if TYPE_CHECKING:  # the first frame does not wait for them
    from ..engine.explain.explanation import StepRequest
    from .client.explainer import Explain, Explainer
    from .state.comparison import Comparison


class Lookups(Struct, eq=False):
    _app: App[None]
    _client: EngineClient
    _state: RunState
    _notices: Notices
    _redraws: Redraws
    _inspected: set[str] = set()
    _explainer: "Explainer | None" = None
    """Keeps the explanations of steps; None before the first."""
    _estimating: Worker[None] | None = None
    """The estimates under way or done; None before the first, and after a preset was added."""
    awaits_profile: bool = False
    """Whether the user has requested a profile here that is not there yet."""

    async def note(self, event: AnyEvent) -> None:
        if isinstance(event, EngineStarted):  # which no request to the one before has reached
            self._inspected.clear()
            self.awaits_profile = False
        if isinstance(event, PresetAdded):
            self._estimating = None  # the new preset has no estimate yet
        if self.awaits_profile and isinstance(event, Profiled | ProfileFailed):
            self.awaits_profile = False
            if isinstance(event, Profiled) and event.breakdown:
                await self._app.switch_mode("time")

    async def profile(self) -> None:
        """Traces the next `PROFILE_STEPS` steps; Time opens once they are read."""
        self.awaits_profile = True
        await self._client.send(ProfileSteps(PROFILE_STEPS))

    def inspect(self) -> None:
        """Requests the gradients and activations of the active preset, except while steps are timed."""
        preset, state = self._state.preset, self._state
        if not preset or preset in self._inspected or state.inspection:
            return
        if state.is_live and not state.is_comparing:
            self._inspected.add(preset)
            self._app.run_worker(self._client.send(InspectPreset(preset)))

    def estimate(self) -> None:
        config, ready = self._state.config, self._state.ready
        if self._estimating is None and config and ready and self._state.is_live:
            self._estimating = self._app.run_worker(self._estimate(config, ready))

    def explain(self) -> "Explain":
        """Returns what explains the active preset's step. It raises UserError if the step is not known."""
        from ..engine.explain.explanation import KeptStepRequest
        from .client.explainer import Explainer, Explanation, Rules

        step, kept = explained_step(self._state), self._client.directory.step
        explainer = self._explainer = self._explainer or Explainer()

        async def explain(rules: Rules) -> list[Explanation]:
            if step:
                return await explainer.explain(msgspec.structs.replace(step, rules=rules))
            if rules or not kept.exists():
                raise UserError(NO_RULES if rules else NOT_KEPT)
            return await explainer.explain(KeptStepRequest(path=str(kept)))

        return explain

    def compare(self, left_out: Collection[str] = ()) -> None:
        """Measures the presets in this run, without those that are `left_out`."""
        self._app.run_worker(self._compare(left_out), exclusive=True, group="comparison")

    async def _compare(self, left_out: Collection[str]) -> None:
        """Waits for the estimates first: their process slows the steps down."""
        from .state.comparison import Comparison, comparable_presets

        if self._estimating:
            with suppress(WorkerError):  # the app exits meanwhile
                await self._estimating.wait()
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
        """Applies events to the run's state during a comparison, which takes each of them, too."""
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

    async def close(self) -> None:
        """Cancels a comparison and ends explanations, as the UI exits."""
        if self._state.comparison and (command := self._state.comparison.cancel()):
            await self._client.send(command)
        if self._explainer:
            await self._explainer.close()

    async def _estimate(self, config: RunConfig, ready: EngineReady) -> None:
        from .client.planner import estimates

        try:
            self._state.estimates = await estimates(config, ready, ready.presets)
        except UserError as error:
            self._notices.warn(error.problems, title="no estimates")
        self._redraws.now()


NOT_KEPT = "the step of this run is not known: give watch the jitted function and its args, or step.lower(…)"
NO_RULES = "a run in an external loop has no rules to try: its shardings are in its program"


def explained_step(state: RunState) -> "StepRequest | None":
    """Returns the active preset's step; None if the run has no configuration, or no preset yet."""
    from ..engine.explain.explanation import StepRequest

    if state.config is None or state.ready is None or not state.preset:
        return None
    info, devices = state.preset_info(state.preset), state.ready.devices
    config = msgspec.structs.replace(
        state.config,
        preset=reference(info.name, info.source) if info else state.preset,
        devices=len(devices) or state.config.devices,
        platform=devices[0].platform if devices else state.config.platform,
    )
    return StepRequest(config=config, is_simulated=True)
