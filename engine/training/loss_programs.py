"""Compiles ahead what the next epoch of a supervised run needs if a process is lost.

Nobody keeps these programs: the processes of that epoch find them in the compilation cache. There they have the numbers
of the processes that are left, from 0 on, so each process compiles for its successor with the same number.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from msgspec.structs import replace

from ..base.advice import problems_in
from ..distributed.outcomes import Unfit
from ..models.task import Task
from ..program.placement import place
from ..program.presets import known_presets
from ..program.program import compile_program
from ..spec.config import Restart, RunConfig
from ..spec.preset_reader import name_of
from .fewer_devices import Fitted, fit


class LossPrograms:
    """The programs for one process less, or for as many as a preset fits."""

    def __init__(
        self, config: RunConfig, task: Task, devices: Sequence[jax.Device], restart: Restart, created: Path | None
    ) -> None:
        """`config` and `task` are those of the run on all of its devices, before it was fitted to fewer."""
        self._config, self._task, self._devices = config, task, devices
        self._restart, self._created = restart, created

    @property
    def are_possible(self) -> bool:
        """Whether the run may go on with fewer processes."""
        epoch, least = self._restart.epoch, self._restart.min_processes
        return epoch is not None and least is not None and least < epoch.processes

    def compile(self, preset: str) -> None:
        """Compiles them for a run under `preset`, that of a checkpoint. A failure is written to the log."""
        try:
            self._compile(preset)
        except Exception as error:
            print(f"shardtui: {preset}: not compiled for fewer processes: {problems_in(error)[0]}", file=sys.stderr)

    def _compile(self, preset: str) -> None:
        epoch, least = self._restart.epoch, self._restart.min_processes
        assert epoch and least
        for count in range(epoch.processes - 1, least - 1, -1):
            left = [device for device in self._devices if device.process_index < count]
            if jax.process_index() >= count or (count > 1 and left[0].platform != "cpu"):
                return  # several processes with GPUs divide autotuning among them, and would wait for each other
            again = replace(self._restart, epoch=replace(epoch, processes=count))
            try:
                fitted = fit(replace(self._config, preset=preset), self._task, left, again, self._created)
            except Unfit:
                continue
            self._compile_fitted(fitted, left)
            return

    def _compile_fitted(self, fitted: Fitted, left: Sequence[jax.Device]) -> None:
        config, task = fitted.config, self._task
        if config.training != self._config.training:
            task = Task(config, left[0].platform)
        preset = known_presets(config, self._created)[0][name_of(config.preset)].shrunk(len(left))
        compile_program(task, place(task, preset, left)).compile_state_functions()
