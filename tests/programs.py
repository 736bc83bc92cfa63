"""Compiled programs for tests, of one preset of each kind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

import jax
from shardtui.engine.models.task import Task
from shardtui.engine.program.compiler import Compiler, KeptPrograms
from shardtui.engine.program.inspection import inspect_program
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_program, digest_function
from shardtui.engine.spec.config import KEEP_PROGRAMS
from shardtui.engine.spec.preset_files import PRESETS
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.wire.events import PresetInspected

OF_EXPERTS = ("dp-ep4", "ep2-tp2")
"""Built-in presets that need a mixture of experts."""
OF_OTHER_SIZES = ("dp-tp4", "fsdp-tp4", "fsdp-tp8")
"""Built-in presets that differ from `dp-tp2` and `fsdp-tp2` only in the sizes of their axes."""
KINDS = sorted({path.stem for path in (PRESETS / "parallelism").glob("*.toml")} - {*OF_EXPERTS, *OF_OTHER_SIZES})
"""Built-in presets for a dense model, one of each kind."""


class Programs(Mapping[str, Program]):
    """The programs of all presets in `KINDS`. Each is compiled when it is first read."""

    def __init__(self, task: Task) -> None:
        self.presets = {name: read_preset(PRESETS / "parallelism" / f"{name}.toml") for name in KINDS}
        self._task, self._compiled, self._lock = task, dict[str, Program](), Lock()

    def __getitem__(self, name: str) -> Program:
        with self._lock:
            if name not in self._compiled:
                placement = place(self._task, self.presets[name], jax.devices())
                self._compiled[name] = compile_program(placement)
            return self._compiled[name]

    def layout(self, name: str, devices: Sequence[jax.Device] = ()) -> Program:
        """Returns a program that states can be moved to. Its step is not compiled: it never runs."""
        placement = place(self._task, self.presets[name], devices or jax.devices())
        return replace(self["dp"], placement=placement, digest=digest_function(placement.abstract_state))

    def __iter__(self) -> Iterator[str]:
        return iter(self.presets)

    def __len__(self) -> int:
        return len(self.presets)


class AllKept(KeptPrograms):
    """Keeps `programs` from the start; each is read when it is first asked for."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        super().__init__(KEEP_PROGRAMS)
        self._all = programs

    def get(self, preset: str) -> Program | None:
        if preset in self._all and not super().__contains__(preset):
            self.add(self._all[preset])
        return super().get(preset)

    def __contains__(self, preset: str) -> bool:
        return preset in self._all or super().__contains__(preset)


class Known(Compiler):
    def __init__(
        self,
        task: Task,
        programs: Mapping[str, Program],
        made: Path = Path("nowhere"),
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        if isinstance(programs, Programs):
            presets = dict(programs.presets)
        else:
            presets = {name: program.placement.preset for name, program in programs.items()}
        super().__init__(task, presets, jax.devices(), made, wake=wake)
        self.queue = self._queue
        self.kept = AllKept(programs)


class Inspected(dict[str, PresetInspected]):
    def __init__(self, task: Task, programs: Mapping[str, Program]) -> None:
        super().__init__()
        self._task, self._programs = task, programs

    def __missing__(self, name: str) -> PresetInspected:
        self[name] = inspect_program(self._programs[name].placement)
        return self[name]
