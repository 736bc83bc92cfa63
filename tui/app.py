"""The UI: keeps the run's state, shows it in the view that is up, and sends what the user asks for."""

import gc
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from textual import on, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.markup import escape
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker

from ..engine.config import Invalid, Restart, RunConfig
from ..engine.protocol import (
    AddPreset,
    AnyCommand,
    AnyEvent,
    CheckpointDamaged,
    CheckpointFailed,
    CommandRefused,
    EngineLost,
    EngineReady,
    EngineStarted,
    Failed,
    InspectPreset,
    MemoryMeasured,
    Pause,
    Paused,
    PreparePreset,
    PresetAdded,
    Profiled,
    ProfileFailed,
    ProfileSteps,
    RestoreCheckpoint,
    RestoreFailed,
    Resume,
    SaveCheckpoint,
    StepOnce,
    StepsDone,
    Stop,
    SwitchFailed,
    SwitchPreset,
)
from . import views
from .clean import printable
from .driver import Driver
from .engine_client import EngineClient
from .exit_codes import FAILED, FINE, REFUSED
from .log_lines import in_words, opened_by, profile
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
from .run_state import Phase, RunState
from .screens.run_screen import RunScreen
from .screens.watch import WatchScreen

if TYPE_CHECKING:
    from .comparison import Comparison

COMMANDING = ("pause", "step", "save", "profile", "checkpoints", "restart", "stop", "edit_rules")
"""Actions that a run which is only watched cannot follow."""
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

    @work
    async def follow(self) -> None:
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
        only_steps = message.events and all(isinstance(event, MemoryMeasured) for event in others)
        if not message.events:
            self.take_up_collecting()
        if self.client.is_behind or only_steps:
            self.show_soon()
        else:
            self.show_state()

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
        """What went wrong is said where the user looks, whichever view is up."""
        match event:
            case EngineStarted() if event.watched:
                self.screen.refresh_bindings()
            case CommandRefused():
                self.notify(event.problem, severity="warning", markup=False)
            case SwitchFailed() if event.time >= self.opened:
                self.notify(
                    "\n".join(event.problems), title=f"no switch to {event.to_preset}", severity="error", markup=False
                )
            case Failed() if event.refused and self.starts and not self.client.is_old(event):
                self.client.discard_if_new()
                self.exit(return_code=REFUSED)
            case EngineLost() | Failed() if event.time >= self.opened or isinstance(event, EngineLost):
                self.complain(f"{in_words(event)}\n{self.way_on()}", "the run cannot go on")
            case CheckpointFailed() | CheckpointDamaged() | RestoreFailed() if event.time >= self.opened:
                self.complain(in_words(event), "checkpoint")
            case PresetAdded():
                self.estimating = None  # it is not among them
            case Profiled() if event.time >= self.opened:
                self.notify(opened_by(event), title=profile(event), timeout=60, markup=False)
            case ProfileFailed() if event.time >= self.opened:
                self.complain(in_words(event), "profile")
            case Paused(problem=str(problem)) if event.time >= self.opened:
                self.complain(f"{problem}\nc: checkpoints · space: resume", f"paused after step {event.step:,}")
            case EngineReady() if event.warnings:
                self.notify("\n".join(event.warnings), severity="warning", timeout=60, markup=False)
            case _:
                pass

    def complain(self, text: str, title: str) -> None:
        self.notify(text, title=title, severity="error", timeout=60, markup=False)

    def way_on(self) -> str:
        if self.state.watched:
            return "it was only watched: start its program again"
        newest = self.state.newest
        return f"r restarts it from {f'the checkpoint of step {newest.step:,}' if newest else 'the beginning'}"

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
            if self.screen.asks_estimates and self.estimating is None and config and ready and not self.state.is_over:
                self.estimating = self.estimate(config, ready)

    def ask_compiler(self) -> None:
        """Once for each preset, and not before somebody looks: it costs half a compilation."""
        preset = self.state.preset
        if self.is_comparing:  # nothing is to run beside the steps
            return
        if preset and preset not in self.asked and not self.state.inspection and not self.state.is_over:
            self.asked.add(preset)
            self.run_worker(self.client.send(InspectPreset(preset)))

    @work
    async def estimate(self, config: RunConfig, ready: EngineReady) -> None:
        """Of all presets, by formula, in a process of its own."""
        from .estimating import estimates

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
        from .comparison import Comparison, worth_comparing

        if self.estimating:
            await self.estimating.wait()
        state = self.state
        if self.is_comparing or state.is_over or state.watched or not state.ready or not state.preset:
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
        from .comparison import CANCELLED

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
        if is_wanted and not self.state.is_over and not self.is_comparing:
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

        step = await self.push_screen_wait(CheckpointsScreen(self.state))
        if step is None:
            return
        if self.state.is_over:
            self.start_again(step)
        else:
            await self.client.send(RestoreCheckpoint(step))

    @work
    async def action_restart(self) -> None:
        """A new engine: after a crash, or where a compilation hangs."""
        from .screens.confirm import ConfirmRestart

        if not self.state.is_over:
            if not await self.push_screen_wait(ConfirmRestart(self.client.directory.name, self.state.step)):
                return
            await self.client.end_engine()
        self.start_again()

    def start_again(self, step: int | None = None) -> None:
        """From that checkpoint, or the newest. A run that has made the steps it was given goes on without an end."""
        config = self.state.config
        if config and config.steps is not None and self.state.step >= config.steps:
            restart = Restart(step=step, config=msgspec.structs.replace(config, steps=None))
        else:
            restart = Restart(step=step)
        self.starts = False
        self.clear_notifications()
        self.start_engine(restart)

    def action_detach(self) -> None:
        self.exit(return_code=FAILED if self.state.phase in (Phase.FAILED, Phase.LOST) else FINE)

    async def on_unmount(self) -> None:
        """Whichever way the UI goes, nobody leads the comparison any more: the run returns to where it came from."""
        if self.state.comparison and (command := self.state.comparison.cancel()):
            await self.client.send(command)

    def action_export(self) -> None:
        """The view that is up, as a picture and as text, into the working directory."""
        from .export import save_view

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
        return not (action in COMMANDING and self.state.watched)

    def action_help(self) -> None:
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    @work
    async def action_stop(self) -> None:
        from .screens.confirm import ConfirmStop

        if self.state.is_over:
            self.action_detach()
        elif await self.push_screen_wait(ConfirmStop(self.client.directory.name, self.state.step)):
            await self.client.send(Stop())

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)  # pyright: ignore[reportUnknownMemberType]
        yield SystemCommand("Detach", "Leave the run training and close the UI", self.action_detach)
        yield SystemCommand("Export this view", "As .svg and .txt into the working directory", self.action_export)
        if not self.state.watched:
            yield from self.commands()

    def commands(self) -> Iterable[SystemCommand]:
        """What asks something of the engine."""
        yield SystemCommand("Pause or resume", "Between two steps", self.action_pause)
        yield SystemCommand("Step", "One step, then pause", self.action_step)
        yield SystemCommand("Save now", "A checkpoint beside the steps", self.action_save)
        yield SystemCommand("Profile", f"Trace the next {PROFILED} steps for xprof", self.action_profile)
        yield SystemCommand("Compare presets", "Measure each that fits in this run", self.action_compare)
        yield SystemCommand("Edit rules", "Of a preset, to see what follows and go on under it", self.action_edit_rules)
        yield SystemCommand("Checkpoints", "Go back to one of them", self.action_checkpoints)
        yield SystemCommand("Restart", "A new engine goes on from the newest checkpoint", self.action_restart)
        yield SystemCommand("End run", "Stop the engine after its current step", self.action_stop)
        for info in self.state.ready.presets if self.state.ready else ():
            command: AnyCommand = SwitchPreset(info.name)
            yield SystemCommand(
                escape(f"Switch to {info.name}"),
                escape(info.summary),
                lambda command=command: self.client.send(command),
            )

    def last_words(self) -> list[str]:
        """What to say on the terminal once the UI has gone."""
        run = self.client.directory.name
        if self.return_code == REFUSED:
            return [f"shardtui: {problem}" for problem in self.state.problems]
        if self.state.phase is Phase.STOPPED:
            return [f"run {run} has ended after step {self.state.step:,}: look at it with `shardtui attach {run}`"]
        if self.state.is_over:
            return [f"run {run}: {problem}" for problem in self.state.problems]
        ends = "" if self.state.watched else f", `shardtui stop {run}` ends it"
        return [f"run {run} goes on training: `shardtui attach {run}` returns to it{ends}"]
