"""The checks of `doctor --train` that train: losses, switches, a kill and a resume, checkpoints and traces."""

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import TypeVar

from ...engine.base import formatting
from ...engine.base.user_error import UserError
from ...engine.spec.config import CheckpointConfig, Restart, RunConfig, ScheduledSwitch
from ...engine.spec.model_choice import choose_model
from ...engine.wire import run_directory
from ...engine.wire.checkup import Check, Examination, examined
from ...engine.wire.events import (
    AnyEvent,
    CheckpointSaved,
    EngineLost,
    Failed,
    Level,
    Profiled,
    ProfileFailed,
    Restored,
    StepsDone,
    Switched,
)
from ...engine.wire.run_directory import RunDirectory
from ..client.engine_client import EngineClient
from ..state.interpreter import apply
from ..state.run_state import RunState

E = TypeVar("E")
LONGEST_SECONDS = 120.0
"""Time for a check to end; one that trains usually takes ten to forty seconds."""
STEPS, SAVED_STEP, TRACED = 30, 12, 3
SWITCH_STEPS = (4, 8, 16, 20, 24)
"""Two switches before the run is killed, three after it is resumed."""
PREFERRED = ("fsdp", "tp", "hsdp", "sp2", "pp2", "fsdp-tp2", "dp-tp2", "sp")
SAME_LOSS, SAME_LOSS_IN_BFLOAT16 = 1e-5, 2e-2
"""Largest relative difference between the losses of two layouts of one run: rounding alone."""
SUM_SHARE, PEAK_SHARE = 0.02, 0.15
"""Largest relative differences: of a trace's parts in sum from its step, of a predicted peak from the reported one."""


class Trained:
    """A run of the doctor's, followed until its engine ends."""

    def __init__(self, config: RunConfig) -> None:
        """Raises UserError if its directory cannot be created."""
        self.directory = run_directory.create(config)
        self.state = RunState()
        self.events: list[AnyEvent] = []
        self.losses: list[tuple[int, float | None]] = []
        """Step and loss, of steps that a resumed engine repeats, too."""

    async def follow(self, restart: Restart, kill_after: int | None = None) -> None:
        """Starts an engine, and kills it once the checkpoint of step `kill_after` is saved. Raises UserError if the
        run fails, or ends in another way."""
        client = EngineClient(self.directory)
        client.start_engine(restart)
        killed = False
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                async for event in (event async for events in client.events() for event in events):
                    apply(self.state, event)
                    if client.is_old(event):
                        continue
                    self.events.append(event)
                    if isinstance(event, StepsDone):
                        self.losses += enumerate(event.losses, event.step - len(event.losses) + 1)
                    if isinstance(event, CheckpointSaved) and event.step == kill_after:
                        client.kill_engine()
                        killed = True
                    if isinstance(event, Failed) or (isinstance(event, EngineLost) and not killed):
                        raise UserError(event.line)
        except TimeoutError as error:
            raise UserError(f"no end after {LONGEST_SECONDS:g} s, see {self.directory.log}") from error
        finally:
            client.kill_engine()
            await client.wait_for_exit()
            await client.close()

    def find(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


class TrainingChecks:
    """Two runs of the same model: one undisturbed, one that is switched, traced, killed and resumed."""

    def __init__(self, examination: Examination, devices: int) -> None:
        self._examination, self._devices = examination, devices
        self._plain: Trained | None = None
        self._moved: Trained | None = None
        self._runs: list[RunDirectory] = []

    def all(self) -> Iterator[Check]:
        """Yields each check before it runs, and after it. Keeps the runs if one is broken."""
        is_kept = False
        checks: dict[str, Callable[[], Check]] = {
            "training": self._train,
            "peak memory": self._compare_peaks,
            "kill and resume": self._kill_and_resume,
            "switches": self._compare_losses,
            "checkpoint": self._time_checkpoint,
            "trace": self._sum_trace,
        }
        try:
            for name, look in checks.items():
                for check in examined(name, look):
                    is_kept |= check.verdict == "broken"
                    yield check
        finally:
            for run in () if is_kept else self._runs:
                run.discard()

    def _new_run(self, every_steps: int | None = None, switches: tuple[ScheduledSwitch, ...] = ()) -> Trained:
        model = choose_model("nano", ("dropout=0", "seq_len=32", f"batch_size={4 * self._devices}"))
        config = model.config(
            run_directory.free_name("doctor"),
            devices=self._examination.devices,
            platform=self._examination.platform,
            steps=STEPS,
            switches=switches,
            checkpoints=CheckpointConfig(every_steps=every_steps, at_end=False),
        )
        found = Trained(config)
        self._runs.append(found.directory)
        return found

    def _train(self) -> Check:
        plain = self._new_run()
        asyncio.run(plain.follow(Restart()))
        first, last = plain.losses[0][1], plain.losses[-1][1]
        compiled, step = plain.state.compiled["dp"].compile_seconds or 0.0, median(plain.state.timed["dp"])
        numbers = {"seconds of a step": round(step, 5), "seconds to compile it": round(compiled, 2)}
        found = f"loss {first} → {last} in {STEPS} steps of {formatting.seconds(step)}"
        if first is None or last is None or not last < first:
            return Check(verdict="broken", found=found, advice="the loss should fall", numbers=numbers)
        self._plain = plain
        found = f"loss {first:.3f} → {last:.3f} in {STEPS} steps of {formatting.seconds(step)}"
        return Check(found=found, numbers=numbers)

    def _compare_peaks(self) -> Check:
        plain = _needed(self._plain, "training")
        predicted, measured = plain.state.compiled["dp"].memory, plain.state.memory
        if predicted is None:
            return Check(verdict="warning", found="the compiler reports no memory")
        words = f"{formatting.size(predicted.peak)} predicted"
        if measured is None or measured.peak_bytes is None:
            return Check(found=f"{words}; these devices report no peak")
        off = predicted.peak / measured.peak_bytes - 1
        found = f"{words}, {formatting.size(measured.peak_bytes)} reported ({off:+.1%})"
        numbers = {"predicted peak bytes": float(predicted.peak), "reported peak bytes": float(measured.peak_bytes)}
        if abs(off) <= PEAK_SHARE:
            return Check(found=found, numbers=numbers)
        advice = "leave more room than usual when you choose a batch size"
        return Check(verdict="warning", found=found, advice=advice, numbers=numbers)

    def _presets(self) -> list[str]:
        """Returns the presets to switch to: different ones, as far as there are any, and back at the end."""
        ready = _needed(self._plain, "training").state.ready
        fitting = [preset.name for preset in ready.presets if preset.fits] if ready else []
        chosen = [name for name in PREFERRED if name in fitting] or [name for name in fitting if name != "dp"]
        return [*(chosen * len(SWITCH_STEPS))[: len(SWITCH_STEPS) - 1], "dp"] if chosen else []

    def _kill_and_resume(self) -> Check:
        switches = tuple(map(ScheduledSwitch, SWITCH_STEPS, self._presets()))
        moved = self._new_run(SAVED_STEP, switches)
        asyncio.run(moved.follow(Restart(profile=TRACED), kill_after=SAVED_STEP))
        asyncio.run(moved.follow(Restart()))
        (restored,) = moved.find(Restored)
        self._moved = moved
        found = f"killed, then {restored.line}"
        if moved.losses[-1][0] != STEPS or restored.step != SAVED_STEP:
            return Check(verdict="broken", found=f"{found}; it ended at step {moved.losses[-1][0]}")
        return Check(found=found, numbers={"seconds to restore": round(restored.seconds, 2)})

    def _compare_losses(self) -> Check:
        """Compares the losses of all steps with those of the undisturbed run."""
        plain, moved = _needed(self._plain, "training"), _needed(self._moved, "kill and resume")
        expected = dict(plain.losses)
        off = max(map(partial(_difference, expected), moved.losses), default=math.inf)
        switched = moved.find(Switched)
        names = ", ".join(dict.fromkeys(event.to_preset for event in switched))
        in_bfloat16 = plain.state.ready is not None and plain.state.ready.devices[0].platform != "cpu"
        limit = SAME_LOSS_IN_BFLOAT16 if in_bfloat16 else SAME_LOSS
        numbers = {"largest relative difference of a loss": float(f"{off:.2g}")}
        if not switched:
            return Check(verdict="warning", found="no other preset fits these devices", numbers=numbers)
        found = f"{len(switched)} to {names}: largest difference of {len(moved.losses)} losses {off:.1e}"
        if wrong := [event.line for event in switched if event.level is Level.ERROR]:
            return Check(verdict="broken", found="; ".join(wrong), numbers=numbers)
        if not off <= limit:
            advice = f"rounding explains {limit:g}: train with dp, and report it"
            return Check(verdict="broken", found=found, advice=advice, numbers=numbers)
        return Check(found=found, numbers=numbers)

    def _time_checkpoint(self) -> Check:
        saved = _needed(self._moved, "kill and resume").find(CheckpointSaved)[0]
        return Check(found=saved.line, numbers={"bytes saved per second": float(round(saved.bytes / saved.seconds))})

    def _sum_trace(self) -> Check:
        moved = _needed(self._moved, "kill and resume")
        for failed in moved.find(ProfileFailed):
            return Check(verdict="broken", found=failed.line)
        profiled = moved.find(Profiled)[0]
        if (breakdown := profiled.breakdown) is None:
            return Check(verdict="broken", found=profiled.line)
        total = math.fsum(part.seconds for part in breakdown.parts)
        off = total / breakdown.step_seconds - 1
        parts = f"{len(breakdown.parts)} parts of {formatting.seconds(breakdown.step_seconds)}"
        numbers = {"seconds of a traced step": round(breakdown.step_seconds, 5)}
        if breakdown.skipped or abs(off) > SUM_SHARE:
            problems = "; ".join([f"they sum up to {off:+.1%} of the step", *breakdown.skipped])
            return Check(verdict="broken", found=f"{parts}: {problems}", numbers=numbers)
        return Check(found=f"{parts}, which sum up to the step ({off:+.2%})", numbers=numbers)


def _needed(run: Trained | None, check: str) -> Trained:
    """Raises UserError if the run that a check needs is not there."""
    if run is None:
        raise UserError(f"not checked, because {check} failed")
    return run


def _difference(expected: dict[int, float | None], found: tuple[int, float | None]) -> float:
    step, loss = found
    other = expected.get(step)
    return math.inf if loss is None or other is None else abs(loss - other) / abs(other)
