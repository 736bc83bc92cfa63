"""The run's engine as the user controls it: started, followed, stopped, restarted."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct
from textual.app import App

from ..engine.base.user_error import UserError
from ..engine.spec.config import Restart, RunConfig
from ..engine.wire.commands import RestoreCheckpoint, Stop
from ..engine.wire.events import AnyEvent, Failed
from ..engine.wire.run_directory import RunDirectory, all_runs
from .client.engine_client import EngineClient
from .client.started_engine import refused
from .messages import EventsArrived
from .screens.dialog import Dialog
from .screens.run_screen import RunScreen
from .state.announcements import exit_lines
from .state.run_state import Phase, RunState
from .terminal import FAILED, FINE, REFUSED
from .terminal.clean import clean_events

T = TypeVar("T")


class Lifecycle(Struct, eq=False):
    _app: App[None]
    _client: EngineClient
    _state: RunState
    _first: Restart | None
    """How the first engine begins, if it is started from here: the UI exits if that one refuses the run."""
    _new_run: Callable[[], RunDirectory] | None
    """Makes a new run, if the user chooses that; None once a run is chosen."""

    def begin(self) -> None:
        if self._new_run:
            self._app.run_worker(self._choose(self._new_run))
        elif self._first:
            self._start(self._first)
        else:
            self._follow()

    async def _choose(self, new_run: Callable[[], RunDirectory]) -> None:
        from .screens.runs import RunsScreen

        chosen = await self._app.push_screen(RunsScreen(all_runs()), wait_for_dismiss=True)
        if chosen is None:
            self._app.exit(return_code=FINE)
            return
        self._new_run = None
        try:
            self._first = None if chosen.run else Restart()
            self._client.directory = run = chosen.run or new_run()
            self._state.name = run.name
            if chosen.run and chosen.resumes_after is None:
                self._follow()
            else:
                self._start(restart_of(run.config, chosen.resumes_after or 0))
        except UserError as error:
            self._fail(error)

    def _start(self, restart: Restart) -> None:
        try:
            self._client.start_engine(restart)
        except UserError as error:
            self._fail(error)
        else:
            self._follow()

    def _fail(self, error: UserError) -> None:
        self._app.post_message(EventsArrived([refused(*error.problems)]))

    def _follow(self) -> None:
        """Follows an engine's events, in place of the previous engine's, and those of whoever resumes the run."""
        self._app.run_worker(self._report_events(), exclusive=True, group="follow")

    async def _report_events(self) -> None:
        while True:
            async for events in self._client.events():
                self._app.post_message(EventsArrived(clean_events(events)))
            if self._client.damage:
                self._app.notify(self._client.damage, title="damaged", severity="warning", markup=False)
            if self._client.playback:
                return
            await self._client.resumed_elsewhere(self._state.pid)
            self._first = None

    def is_refused(self, event: AnyEvent) -> bool:
        return isinstance(event, Failed) and event.refused and bool(self._first) and not self._client.is_old(event)

    def leave_refused(self) -> None:
        self._client.discard_if_new()
        self._app.exit(return_code=REFUSED)

    def detach(self) -> None:
        is_bad = self._state.phase in (Phase.FAILED, Phase.LOST, Phase.DISCONNECTED)
        self._app.exit(return_code=FAILED if is_bad else FINE)

    def exit_lines(self) -> list[str]:
        """Returns the lines to print on the terminal after the UI has exited."""
        if self._app.return_code == REFUSED:
            return [f"shardtui: {problem}" for problem in self._state.problems]
        if self._new_run:
            return []
        damage = [self._client.damage] if self._client.damage else []
        return [*damage, *exit_lines(self._client.directory.name, self._state)]

    async def stop(self) -> None:
        from .screens.confirm import Confirm

        run = self._client.directory.name
        ends = f"Save and end run {run} after step {self._state.step:,}?\nTo leave it training, detach (d) instead."
        if await self._ask(Confirm(ends, "End it")):
            await self._client.send(Stop())

    async def choose_checkpoint(self) -> None:
        """Restores the checkpoint that the user chooses, in a new engine if the run has ended."""
        from .screens.checkpoints import CheckpointsScreen

        step = await self._ask(CheckpointsScreen(self._state))
        if step is None:
            return
        if not self._state.is_over:
            await self._client.send(RestoreCheckpoint(step))
        elif step in {checkpoint.step for checkpoint in self._state.checkpoints}:
            self._resume(step)
        else:  # an engine that ended meanwhile has saved a later one
            self._app.notify(f"the checkpoint of step {step:,} is no longer kept: choose another", severity="warning")

    async def restart(self) -> None:
        """Replaces an engine that hangs or has another version: it saves and ends, then a new one resumes the run."""
        from .screens.confirm import Confirm
        from .screens.restarting import Restarting

        run, state = self._client.directory, self._state
        how = f"after step {state.step:,}?\nIt saves and ends; a new process resumes from there."
        if not await self._ask(Confirm(f"Restart the engine of {run.name} {how}", "Restart")):
            return
        restarting = Restarting(run, state.step, has_trained=bool(state.preset))
        if await self._app.push_screen(restarting, wait_for_dismiss=True) == "ended":
            self._resume()
        else:
            self.detach()

    def resume(self) -> None:
        self._app.clear_notifications()
        if not self._client.is_trained_elsewhere(self._state.pid):  # or it is about to be followed
            self._resume()

    def _resume(self, step: int | None = None) -> None:
        """Resumes from the checkpoint of `step`, or the newest. A run that has done all its steps then has no limit."""
        self._first = None
        self._start(restart_of(self._state.config, self._state.step, step))

    async def _ask(self, dialog: Dialog[T]) -> T | None:
        """Returns the user's answer; None if another dialog is open."""
        screen = self._app.screen
        return await screen.ask(dialog) if isinstance(screen, RunScreen) else None


def restart_of(config: RunConfig | None, done: int, step: int | None = None) -> Restart:
    """Returns how a run resumes from the checkpoint of `step`, or the newest; without limit if all steps are `done`."""
    if config and config.steps is not None and done >= config.steps:
        return Restart(step=step, config=msgspec.structs.replace(config, steps=None))
    return Restart(step=step)
