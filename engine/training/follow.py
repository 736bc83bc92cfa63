"""The engine process of one host: process 0 serves the run, the others follow its decisions."""

import os
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from ..base.output import note_traceback, say
from ..base.regular_file import append_regular
from ..base.user_error import UserError
from ..distributed.jax_cluster import JaxCluster
from ..distributed.joining import connect, process_index, seal
from ..distributed.outcomes import WrongDevices
from ..distributed.seal import Seal
from ..spec.config import Membership, Restart, RunConfig
from ..wire.commands import Stop
from ..wire.ending import Ending, write_ending
from ..wire.inbox import Inbox
from ..wire.run_directory import RunDirectory, create, find, state_home
from .serve import end_with_supervisor, ending_of, serve
from .train import train
from .watchdog import HangWatch, Watchdog

GRACE_SECONDS = 10.0
"""How much later than process 0 the others exit after a request to stop, since process 0 reports why."""


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


def follow(directory: RunDirectory, restart: Restart, join: Callable[[], Seal], process: int) -> int:
    """Trains as process 0 decides, until the run ends. Returns the exit code. Raises UserError."""
    try:
        joined = join()
    except UserError as error:
        write_ending(ending_of(error, 0))
        raise
    cluster, inbox = JaxCluster(joined, stop=lambda: None, lost=_exit_on_loss), Inbox()

    def stop() -> None:
        inbox.put(Stop())
        cluster.ask_to_stop()

    config = restart.config or directory.config
    limit = None if config.stop_seconds is None else config.stop_seconds + GRACE_SECONDS
    beat = directory.beat(process) if restart.attempt else None
    hangs = HangWatch(lambda: cluster, directory.stacks(config), beat)
    watchdog = Watchdog(inbox, lambda _: None, stop, limit, hangs)
    try:
        done = train(directory, restart, watchdog.note, inbox, cluster, lambda _: None)
        write_ending(Ending(kind="stopped", step=done))
        return 0
    except (UserError, WrongDevices) as error:  # in every process after the same step
        write_ending(ending_of(error, watchdog.done))
        cluster.close()
        if isinstance(error, UserError):
            raise
        return 1
    except BaseException as error:
        write_ending(ending_of(error, watchdog.done))
        note_traceback(error)
        cluster.fail(error)
        return 1


def _exit_on_loss(gone: Mapping[int, str]) -> None:
    write_ending(Ending(kind="lost", lost=dict(gone)))
    say(*(f"process {process} was lost: {why}" for process, why in gone.items()))
    os._exit(1)
