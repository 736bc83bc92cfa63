"""`shardtui verify`, as the engine answers it."""

from pathlib import Path

from etils import epath

from ..wire.answers import print_answer
from ..wire.run_directory import RunDirectory
from .directory import Place
from .directory import verify as verified


def verify(directory: str) -> None:
    """Prints what a check of the run's checkpoints finds, as JSON. Uses one CPU device, whatever else is there."""
    run = RunDirectory(Path(directory))
    config = run.config
    print_answer(verified(Place(epath.Path(run.checkpoints(config))), config))
