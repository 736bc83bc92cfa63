"""Lists the checkpoints of a run, and deletes those that are not kept."""

import contextlib

from ..distributed.outcomes import Damaged
from ..wire.checkpoints import CheckpointInfo
from .directory import CheckpointDirectory
from .manifest import read_manifest


def kept(directory: CheckpointDirectory) -> list[CheckpointInfo]:
    """Returns all checkpoints, oldest first, except those with a damaged manifest."""
    found: list[CheckpointInfo] = []
    for step in directory.steps():
        with contextlib.suppress(Damaged):
            found.append(read_manifest(directory.path(step)).describe())
    return found


def prune(directory: CheckpointDirectory, newest: int) -> None:
    """Deletes all checkpoints except the `newest` ones and the best one."""
    found = kept(directory)
    best = min(found, key=lambda info: info.rank)
    for info in found[:-newest]:
        if info is not best:
            directory.delete(info.step)
