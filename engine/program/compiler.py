"""The programs of this run: compiled in a background thread while training goes on."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax

from ..base.invalid import Invalid
from ..models.task import Task, TrainState
from ..spec.config import KEEP_PROGRAMS
from ..spec.preset import Preset
from ..spec.preset_file import write_preset
from ..spec.preset_reader import load_preset, name_of, parse_preset
from ..wire.descriptions import PresetInfo
from ..wire.events import Phase, PresetInspected
from .compile_queue import CompileQueue, Urgency
from .inspection import inspect_program
from .kept_programs import KeptPrograms
from .program import Program, compile_initial_state, compile_program, describe_preset, place
from .reshard import Movers

MOST_PRESETS = 1000
"""Of a run, those that were made in it included."""


@dataclass(frozen=True)
class Ready:
    """A program, and movers to it from where the state stands."""

    program: Program
    compile_seconds: float
    """Spent to get there; 0 where all was kept from before."""


class Compiler:
    def __init__(
        self,
        task: Task,
        presets: dict[str, Preset],
        devices: Sequence[jax.Device],
        made: Path,
        keep_bytes: int = KEEP_PROGRAMS,
    ) -> None:
        """`made`: the folder of presets that are made in the run. `keep_bytes`: host memory for programs."""
        self.movers = Movers()
        self.kept = KeptPrograms(keep_bytes)
        self._task = task
        self._presets = presets
        self._made = made
        self.devices = devices
        self._queue = CompileQueue()
        self._compiling: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """By preset: what one thread compiles already the other one waits for."""

    def compiled(self, name: str, begins: Callable[[Phase], None] = lambda _: None) -> Program:
        """Now, in this thread. Raises Invalid where the preset cannot be, and what XLA raises where it fails."""
        preset = self._preset(name)
        with self._compiling[preset.name]:
            return self._kept_or_compiled(preset, begins)

    def _kept_or_compiled(self, preset: Preset, begins: Callable[[Phase], None]) -> Program:
        program = self.kept.get(preset.name)
        if program is None:
            placement = place(self._task, preset, self.devices)
            program = compile_program(self._task, placement, begins)
            if self.kept.add(program):  # what was traced for one that is gone is a fourth of its memory
                jax.clear_caches()
                self.movers.clear()
        return program

    def initial_state(self, name: str) -> Future[Callable[[], TrainState]]:
        """What makes a new state under a preset: in a thread of its own, beside the program that a run begins with."""
        preset = self._preset(name)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="initial state")
        return thread.submit(lambda: compile_initial_state(self._task, place(self._task, preset, self.devices)))

    def _preset(self, name: str) -> Preset:
        return self._presets.get(name) or load_preset(name)

    def add(self, name: str, text: str) -> PresetInfo:
        """Takes up a preset that was made in the run, given as the text of its file, which is then written. Raises
        Invalid where it cannot be, or there is one of that name: programs are kept by name."""
        if name in self._presets or name in self.kept:
            raise Invalid(f"preset {name}: the run has one of that name: choose another")
        if len(self._presets) >= MOST_PRESETS:
            raise Invalid(f"preset {name}: the run has {len(self._presets):,} presets already: switch to one of these")
        path = self._made / f"{name}.toml"
        preset = parse_preset(path, text)
        info = describe_preset(self._task, preset, self.devices)
        if info.problems:
            raise Invalid(*info.problems)
        write_preset(path, text)
        self._presets[name] = preset
        return info

    def first(self, name: str, begins: Callable[[Phase], None], done: Callable[[], None]) -> Future[Program]:
        """The program that a run begins with. `begins` is called in another thread with each phase, `done` once the
        future is settled."""
        future = self._queue.submit(Urgency.ASKED, lambda: self.compiled(name, begins))
        future.add_done_callback(lambda _: done())
        return future

    def compile_questions(self, program: Program) -> None:
        """In the background."""
        self._queue.submit(Urgency.SCHEDULED, program.compile_questions)

    def request(
        self,
        urgency: Urgency,
        source: Program,
        name: str,
        begins: Callable[[Phase], None],
        done: Callable[[], None],
    ) -> Future[Ready]:
        """All that a switch from `source` needs. `begins` and `done` as above; what `begins` raises ends the work."""
        future = self._queue.submit(urgency, lambda: self._ready(source, name, begins))
        future.add_done_callback(lambda _: done())
        return future

    def inspect(self, name: str, done: Callable[[], None]) -> Future[PresetInspected]:
        """What `inspect_program` tells of a preset. `done` as above."""
        future = self._queue.submit(Urgency.LOOK, lambda: self._inspected(name))
        future.add_done_callback(lambda _: done())
        return future

    def _inspected(self, name: str) -> PresetInspected:
        """Once more where another compilation ran beside it: the compiler's warnings may be of that one."""
        placement = self.compiled(name).placement
        while True:
            begun = self._queue.begun
            inspected = inspect_program(self._task, placement)
            if not inspected.rematerializations or begun == self._queue.begun:
                return inspected

    def close(self) -> None:
        self._queue.close()

    def _ready(self, source: Program, name: str, begins: Callable[[Phase], None]) -> Ready:
        began, is_kept = time.perf_counter(), name_of(name) in self.kept
        program = self.compiled(name, begins)
        self.kept.get(source.name)
        begins("movers")
        program.compile_questions()
        made = self.movers.prepare(
            self._task.abstract_state, source.placement.state_shardings, program.placement.state_shardings
        )
        return Ready(program, time.perf_counter() - began if made or not is_kept else 0.0)
