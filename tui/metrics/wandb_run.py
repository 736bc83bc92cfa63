"""The curves of a run as a run of Weights & Biases."""

import contextlib
from collections.abc import Generator
from importlib import import_module
from typing import Any

import msgspec

from ...engine.base.advice import first_line
from ...engine.base.user_error import UserError
from ...engine.wire.run_directory import RunDirectory
from .points import Point


class WandbRun:
    """Logs to a run of wandb, whose steps cannot be taken back. Every method raises UserError if wandb fails."""

    def __init__(self, project: str, directory: RunDirectory, began: float, rewinds: int) -> None:
        """`began`: time of the run's first event. `rewinds`: number of its rewinds so far. The same run with as many
        rewinds goes on where it was, if wandb is online."""
        self._wandb = wandb = import_module("wandb")
        self.where = f"wandb project {project}"
        name = directory.name + (f"-rewind-{rewinds}" if rewinds else "")
        with self._errors():
            self._run: Any = wandb.init(
                project=project,
                id=f"{name}-{int(began):x}",
                name=name,
                group=directory.name,
                resume="allow",
                config=msgspec.to_builtins(directory.about),
                settings=wandb.Settings(console="off", disable_git=True, disable_code=True),
            )

    def add(self, point: Point) -> None:
        if point.step >= self._run.starting_step:
            with self._errors():
                self._run.log({**point.scalars, "_timestamp": point.time}, step=point.step)

    def flush(self) -> None:
        """Does nothing: wandb writes and sends by itself."""

    def close(self) -> None:
        with self._errors():
            self._run.finish()

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (self._wandb.Error, OSError) as error:
            raise UserError(f"{self.where}: {first_line(str(error))}") from error
