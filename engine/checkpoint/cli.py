"""The engine's part of `shardtui verify` and `shardtui export`."""

from pathlib import Path

from etils import epath

from ..spec.exported import ExportRequest
from ..wire.run_directory import RunDirectory
from ..wire.stdout import print_answer
from .directory import CheckpointDirectory
from .directory import verify as verify_all


def verify(directory: str) -> None:
    """Verifies the checkpoints of the run in `directory` and prints the result as JSON. Uses one CPU device."""
    run = RunDirectory(Path(directory))
    config = run.config
    print_answer(verify_all(CheckpointDirectory(epath.Path(run.checkpoints(config))), config))


def export(request: ExportRequest) -> None:
    """Exports a checkpoint and prints what was written as JSON. Raises Invalid. Uses no device."""
    from .export import export as write

    print_answer(write(request))
