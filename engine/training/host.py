"""The engine process of one host: process 0 serves the run, the others follow its decisions."""

import os
from functools import partial

import msgspec

from ..base.output import say
from ..base.regular_file import append_regular
from ..base.user_error import UserError
from ..distributed.joining import connect, process_index, seal
from ..spec.config import Membership, Restart, RunConfig
from ..wire.ending import write_ending
from ..wire.run_directory import RunDirectory, create, find, state_home
from .serve import end_with_supervisor, ending_of, follow, serve


def host(run: str, config: RunConfig | None, restart: Restart, membership: Membership) -> int:
    """Runs the engine of one host and returns its exit code. Raises UserError. Process 0 creates the run from `config`,
    or finds it by name if there is none."""
    end_with_supervisor(restart)
    about = config or restart.config
    assert about, "one of them is always given"
    directory = RunDirectory(state_home() / run)
    try:
        is_joined = connect(membership, about)
    except UserError as error:
        write_ending(ending_of(error, 0))
        raise
    joined = partial(seal, membership, directory, about)
    if process_index():
        return follow(directory, msgspec.structs.replace(restart, config=about), joined, process_index())
    directory = create(about) if config else find(run)
    say(f"see it with `shardtui attach {directory.name}`; log: {directory.log}")
    try:
        with append_regular(directory.log) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    except OSError as error:
        raise UserError(f"{directory.log}: cannot be written: {error.strerror}: remove it") from error
    return serve(directory, restart, joined if is_joined else None)
