"""The UI: holds the run's state, shows it in the current view, and delegates what the user requests."""

import gc
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.events import Key
from textual.screen import Screen

from ..engine.spec.config import Restart
from ..engine.wire.commands import CancelSwitch, MeasureNumbers, Pause, Resume, SaveCheckpoint, StepOnce, SwitchPreset
from ..engine.wire.events import MemoryMeasured, StepsDone
from ..engine.wire.run_directory import RunDirectory
from .app_keys import ACTIONS, KEYS, VIEWS
from .base_app import BaseApp
from .client.engine_client import EngineClient
from .lifecycle import Lifecycle
from .lookups import Lookups
from .messages import (
    CommandRequested,
    ComparisonRequested,
    EventsArrived,
    OriginRequested,
    PresetChosen,
    RowChosen,
    ViewShown,
)
from .notices import Notices, Window
from .screens.run_screen import RunScreen
from .screens.watch import WatchScreen
from .state.availability import why_not
from .state.interpreter import apply_all
from .state.run_state import Phase, RunState
from .terminal.driver import Redraws

if TYPE_CHECKING:
    from .state.tour import Tour


class ShardtuiApp(BaseApp[None]):
    """The Textual app. Long because Textual looks for all actions and message handlers here; each delegates."""

    TITLE = "shardtui"
    MODES = VIEWS
    DEFAULT_MODE = "watch"
    BINDINGS: ClassVar[list[BindingType]] = KEYS

    def __init__(
        self,
        client: EngineClient,
        restart: Restart | None = None,
        keymap: Mapping[str, str] | None = None,
        new_run: Callable[[], RunDirectory] | None = None,
        tour: "Tour | None" = None,
    ) -> None:
        """`restart`: how the engine begins that is started after the first frame; None if none is.

        `keymap`: the user's keys by the ids of their bindings. `new_run`: makes a new run; if it is given, the user
        chooses between that and the earlier runs. `tour`: lessons to show with the views.
        """
        super().__init__(keymap or {})
        self.client = client
        self.state = state = RunState(client.directory.name, client.host, playback=client.playback, tour=tour)
        self.redraws = Redraws(self, self.draw)
        self.notices = Notices(self, state)
        self.lookups = Lookups(self, client, state, self.notices, self.redraws)
        self.lifecycle = Lifecycle(self, client, state, restart, new_run)
        self.window = Window()

    def get_default_screen(self) -> WatchScreen:
        """Returns the first view, which is a mode only later: Textual would parse all styles once more for it."""
        return WatchScreen()

    def on_mount(self) -> None:
        self.add_mode(self.DEFAULT_MODE, WatchScreen)  # pyright: ignore[reportUnknownMemberType]
        self.call_after_refresh(self.lifecycle.begin)  # once the first frame is drawn

    async def on_unmount(self) -> None:
        self.window.restore(self._driver)
        await self.lookups.close()

    @on(EventsArrived)
    async def apply(self, message: EventsArrived) -> None:
        """Applies events to the run's state, then redraws: at once, or later if only steps are new."""
        if self.state.is_comparing:
            self.lookups.apply(message.events)
        else:
            apply_all(self.state, message.events)
        others = [event for event in message.events if not isinstance(event, StepsDone)]
        for event in others:
            await self.lookups.note(event)
            if self.lifecycle.is_refused(event):
                self.lifecycle.leave_refused()
            else:
                self.notices.announce(event)
        only_steps = message.events and all(isinstance(event, MemoryMeasured) for event in others)
        if not message.events:
            gc.freeze()  # scanning the history would double the time that reading it takes
            gc.enable()
        if self.client.is_behind or only_steps:
            self.redraws.soon()
        else:
            self.redraws.now()

    @on(ViewShown)
    def show_state(self) -> None:
        self.notices.show_held()
        self.redraws.now()

    def draw(self) -> None:
        self.window.show(self.state, self._driver)
        screen = self.screen  # what it is shown may open a dialog over it
        if isinstance(screen, RunScreen) and screen.is_mounted:
            screen.show_state(self.state)
            screen.refresh_bindings()
            if screen.needs_inspection:
                self.lookups.inspect()
            if screen.needs_estimates:
                self.lookups.estimate()

    @on(ComparisonRequested)
    def measure_presets(self, message: ComparisonRequested) -> None:
        self.lookups.compare(message.left_out)

    @on(RowChosen)
    async def show_row(self, message: RowChosen) -> None:
        await self.switch_mode(message.view)
        if isinstance(screen := self.screen, RunScreen):
            screen.show_state(self.state)
            cast(Any, screen).select(*message.row)

    @on(OriginRequested)
    def show_origin(self, message: OriginRequested) -> None:
        from .screens.origin import OriginScreen

        if self.state.layout and isinstance(self.screen, RunScreen):
            step, arrays = self.state.layout, list(self.state.arrays)
            if self.state.tour:
                self.state.tour.visit("origin")
            self.push_screen(OriginScreen(message.page, step.preset, step.mesh, self.lookups.explain(), arrays))

    @on(PresetChosen)
    async def switch_to(self, message: PresetChosen) -> None:
        """Requests a switch, or cancels the one to that preset; says why if the run cannot switch now."""
        is_cancelled = self.state.pending and self.state.pending.preset == message.preset
        if is_cancelled:
            await self.action_cancel_switch()
        elif not self.notices.refuses("switch"):
            self.show_request(message.preset if message.preset != self.state.preset else "")
            await self.client.send(SwitchPreset(message.preset))

    async def action_cancel_switch(self) -> None:
        self.show_request("")
        await self.client.send(CancelSwitch())

    def show_request(self, preset: str) -> None:
        """Shows at once which preset is requested."""
        self.state.requested = preset
        self.redraws.now()

    @on(CommandRequested)
    async def send_command(self, message: CommandRequested) -> None:
        await self.client.send(message.command)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not why_not(action, self.state)

    def on_key(self, event: Key) -> None:
        """Says why a key does nothing in this state of the run. Keys that a text field takes do not arrive here."""
        if isinstance(self.screen, RunScreen) and event.key not in self.active_bindings:
            self.notices.refuses((ACTIONS | self.screen.named_keys).get(event.key, ""))

    async def action_pause(self) -> None:
        if playback := self.state.playback:
            playback.toggle()
            self.redraws.now()
        else:
            await self.client.send(Resume() if self.state.phase is Phase.PAUSED else Pause())

    def action_speed(self, factor: float) -> None:
        if playback := self.state.playback:
            playback.scale(factor)
            self.redraws.now()

    def action_skip_lesson(self) -> None:
        if tour := self.state.tour:
            tour.skip()
            self.redraws.now()

    async def action_step(self) -> None:
        await self.client.send(StepOnce())

    async def action_save(self) -> None:
        await self.client.send(SaveCheckpoint())

    async def action_measure_numbers(self) -> None:
        self.state.numbers.is_requested = True
        self.redraws.now()
        await self.client.send(MeasureNumbers())

    async def action_experts(self) -> None:
        await self.switch_mode("experts")

    @work
    async def action_nonfinite(self) -> None:
        from .screens.nonfinite import NonfiniteScreen

        if self.state.nonfinite and isinstance(self.screen, RunScreen):
            chosen = await self.screen.ask(NonfiniteScreen(self.state.nonfinite, self.state))
            if chosen:
                self.post_message(chosen)

    async def action_profile(self) -> None:
        await self.lookups.profile()

    @work
    async def action_checkpoints(self) -> None:
        await self.lifecycle.choose_checkpoint()

    @work
    async def action_restart(self) -> None:
        await self.lifecycle.restart()

    @work
    async def action_stop(self) -> None:
        await self.lifecycle.stop()

    def action_resume(self) -> None:
        self.lifecycle.resume()

    def action_detach(self) -> None:
        self.lifecycle.detach()

    async def action_measure(self) -> None:
        await self.switch_mode("compare")
        self.lookups.compare()

    async def action_edit_rules(self) -> None:
        """Opens the editor on the preset under the view's cursor, or else on the active one."""
        from .screens.rules import RulesScreen

        chosen = self.screen.chosen_preset if isinstance(self.screen, RunScreen) else None
        if not self.state.ready:
            self.notices.warn(["the engine has not found its devices yet"])
            return
        await self.switch_mode("rules")
        if isinstance(self.screen, RulesScreen):
            self.screen.edit(chosen or self.state.preset, self.state)

    def action_export(self) -> None:
        from .terminal.export import save_view

        save_view(self, f"{self.client.directory.name}-{self.current_mode}-{self.state.step}")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        from .palette import OF_TEXTUAL, palette_commands

        for command in super().get_system_commands(screen):  # pyright: ignore[reportUnknownMemberType]
            if command.title in OF_TEXTUAL:
                yield command
        yield from palette_commands(self, self.state)
