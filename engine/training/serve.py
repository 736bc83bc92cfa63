"""The process that owns a run: it holds the run's lock, trains, reports to viewers and writes down how it ended."""

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
from ..wire.custody import Custody
from ..wire.event_log import EventLog
from ..wire.events import EngineStarted, EngineStopped, Event, Failed, HostsLost
from ..wire.inbox import Inbox
from ..wire.run_directory import RunDirectory
from ..wire.server import Server
from ..wire.version import VERSION
from .forks import leave_to_parent
from .watchdog import Watchdog

FAREWELL_SECONDS = 0.2
"""For viewers to be told."""


def serve(directory: RunDirectory, restart: Restart, connect: Callable[[], Seal] | None = None) -> int:
    """Trains until it is over. What happens stands in the directory's events; stdout and stderr are its log.

    `connect` joins the other processes, where there are some, of which this is the first, and gives their seal.
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
    leave_to_parent(lambda: [lock.fileno(), log.descriptor, *server.descriptors])
    custody = Custody(directory, lock, lambda: inbox.put(Stop()))
    config = restart.config or directory.config
    log.append(EngineStarted(protocol=VERSION, pid=os.getpid(), config=config))
    cluster = Cluster()
    watchdog = Watchdog(
        inbox,
        log.append,
        lambda: inbox.put(Stop()),
        config.stop_seconds,
        user_directory(config),
        lambda: cluster.stalled_elsewhere(),
    )

    def publish(event: Event) -> None:
        watchdog.note(event)
        log.append(event)

    server.start()
    try:
        from .train import train  # jax takes a second, in which viewers are told already

        cluster = _joined(directory, connect, log, inbox) if connect else cluster
        done = train(directory, restart, publish, inbox, cluster, server.answer_with)
        if custody.is_lost:
            log.append(Failed(problems=[f"{custody.problem}; the run ended after step {done:,}"], refused=False))
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
    finally:
        server.close()
        with suppress(Invalid):  # the directory of the sockets is not ours alone any more
            directory.clear_coordinators()
        lock.close()


def _joined(directory: RunDirectory, connect: Callable[[], Seal], log: EventLog, inbox: Inbox) -> Cluster:
    """As the first of several processes. Raises Invalid."""
    seal = connect()

    from ..distributed.jax_cluster import JaxCluster

    def lost(gone: Mapping[int, str]) -> None:
        log.append(HostsLost(reasons=dict(gone), hosts=cluster.statuses()))
        log.append(Failed(problems=cluster.obituary(gone), refused=False))
        time.sleep(FAREWELL_SECONDS)
        os._exit(1)

    cluster = JaxCluster(seal, lambda: inbox.put(Stop()), lost)
    return cluster


def user_directory(config: RunConfig) -> str | None:
    return config.model.directory if isinstance(config.model, UserModel) else None
