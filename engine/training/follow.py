"""A process of a run on several hosts: the first of them serves the run, the others follow it."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from ..base.append import append_regular
from ..base.invalid import Invalid
from ..distributed.jax_cluster import JaxCluster
from ..distributed.joining import connect, number, seal
from ..distributed.seal import Seal
from ..spec.config import Membership, Restart, RunConfig
from ..wire.commands import Stop
from ..wire.events import Event, Stalled
from ..wire.inbox import Inbox
from ..wire.run_directory import RunDirectory, create, find, state_home
from .serve import serve, user_directory
from .train import train
from .watchdog import Watchdog

YIELD_SECONDS = 10.0
"""By which another process that was told to stop ends later than process 0, which says why."""


def host(run: str, config: RunConfig | None, restart: Restart, membership: Membership) -> int:
    """The engine of one host. The first one makes the run, or finds it where there is no `config`. Raises Invalid."""

    about = config or restart.config
    assert about, "one of them is always given"
    is_joined = connect(membership, about)
    directory = RunDirectory(state_home() / run)
    joined = partial(seal, membership, directory, about)
    if number():
        return follow(directory, msgspec.structs.replace(restart, config=about), joined)
    directory = create(about) if config else find(run)
    print(f"shardtui: `shardtui attach {directory.name}` shows it, {directory.log} is its log", file=sys.stderr)
    try:
        with append_regular(directory.log) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    except OSError as error:
        raise Invalid(f"{directory.log}: cannot be written: {error.strerror}: remove it") from error
    return serve(directory, restart, joined if is_joined else None)


def follow(directory: RunDirectory, restart: Restart, join: Callable[[], Seal]) -> int:
    """Does what the first process decides, until it is over. Raises Invalid."""
    cluster, inbox = JaxCluster(join(), stop=lambda: None, lost=_end_without), Inbox()

    def stop() -> None:
        inbox.put(Stop())
        cluster.ask_to_stop()

    config = restart.config or directory.config

    def report(event: Event) -> None:
        if isinstance(event, Stalled):
            cluster.tell_stall(event.where)

    def publish(event: Event) -> None:
        watchdog.note(event)
        cluster.tell_stall("")

    limit = None if config.stop_seconds is None else config.stop_seconds + YIELD_SECONDS
    watchdog = Watchdog(inbox, report, stop, limit, user_directory(config))
    try:
        train(directory, restart, publish, inbox, cluster, lambda _: None)
        return 0
    except Invalid:
        cluster.close()
        raise
    except Exception as error:
        traceback.print_exc()
        cluster.fail(error)
        return 1


def _end_without(gone: Mapping[int, str]) -> None:
    print(*(f"shardtui: process {process} is lost: {why}" for process, why in gone.items()), sep="\n", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)
