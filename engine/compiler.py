"""The programs of this run: compiled in a background thread while training goes on, and kept."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax

from .config import Invalid
from .inspection import inspect_program
from .preset import Preset, load_preset, parse_preset
from .preset_file import write_preset
from .program import Program, compile_initial_state, compile_program, describe_preset, place
from .protocol import Phase, PresetInfo, PresetInspected
from .reshard import Movers
from .task import Task, TrainState


@dataclass(frozen=True)
class Ready:
    """A program, and movers to it from where the state stands."""

    program: Program
    compile_seconds: float
    """Spent to get there; 0 where all was kept from before."""


class Compiler:
    """One background thread, so that at most one core is taken from the steps. Programs are kept for the whole run."""

    def __init__(self, task: Task, presets: dict[str, Preset], devices: Sequence[jax.Device], made: Path) -> None:
        """`made`: the folder of presets that are made in the run."""
        self.movers = Movers()
        self._task = task
        self._presets = presets
        self._made = made
        self.devices = devices
        self._programs: dict[str, Program] = {}
        self._thread = _one_thread()

    def compiled(self, name: str, begins: Callable[[Phase], None] = lambda _: None) -> Program:
        """Now, in this thread. Raises Invalid where the preset cannot be, and what XLA raises where it fails."""
        preset = self._preset(name)
        if preset.name not in self._programs:
            placement = place(self._task, preset, self.devices)
            self._programs[preset.name] = compile_program(self._task, placement, begins)
        return self._programs[preset.name]

    def initial_state(self, name: str) -> Future[Callable[[], TrainState]]:
        """What makes a new state under a preset: in a thread of its own, beside the program that a run begins with."""
        preset = self._preset(name)
        return _one_thread().submit(lambda: compile_initial_state(self._task, place(self._task, preset, self.devices)))

    def _preset(self, name: str) -> Preset:
        return self._presets.get(name) or load_preset(name)

    def add(self, name: str, text: str) -> PresetInfo:
        """Takes up a preset that was made in the run, given as the text of its file, which is then written. Raises
        Invalid where it cannot be, or there is one of that name: programs are kept by name."""
        if name in self._presets or name in self._programs:
            raise Invalid(f"preset {name}: the run has one of that name: choose another")
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
        future = self._thread.submit(self.compiled, name, begins)
        future.add_done_callback(lambda _: done())
        return future

    def compile_questions(self, program: Program) -> None:
        """In the background."""
        self._thread.submit(program.compile_questions)

    def request(
        self, source: Program, name: str, begins: Callable[[Phase], None], done: Callable[[], None]
    ) -> Future[Ready]:
        """All that a switch from `source` needs. `begins` and `done` as above."""
        future = self._thread.submit(self._ready, source, name, begins)
        future.add_done_callback(lambda _: done())
        return future

    def inspect(self, name: str, done: Callable[[], None]) -> Future[PresetInspected]:
        """What `inspect_program` tells of a preset. `done` as above."""
        future = self._thread.submit(lambda: inspect_program(self._task, self.compiled(name).placement))
        future.add_done_callback(lambda _: done())
        return future

    def abandon(self) -> None:
        """A compilation cannot be interrupted: what runs or waits keeps its thread, what comes next has a new one."""
        self._thread.shutdown(wait=False)
        self._thread = _one_thread()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ready(self, source: Program, name: str, begins: Callable[[Phase], None]) -> Ready:
        began, kept = time.perf_counter(), len(self._programs)
        program = self.compiled(name, begins)
        begins("movers")
        program.compile_questions()
        made = self.movers.prepare(
            self._task.abstract_state, source.placement.state_shardings, program.placement.state_shardings
        )
        return Ready(program, time.perf_counter() - began if made or len(self._programs) > kept else 0.0)


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="compiler")
