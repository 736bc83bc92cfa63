"""The process that owns a run: it holds the run's lock, trains, serves viewers and records how the run ended."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress

from ..base.advice import problems_in
from ..base.invalid import Invalid
from ..distributed.cluster import Cluster
from ..distributed.seal import Seal
from ..spec.config import Restart, RunConfig, UserModel
from ..wire.commands import Stop
from ..wire.event_log import EventLog
from ..wire.events import EngineStarted, EngineStopped, Event, Failed, HostsLost
from ..wire.inbox import Inbox
from ..wire.lock_watchdog import LockWatchdog
from ..wire.run_directory import RunDirectory
from ..wire.server import Server
from ..wire.version import VERSION
from .forks import detach_in_children
from .watchdog import Watchdog

FLUSH_SECONDS = 0.2
"""Time for the last events to reach viewers before the process exits."""


def serve(directory: RunDirectory, restart: Restart, connect: Callable[[], Seal] | None = None) -> int:
    """Trains until the run ends and returns the exit code: 0, 1 if it failed, 2 if it was refused.

    Events go to the run directory; stdout and stderr are the run's log. `connect` joins the other processes and
    returns their seal; None for a run of one process.
    """
    inbox = Inbox()
    try:
        lock = directory.hold()
        directory.clear_coordinators()
        server = Server(directory.socket, inbox.put)
        log = EventLog(directory.events, server.publish)
    except (Invalid, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    detach_in_children(lambda: [lock.fileno(), log.descriptor, *server.descriptors])
    config = restart.config or directory.config
    log.append(EngineStarted(protocol=VERSION, pid=os.getpid(), config=config))
    try:
        lock_watchdog = LockWatchdog(directory, lock, lambda: inbox.put(Stop()))
        return _train(directory, restart, config, connect, inbox, log, server, lock_watchdog)
    finally:
        server.close()
        with suppress(Invalid):  # the directory of the sockets is no longer owned by this user alone
            directory.clear_coordinators()
        lock.close()


def _train(
    directory: RunDirectory,
    restart: Restart,
    config: RunConfig,
    connect: Callable[[], Seal] | None,
    inbox: Inbox,
    log: EventLog,
    server: Server,
    lock_watchdog: LockWatchdog,
) -> int:
    """Trains, logs the last event and returns the exit code."""
    cluster = Cluster()
    stop, place = lambda: inbox.put(Stop()), user_directory(config)
    watchdog = Watchdog(inbox, log.append, stop, config.stop_seconds, place, lambda: cluster.stalled_elsewhere())

    def publish(event: Event) -> None:
        watchdog.note(event)
        log.append(event)

    server.start()
    try:
        from .train import train  # importing jax takes a second; viewers can connect meanwhile

        cluster = _join(directory, connect, log, inbox) if connect else cluster
        done = train(directory, restart, publish, inbox, cluster, server.answer_with)
        if lock_watchdog.is_lost:
            log.append(Failed(problems=[f"{lock_watchdog.problem}; the run ended after step {done:,}"], refused=False))
            return 1
        reason = "finished" if done == config.steps else "signalled" if watchdog.is_signalled else "stopped"
        log.append(EngineStopped(step=done, reason=reason))
        return 0
    except Invalid as error:
        log.append(Failed(problems=list(error.problems), refused=True))
        cluster.close()
        return 2
    except Exception as error:
        traceback.print_exc()
        cluster.fail(error)
        log.append(Failed(problems=problems_in(error), refused=False))
        return 1


def _join(directory: RunDirectory, connect: Callable[[], Seal], log: EventLog, inbox: Inbox) -> Cluster:
    """Joins the other processes as process 0. Raises Invalid."""
    seal = connect()

    from ..distributed.jax_cluster import JaxCluster

    def lost(gone: Mapping[int, str]) -> None:
        log.append(HostsLost(reasons=dict(gone), hosts=cluster.statuses()))
        log.append(Failed(problems=cluster.loss_report(gone), refused=False))
        time.sleep(FLUSH_SECONDS)
        os._exit(1)

    cluster = JaxCluster(seal, lambda: inbox.put(Stop()), lost)
    return cluster


def user_directory(config: RunConfig) -> str | None:
    """Returns the directory of the user's model code; None for a built-in model."""
    return config.model.directory if isinstance(config.model, UserModel) else None
