"""Compiles a run's programs in background threads while training continues."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax

from ..base.user_error import UserError
from ..models.task import Task, TrainState
from ..spec.preset import Preset
from ..spec.preset_reader import load_preset, name_of, parse_preset
from ..spec.preset_writer import write_preset
from ..wire.descriptions import PresetInfo
from ..wire.events import Phase, PresetInspected
from .array_numbers import Numbers, compile_numbers
from .compile_queue import CompileQueue, Urgency
from .compiler_process import compiled_apart
from .inspection import inspect_program
from .memory import TOO_LARGE, shortage
from .placement import describe_preset, place
from .program import Program, compile_initial_state, compile_program
from .reshard import Transfers
from .weights import with_weights

MIN_PROGRAMS = 2
"""Programs that are kept regardless of size, so that switching back and forth compiles nothing."""
MAX_PROGRAMS = 50
"""Programs that are kept at most: one on CPU has some 800 memory mappings, of the 65,530 that Linux gives a process."""


class KeptPrograms:
    """An LRU cache of programs by preset name, bounded by their estimated host memory and their number."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        """For the two compile threads."""

    def get(self, preset: str) -> Program | None:
        """Returns the preset's program and marks it as used; None if it is not kept."""
        with self._lock:
            program = self._programs.pop(preset, None)
            if program is not None:
                self._programs[preset] = program
            return program

    def add(self, program: Program) -> bool:
        """Adds a program and marks it as used. Returns whether others were evicted."""
        has_evicted = False
        with self._lock:
            self._programs[program.name] = program
            while len(self._programs) > MIN_PROGRAMS and self._is_too_large:
                del self._programs[next(iter(self._programs))]
                has_evicted = True
        return has_evicted

    def __contains__(self, preset: str) -> bool:
        return preset in self._programs

    @property
    def _is_too_large(self) -> bool:
        return len(self._programs) > MAX_PROGRAMS or self.bytes > self.limit_bytes

    @property
    def presets(self) -> list[str]:
        """The presets whose programs are kept, least recently used first."""
        return list(self._programs)

    @property
    def bytes(self) -> int:
        return sum(program.host_bytes for program in list(self._programs.values()))


MAX_PRESETS = 1000
"""Presets of a run, including those created during it."""


@dataclass(frozen=True)
class Ready:
    """A program whose transfers from the active preset, if there is one, are compiled too, so that a switch can run."""

    program: Program
    compile_seconds: float
    """Seconds spent to compile both for a switch; 0 if all was kept from before."""


class Compiler:
    """Compiles and keeps the programs of a run's presets."""

    def __init__(
        self,
        task: Task,
        presets: dict[str, Preset],
        devices: Sequence[jax.Device],
        presets_folder: Path,
        remats: Callable[[Preset], Iterable[str]] | None = None,
        capacity: int | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`presets_folder` is for presets created during the run. `wake` is called in another thread when something is
        ready.

        `remats` returns what to try for a preset before the task's own remat: the first is used whose step needs no
        more than `capacity` bytes per device.
        """
        self.transfers = Transfers()
        self.kept = KeptPrograms(task.config.keep_programs)
        self.task = task
        self._remats, self._capacity = remats, capacity
        self._presets = presets
        self._presets_folder = presets_folder
        self.devices = devices
        self.wake, self._queue = wake, CompileQueue(wake)
        self._compiling: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """By preset: a thread waits for a program that the other thread is compiling."""

    def compiled(self, name: str, on_phase: Callable[[Phase], None] = lambda _: None) -> Program:
        """Returns a preset's program, compiled in this thread unless it is kept.

        Calls `on_phase` as each phase begins. Raises UserError for an invalid preset, and what XLA raises.
        """
        preset = self._preset(name)
        with self._compiling[preset.name]:
            program = self.kept.get(preset.name)
            if program is None:
                program = self._first_that_fits(preset, on_phase)
                if self.kept.add(program):  # the traces of a dropped program are a quarter of its memory
                    jax.clear_caches()
                    self.transfers.clear()
            return program

    def _first_that_fits(self, preset: Preset, on_phase: Callable[[Phase], None]) -> Program:
        for remat in self._remats(preset) if self._remats else ():
            task = Task(self.task.config.with_remat(remat), self.task.platform)
            try:
                program = compile_program(place(task, preset, self.devices), on_phase)
            except jax.errors.JaxRuntimeError as error:
                if TOO_LARGE not in str(error):
                    raise
            else:
                if not shortage(program.description, self._capacity):
                    return program
        return compile_program(place(self.task, preset, self.devices), on_phase)

    def initial_state(self, name: str) -> Future[Callable[[], TrainState]]:
        """Compiles the function that creates a preset's initial state, alongside the run's first program."""
        preset, config = self._preset(name), self.task.config

        def compiled() -> Callable[[], TrainState]:
            create = compile_initial_state(place(self.task, preset, self.devices))
            return create if config.weights is None else lambda: with_weights(create(), config)

        return self._queue.submit(Urgency.REQUESTED, compiled)

    def _preset(self, name: str) -> Preset:
        return self._presets.get(name) or load_preset(name)

    def add(self, name: str, text: str) -> PresetInfo:
        """Adds a preset created during the run, and writes `text`, its TOML, to a file.

        Raises UserError if the preset is invalid, or its name is taken: programs are kept by name.
        """
        if name in self._presets or name in self.kept:
            raise UserError(f"preset {name}: the run already has a preset with this name: choose another name")
        if len(self._presets) >= MAX_PRESETS:
            raise UserError(f"preset {name}: the run already has {len(self._presets):,} presets: switch to one of them")
        path = self._presets_folder / f"{name}.toml"
        preset = parse_preset(path, text)
        info = describe_preset(self.task, preset, self.devices)
        if info.problems:
            raise UserError(*info.problems)
        write_preset(path, text)
        self._presets[name] = preset
        return info

    def first(self, name: str, on_phase: Callable[[Phase], None]) -> Future[Ready]:
        """Compiles the run's first program. In the compile thread, `on_phase` is called as each phase begins."""
        return self._queue.submit(Urgency.REQUESTED, lambda: Ready(self.compiled(name, on_phase), 0.0))

    def compile_state_functions(self, program: Program) -> None:
        self._queue.submit(Urgency.SCHEDULED, compiled_apart()(program.compile_state_functions))

    def request(self, urgency: Urgency, source: Program, name: str, on_phase: Callable[[Phase], None]) -> Future[Ready]:
        """Compiles all that a switch from `source` to preset `name` needs.

        `on_phase` is called as for `first`; an exception from it ends the work.
        """
        return self._queue.submit(urgency, lambda: self._ready(source, name, on_phase))

    def numbers(self, program: Program) -> Future[Numbers]:
        """Compiles the program that measures the arrays of a layout."""
        return self._queue.submit(Urgency.INSPECT, compiled_apart()(partial(compile_numbers, program.placement)))

    def inspect(self, name: str) -> Future[PresetInspected]:
        """Runs `inspect_program` for a preset."""
        return self._queue.submit(Urgency.INSPECT, lambda: self._inspected(name))

    def _inspected(self, name: str) -> PresetInspected:
        """Repeats an inspection with warnings if another job ran during it: they may be from that job's compilation."""
        with compiled_apart():
            program = self.compiled(name)
        while True:
            started = self._queue.started
            inspected = inspect_program(program.placement)
            if not inspected.rematerializations or started == self._queue.started:
                return inspected

    def close(self) -> None:
        self._queue.close()

    @compiled_apart()
    def _ready(self, source: Program, name: str, on_phase: Callable[[Phase], None]) -> Ready:
        began, is_kept = time.perf_counter(), name_of(name) in self.kept
        program = self.compiled(name, on_phase)
        self.kept.get(source.name)  # keeps it longer: the user may switch back
        on_phase("transfers")
        program.compile_state_functions()
        compiled = self.transfers.prepare(
            self.task.abstract_state, source.placement.state_shardings, program.placement.state_shardings
        )
        return Ready(program, time.perf_counter() - began if compiled or not is_kept else 0.0)
