"""The processes that train a run. Process 0 owns it: it holds the run's lock, serves viewers and records how the run
ended; the others follow its decisions."""

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..base.advice import problems_in
from ..base.output import note, note_traceback, say
from ..base.processes import end_with_parent
from ..base.regular_file import append_regular
from ..base.user_error import UserError
from ..distributed.cluster import Cluster
from ..distributed.outcomes import NotMet, Unfit, WrongDevices
from ..distributed.seal import Seal
from ..spec.config import Membership, Restart, RunConfig
from ..wire.commands import Stop
from ..wire.ending import Ending, write_ending
from ..wire.event import VERSION
from ..wire.event_log import EventLog
from ..wire.events import EngineStarted, EngineStopped, Event, Failed, HostsLost
from ..wire.inbox import Inbox
from ..wire.run_directory import RunDirectory, create, find, state_home
from ..wire.server import Answer, Server
from .forks import detach_in_children
from .watchdog import HangWatch, Watchdog

LOCK_POLL_SECONDS = 1.0
FLUSH_SECONDS = 0.2
GRACE_SECONDS = 10.0
"""How much later than process 0 the others exit after a request to stop, since process 0 reports why."""
FULL = {errno.ENOSPC, errno.EDQUOT}


def end_with_supervisor(restart: Restart) -> None:
    """Ends this process once its supervisor is gone: another one could not replace it otherwise."""
    if restart.attempt:
        end_with_parent()


class LockWatchdog:
    """Checks every second, in a thread: an engine whose directory is gone could be neither found nor stopped."""

    def __init__(self, directory: RunDirectory, lock: BinaryIO, stop: Callable[[], object]) -> None:
        """`stop` is called once, in the watchdog's thread."""
        self.is_lost = False
        self.problem = f"{directory.path}: the run's directory was removed or replaced: nothing more can be saved there"
        self._lock = lock
        self._path = directory.lock
        self._stop = stop
        threading.Thread(target=self._poll, name="lock watchdog", daemon=True).start()

    def _poll(self) -> None:
        while self._is_same_file():
            time.sleep(LOCK_POLL_SECONDS)
        if not self._lock.closed:
            self.is_lost = True
            say(f"{self.problem}: stopping")
            self._stop()

    def _is_same_file(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._lock.fileno()))
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the lock was released
            return False
        except OSError:  # a file system that fails now may recover
            return True


def serve_run(directory: str, restart: Restart | None = None, membership: Membership | None = None) -> int:
    """Trains one run, from its newest checkpoint if it has one; as one of several processes with a `membership`.
    Returns the exit code."""
    run, restart = RunDirectory(Path(directory)), restart or Restart()
    end_with_supervisor(restart)
    if membership is None:
        return serve(run, restart)

    def join() -> Seal:
        from ..distributed import joining

        config = restart.config or run.config
        joining.connect(membership, config)
        return joining.seal(membership, run, config)

    return follow(run, restart, join, membership.process) if membership.process else serve(run, restart, join)


def host(run: str, config: RunConfig | None, restart: Restart, membership: Membership) -> int:
    """Runs the engine of one host and returns its exit code. Raises UserError. Process 0 creates the run from `config`,
    or finds it by name if there is none."""
    from ..distributed.joining import connect, process_index, seal

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


def serve(directory: RunDirectory, restart: Restart, connect: Callable[[], Seal] | None = None) -> int:
    """Trains as process 0 until the run ends and returns the exit code: 0, 1 if it failed, 2 if it was refused. Events
    go to the run directory; stdout and stderr are the run's log. `connect` joins the other processes and returns their
    seal; None for a run of one process."""
    inbox = Inbox()
    try:
        lock = directory.hold()
        directory.clear_coordinators()
        server = Server(directory.socket, inbox.put)
        log = EventLog(directory.events, server.publish)
    except (UserError, OSError) as error:
        write_ending(Ending(kind="blocked" if restart.is_again else "refused", problems=problems_in(error)))
        note(*str(error).splitlines())
        return 2
    detach_in_children(lambda: [lock.fileno(), log.descriptor, *server.descriptors])
    config = restart.config or directory.config
    log.append(EngineStarted(protocol=VERSION, pid=os.getpid(), config=config, attempt=restart.attempt))
    try:
        lock_watchdog = LockWatchdog(directory, lock, lambda: inbox.put(Stop()))
        server.start()
        return _train(directory, restart, connect, 0, inbox, log.append, server.answer_with, lock_watchdog)
    finally:
        server.close()
        with suppress(UserError):  # the directory of the sockets is no longer owned by this user alone
            directory.clear_coordinators()
        lock.close()


def follow(directory: RunDirectory, restart: Restart, connect: Callable[[], Seal], process: int) -> int:
    """Trains as process 0 decides, until the run ends, and returns the exit code. Records no events."""
    return _train(directory, restart, connect, process, Inbox(), lambda _: None, lambda _: None)


def _train(
    directory: RunDirectory,
    restart: Restart,
    connect: Callable[[], Seal] | None,
    process: int,
    inbox: Inbox,
    record: Callable[[Event], None],
    answer_with: Callable[[Answer], None],
    lock_watchdog: LockWatchdog | None = None,
) -> int:
    cluster, config = Cluster(), restart.config or directory.config

    def stop() -> None:
        inbox.put(Stop())
        cluster.ask_to_stop()

    def publish(event: Event) -> None:
        watchdog.note(event)
        record(event)

    limit = config.stop_seconds
    if process and limit is not None:
        limit += GRACE_SECONDS
    beat = directory.beat(process) if restart.attempt else None
    hangs = HangWatch(lambda: cluster, directory.stacks(config), beat)
    watchdog = Watchdog(inbox, record, stop, limit, hangs)
    try:
        from .train import train  # importing jax takes a second; viewers can connect meanwhile

        cluster = _join(connect, process, record, inbox) if connect else cluster
        done = train(directory, restart, publish, inbox, cluster, answer_with)
        if lock_watchdog and lock_watchdog.is_lost:
            problems = [f"{lock_watchdog.problem}; the run ended after step {done:,}"]
            record(Failed(problems=problems, refused=False))
            write_ending(Ending(kind="failed", step=done, problems=problems))
            return 1
        reason = "finished" if done == config.steps else "signalled" if watchdog.is_signalled else "stopped"
        record(EngineStopped(step=done, reason=reason))
        write_ending(Ending(kind="finished" if reason == "finished" else "stopped", step=done))
        return 0
    except (UserError, WrongDevices) as error:  # in every process after the same step
        goes_on = restart.is_again or (restart.attempt is not None and isinstance(error, NotMet))
        is_refused = isinstance(error, UserError) and not goes_on and not watchdog.done  # nothing is lost with it
        record(Failed(problems=list(error.problems), refused=is_refused))
        write_ending(ending_of(error, watchdog.done))
        cluster.close()
        if process and isinstance(error, UserError):
            say(*error.problems)
        return 2 if isinstance(error, UserError) else 1
    except BaseException as error:
        if process:  # which jax aborts once process 0 has ended
            write_ending(ending_of(error, watchdog.done))
        note_traceback(error)
        cluster.fail(error)
        record(Failed(problems=problems_in(error), refused=False))
        write_ending(ending_of(error, watchdog.done))
        return 1


def ending_of(error: BaseException, done: int) -> Ending:
    """Returns the ending that an exception after `done` steps means."""
    kind = "lost" if isinstance(error, NotMet) else "refused" if isinstance(error, UserError) else "failed"
    if isinstance(error, OSError) and error.errno in FULL:
        kind = "blocked"
    fits = error.processes if isinstance(error, Unfit) else None
    wrong = error.devices if isinstance(error, WrongDevices) else {}
    return Ending(kind=kind, step=done, problems=problems_in(error), fits=fits, wrong=wrong)


def _join(connect: Callable[[], Seal], process: int, record: Callable[[Event], None], inbox: Inbox) -> Cluster:
    seal = connect()

    from ..distributed.jax_cluster import JaxCluster

    def lost(cluster: JaxCluster, gone: Mapping[int, str]) -> None:
        problems = cluster.loss_report(gone)
        record(HostsLost(reasons=dict(gone), hosts=cluster.statuses()))
        record(Failed(problems=problems, refused=False))
        write_ending(Ending(kind="lost", lost=list(gone.values())))
        if process:
            say(*problems)
        time.sleep(FLUSH_SECONDS)
        os._exit(1)

    return JaxCluster(seal, lambda: inbox.put(Stop()), lost)
