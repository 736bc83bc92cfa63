"""The UI: keeps the run's state, shows it in the view that is up, and sends what the user asks for."""

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from textual import on, work
from textual.app import App, ScreenStackError, SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.events import Key
from textual.markup import escape
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.widget import AwaitMount, MountError
from textual.worker import Worker, WorkerError, WorkerFailed

from ..engine.base.invalid import Invalid
from ..engine.spec.config import Restart, RunConfig
from ..engine.wire.commands import (
    AddPreset,
    AnyCommand,
    InspectPreset,
    Pause,
    PreparePreset,
    ProfileSteps,
    RestoreCheckpoint,
    Resume,
    SaveCheckpoint,
    StepOnce,
    Stop,
    SwitchPreset,
)
from ..engine.wire.events import AnyEvent, EngineReady, Failed, MemoryMeasured, PresetAdded, StepsDone
from . import views
from .client.engine_client import EngineClient
from .messages import (
    ArrayChosen,
    ComparisonAsked,
    ComparisonCancelled,
    DeviceFollowed,
    DraftApplied,
    DraftChanged,
    EventsArrived,
    PresetChosen,
    PresetConsidered,
    ViewShown,
    WatchWanted,
)
from .screens.dialog import Dialog
from .screens.run_screen import RunScreen, keys_of
from .screens.watch import WatchScreen
from .state.announcements import announcement, last_words
from .state.availability import OURS, why_not
from .state.run_state import Phase, RunState
from .terminal.clean import printable
from .terminal.driver import Driver
from .terminal.exit_codes import FAILED, FINE, REFUSED

if TYPE_CHECKING:
    from .state.comparison import Comparison

T = TypeVar("T")
PROFILED = 5
"""Steps in the trace that a key asks for."""
PICTURE_SECONDS = 0.5
"""From one picture to the next, at least, where there is nothing new but steps."""
BYTES_PER_CELL = 0.45
"""In a second, on average, where there is nothing new but steps: 80 × 24 then fit a line of 9,600 baud."""


class ShardtuiApp(App[None]):
    TITLE = "shardtui"
    CSS_PATH = "app.tcss"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[None]]]] = {
        "watch": WatchScreen,
        "arrays": views.arrays,
        "mesh": views.mesh,
        "traffic": views.traffic,
        "lint": views.lint,
        "compare": views.compare,
        "plan": views.plan,
        "rules": views.rules,
        "log": views.log,
    }
    DEFAULT_MODE = "watch"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("1", "switch_mode('watch')", "Watch"),
        ("2", "switch_mode('arrays')", "Arrays"),
        ("3", "switch_mode('mesh')", "Mesh"),
        ("4", "switch_mode('traffic')", "Traffic"),
        ("5", "switch_mode('lint')", "Lint"),
        ("6", "switch_mode('compare')", "Compare"),
        ("7", "switch_mode('plan')", "Plan"),
        ("8", "edit_rules", "Rules"),
        ("0", "switch_mode('log')", "Log"),
        ("space", "pause", "Pause"),
        ("s", "step", "Step"),
        ("c", "checkpoints", "Checkpoints"),
        Binding("w", "save", "Save now", show=False),
        Binding("p", "profile", "Profile", show=False),
        Binding("r", "restart", "Restart", show=False),
        ("r", "go_on", "Go on"),
        ("d", "detach", "Detach"),
        Binding("q,ctrl+q", "detach", "Detach", show=False),
        ("x", "stop", "End run"),
        Binding("e", "export", "Export", show=False),
        ("question_mark", "help", "Help"),
    ]

    def __init__(self, client: EngineClient, starts: bool, restart: Restart | None = None) -> None:
        """`starts`: an engine is started once the first frame is drawn; `restart` says how it goes on with a run."""
        super().__init__(driver_class=Driver)
        self.client = client
        self.starts = starts
        self.restart = restart
        self.state = RunState()
        self.opened = time.time()
        self.shown = 0.0
        """When the last picture was made."""
        self.written = 0
        """Bytes before it."""
        self.next_picture: Timer | None = None
        self.asked: set[str] = set()
        self.offered: set[str] = set()
        """Actions of the keys that do something now."""
        self.estimating: Worker[None] | None = None

    def on_mount(self) -> None:
        self.call_after_refresh(self.begin)

    def begin(self) -> None:
        """Once the first frame is drawn."""
        if self.starts:
            self.start_engine(self.restart)
        else:
            self.follow()

    def start_engine(self, restart: Restart | None) -> None:
        try:
            self.client.start_engine(restart)
        except Invalid as error:
            failed = Failed(problems=list(error.problems), refused=True, time=time.time())
            self.post_message(EventsArrived([failed]))
        else:
            self.follow()

    @work(exclusive=True, group="follow")
    async def follow(self) -> None:
        """One engine; in the place of the one before."""
        async for events in self.client.events():
            self.post_message(EventsArrived(events))

    @on(EventsArrived)
    def apply(self, message: EventsArrived) -> None:
        if self.is_comparing:
            for event in message.events:
                self.lead(event)
        else:
            self.state.apply_all(message.events)
        others = [event for event in message.events if not isinstance(event, StepsDone)]
        for event in others:
            self.announce(event)
        self.show_keys()
        only_steps = message.events and all(isinstance(event, MemoryMeasured) for event in others)
        if not message.events:
            self.take_up_collecting()
        if self.client.is_behind or only_steps:
            self.show_soon()
        else:
            self.show_state()

    def show_keys(self) -> None:
        """Which of them do something now."""
        offered = {action for action in OURS if not why_not(action, self.state)}
        if offered != self.offered:
            self.offered = offered
            self.screen.refresh_bindings()

    def take_up_collecting(self) -> None:
        """The history is read. Until here all that was made is kept, and looking for garbage in it doubles the time."""
        gc.freeze()
        gc.enable()

    def show_soon(self) -> None:
        """For what is not urgent: a line over SSH has to carry every picture."""
        taken = (Driver.written - self.written) / (BYTES_PER_CELL * max(1, self.size.area))
        wait = self.shown + max(PICTURE_SECONDS, taken) - time.monotonic()
        if wait <= 0:
            self.show_state()
        elif self.next_picture is None:
            self.next_picture = self.set_timer(wait, self.show_state)

    def announce(self, event: AnyEvent) -> None:
        if isinstance(event, Failed) and event.refused and self.starts and not self.client.is_old(event):
            self.client.discard_if_new()
            self.exit(return_code=REFUSED)
        elif said := announcement(event, self.state, self.opened):
            self.notify(said.text, title=said.title, severity=said.severity, timeout=said.seconds, markup=False)
        if isinstance(event, PresetAdded):
            self.estimating = None  # it is not among them

    @on(ViewShown)
    def show_state(self) -> None:
        """A view that is only coming up asks for it once it is there."""
        self.shown, self.written = time.monotonic(), Driver.written
        if self.next_picture is not None:
            self.next_picture.stop()
            self.next_picture = None
        if isinstance(self.screen, RunScreen) and self.screen.is_mounted:
            self.screen.show_state(self.state)
            if self.screen.asks_compiler:
                self.ask_compiler()
            config, ready = self.state.config, self.state.ready
            if self.screen.asks_estimates and self.estimating is None and config and ready and self.state.is_heard:
                self.estimating = self.estimate(config, ready)

    def ask_compiler(self) -> None:
        """Once for each preset, and not before somebody looks: it costs half a compilation."""
        preset = self.state.preset
        if self.is_comparing:  # nothing is to run beside the steps
            return
        if preset and preset not in self.asked and not self.state.inspection and self.state.is_heard:
            self.asked.add(preset)
            self.run_worker(self.client.send(InspectPreset(preset)))

    @work
    async def estimate(self, config: RunConfig, ready: EngineReady) -> None:
        """Of all presets, by formula, in a process of its own."""
        from .client.estimating import estimates

        try:
            self.state.estimates = await estimates(config, ready)
        except Invalid as error:
            self.notify(
                "\n".join(map(printable, error.problems)), title="no estimates", severity="warning", markup=False
            )
        self.show_state()

    @property
    def is_comparing(self) -> bool:
        return self.state.comparison is not None and not self.state.comparison.is_over

    @on(ComparisonAsked)
    def measure_presets(self) -> None:
        self.begin_comparison()

    @work(exclusive=True, group="comparison")
    async def begin_comparison(self) -> None:
        """Of presets that fit, in turn. Not beside the estimates."""
        from .state.comparison import Comparison, worth_comparing

        if self.estimating:
            with suppress(WorkerError):  # the viewer is left meanwhile
                await self.estimating.wait()
        state = self.state
        if self.is_comparing or self.refuses("measure") or not state.ready or not state.preset:
            return
        used = state.memory.bytes_in_use if state.memory else None
        state.comparison = Comparison(worth_comparing(state.ready.presets), state.preset, bytes_in_use=used)
        await self.obey_comparison(state.comparison.begin())

    @on(ComparisonCancelled)
    async def cancel_comparison(self) -> None:
        if self.state.comparison:
            await self.obey_comparison(self.state.comparison.cancel())

    def lead(self, event: AnyEvent) -> None:
        """Tells the comparison what happened, and asks the engine for what comes next."""
        self.state.apply(event)
        comparison = self.state.comparison
        if comparison is None or comparison.is_over:
            return
        if command := comparison.follow(event, self.state.preset, self.state.is_quiet):
            self.run_worker(self.client.send(command))
        if comparison.is_over:
            self.tell_end_of(comparison)

    def tell_end_of(self, comparison: "Comparison") -> None:
        """Where the board is not seen."""
        from .state.comparison import CANCELLED

        why = comparison.ended_by
        if self.current_mode == "compare" and why in (None, CANCELLED):
            return
        text = f"back under {self.state.preset}; 6 shows the board" if not why or why == CANCELLED else why
        title = f"comparison {'cancelled' if why == CANCELLED else 'ended' if why else 'done'}"
        self.notify(text, title=title, severity="information" if not why else "warning", markup=False)

    async def obey_comparison(self, command: AnyCommand | None) -> None:
        if command:
            await self.client.send(command)
        self.show_state()

    @on(DeviceFollowed)
    def follow_device(self, message: DeviceFollowed) -> None:
        self.state.followed = message.device
        self.show_state()

    @on(ArrayChosen)
    async def show_array(self, message: ArrayChosen) -> None:
        from .screens.arrays import ArraysScreen

        await self.switch_mode("arrays")
        if isinstance(self.screen, ArraysScreen):
            self.screen.show_state(self.state)
            self.screen.select(message.name)

    @on(PresetChosen)
    async def switch_to(self, message: PresetChosen) -> None:
        if not self.refuses("switch"):
            await self.client.send(SwitchPreset(message.preset))

    @on(DraftChanged)
    async def weigh(self, message: DraftChanged) -> None:
        await self.client.send(message.question)

    @on(DraftApplied)
    async def add_preset(self, message: DraftApplied) -> None:
        await self.client.send(AddPreset(message.name, message.text))

    @on(WatchWanted)
    async def show_watch(self) -> None:
        await self.switch_mode("watch")

    @on(PresetConsidered)
    async def expect(self, message: PresetConsidered) -> None:
        info = self.state.preset_info(message.preset)
        is_wanted = info and info.fits and message.preset not in self.state.compiled
        if is_wanted and self.state.is_heard and not self.is_comparing:
            await self.client.send(PreparePreset(message.preset))

    async def action_pause(self) -> None:
        await self.client.send(Resume() if self.state.phase is Phase.PAUSED else Pause())

    async def action_step(self) -> None:
        await self.client.send(StepOnce())

    async def action_save(self) -> None:
        await self.client.send(SaveCheckpoint())

    async def action_profile(self) -> None:
        await self.client.send(ProfileSteps(PROFILED))

    @work
    async def action_checkpoints(self) -> None:
        from .screens.checkpoints import CheckpointsScreen

        step = await self.asks(CheckpointsScreen(self.state))
        if step is None:
            return
        if self.state.is_over:
            self.start_again(step)
        else:
            await self.client.send(RestoreCheckpoint(step))

    @work
    async def action_restart(self) -> None:
        """A new engine, where the one that trains hangs or is of another version: it saves and ends first."""
        from .screens.confirm import ConfirmRestart
        from .screens.restarting import Restarting

        run, state = self.client.directory, self.state
        if not await self.asks(ConfirmRestart(run.name, state.step)):
            return
        restarting = Restarting(run, state.step, has_trained=bool(state.preset))
        if await self.push_screen(restarting, wait_for_dismiss=True) == "ended":
            self.start_again()
        else:
            self.action_detach()

    def action_go_on(self) -> None:
        """With a run that has ended, or crashed."""
        self.clear_notifications()
        self.start_again()

    def start_again(self, step: int | None = None) -> None:
        """From that checkpoint, or the newest. A run that has made the steps it was given goes on without an end."""
        config = self.state.config
        if config and config.steps is not None and self.state.step >= config.steps:
            restart = Restart(step=step, config=msgspec.structs.replace(config, steps=None))
        else:
            restart = Restart(step=step)
        self.starts = False
        self.start_engine(restart)

    def _handle_exception(self, error: Exception) -> None:
        """While it leaves, what was on its way to a widget that is gone already is of no account."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not (self._exit and isinstance(cause, NoMatches | MountError | ScreenStackError)):
            super()._handle_exception(error)

    def action_detach(self) -> None:
        self.exit(return_code=FAILED if self.state.phase in (Phase.FAILED, Phase.LOST, Phase.DISCONNECTED) else FINE)

    async def on_unmount(self) -> None:
        """Whichever way the UI goes, nobody leads the comparison any more: the run returns to where it came from."""
        if self.state.comparison and (command := self.state.comparison.cancel()):
            await self.client.send(command)

    def action_export(self) -> None:
        """The view that is up, as a picture and as text, into the working directory."""
        from .terminal.export import save_view

        try:
            paths = save_view(self, f"{self.client.directory.name}-{self.current_mode}-{self.state.step}")
        except OSError as error:
            self.notify(f"{error.filename}: {error.strerror}", title="not exported", severity="error", markup=False)
        else:
            self.notify("\n".join(path.name for path in paths), title=f"exported to {Path.cwd()}", markup=False)

    async def action_edit_rules(self) -> None:
        """Of the preset under the cursor where a view has presets, else of the active one."""
        from .screens.rules import RulesScreen

        chosen = self.screen.chosen_preset if isinstance(self.screen, RunScreen) else None
        if not self.state.ready:
            self.notify("the engine has not found its devices yet", severity="warning")
            return
        await self.switch_mode("rules")
        if isinstance(self.screen, RulesScreen):
            self.screen.edit(chosen or self.state.preset, self.state)

    async def action_compare(self) -> None:
        await self.switch_mode("compare")
        self.post_message(ComparisonAsked())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not why_not(action, self.state)

    def refuses(self, action: str) -> bool:
        """And says why."""
        if why := why_not(action, self.state):
            self.notify(why, severity="warning", markup=False)
        return bool(why)

    def on_key(self, event: Key) -> None:
        """A key that does nothing because of the state of the run says why. What is typed does not come here."""
        if isinstance(self.screen, RunScreen) and event.key not in self.active_bindings:
            self.refuses((APP_KEYS | self.screen.named_keys).get(event.key, ""))

    def action_command_palette(self) -> None:
        from .palette import Palette

        if isinstance(self.screen, RunScreen):
            self.push_screen(Palette())

    def search_themes(self) -> None:
        from textual.theme import ThemeProvider

        from .palette import Palette

        self.push_screen(Palette(providers=[ThemeProvider], placeholder="Search for themes…"))

    def switch_mode(self, mode: str) -> AwaitMount:
        """Not under a dialog or the palette, for a key that was pressed before it came up: it would be gone with the
        view, or miss the view that it was opened from."""
        return AwaitMount(self.screen, []) if isinstance(self.screen, ModalScreen) else super().switch_mode(mode)

    async def asks(self, dialog: Dialog[T]) -> T | None:
        """The answer; None where another dialog or the palette is up, or has just come up. For workers."""
        if not isinstance(self.screen, RunScreen):
            return None
        return await self.push_screen(dialog, wait_for_dismiss=True)

    async def action_switch_mode(self, mode: str) -> None:
        """The next key is for the view that comes up."""
        await self.switch_mode(mode)

    def action_help(self) -> None:
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        elif self.screen.is_mounted:
            self.action_show_help_panel()

    @work
    async def action_stop(self) -> None:
        from .screens.confirm import ConfirmStop

        if await self.asks(ConfirmStop(self.client.directory.name, self.state.step)):
            await self.client.send(Stop())

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)  # pyright: ignore[reportUnknownMemberType]
        yield SystemCommand("Detach", "Leave the run training and close the UI", self.action_detach)
        yield SystemCommand("Export this view", "As .svg and .txt into the working directory", self.action_export)
        for action, title, text, command in self.commands():
            if not why_not(action, self.state):
                yield SystemCommand(title, text, command)
        if not why_not("switch", self.state):
            yield from self.switches()

    def commands(self) -> Iterable[tuple[str, str, str, Callable[[], Any]]]:
        """The action that each stands for, its title, what it does, and how."""
        yield "pause", "Pause or resume", "Between two steps", self.action_pause
        yield "step", "Step", "One step, then pause", self.action_step
        yield "save", "Save now", "A checkpoint beside the steps", self.action_save
        yield "profile", "Profile", f"Trace the next {PROFILED} steps for xprof", self.action_profile
        yield "measure", "Compare presets", "Measure each that fits in this run", self.action_compare
        yield "edit_rules", "Edit rules", "Of a preset, to see what follows and go on under it", self.action_edit_rules
        yield "checkpoints", "Checkpoints", "Go back to one of them", self.action_checkpoints
        yield "restart", "Restart", "A new engine goes on from the newest checkpoint", self.action_restart
        yield "go_on", "Go on", "A new engine goes on from the newest checkpoint", self.action_go_on
        yield "stop", "End run", "Stop the engine after its current step", self.action_stop

    def switches(self) -> Iterable[SystemCommand]:
        for info in self.state.ready.presets if self.state.ready else ():
            command: AnyCommand = SwitchPreset(info.name)
            yield SystemCommand(
                escape(f"Switch to {info.name}"),
                escape(info.summary),
                lambda command=command: self.client.send(command),
            )

    def last_words(self) -> list[str]:
        """What to say on the terminal once the UI has gone."""
        if self.return_code == REFUSED:
            return [f"shardtui: {problem}" for problem in self.state.problems]
        return last_words(self.client.directory.name, self.state)


APP_KEYS = keys_of(ShardtuiApp.BINDINGS)
