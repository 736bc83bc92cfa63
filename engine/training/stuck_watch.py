"""Finds out which process of the run is stuck, writes the stacks of this one, and ends it if it is to be restarted."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base.stacks import append_stacks, dump_file, dump_on_signal, stamped
from ..distributed.cluster import Cluster
from ..distributed.verdicts import stuck_words, waiting_words
from ..spec.config import Restart, RunConfig
from ..wire.ending import Ending
from ..wire.hosts import HostStatus
from ..wire.run_directory import RunDirectory
from .training_thread import TrainingThread

STACKS_SECONDS = 2.0
"""How long a process must have been stuck by the reports of all before it ends: the others write their stacks."""


class StuckWatch:
    """Compares what the processes of a run do. Used by the watchdog's thread."""

    def __init__(
        self,
        thread: TrainingThread,
        cluster: Callable[[], Cluster],
        stacks: Path,
        beat: Path | None,
        record: Callable[[Ending], None],
    ) -> None:
        """`beat`: the file by which the supervisor sees that Python runs in this process; None without a supervisor.

        `record` writes how this process ended.
        """
        self.thread = thread
        self.stacks = stacks
        self._cluster = cluster
        self._beat = beat
        self._record = record
        self._since: float | None = None
        """When a process was first found to be stuck; None if none is."""
        if beat:
            dump_on_signal(dump_file(beat))

    def look(self) -> list[HostStatus]:
        """Returns the statuses of all processes if one is stuck, else none. Ends this process if it is the one."""
        cluster = self._cluster()
        activity = self.thread.look(cluster.begun)
        self._tell_supervisor()
        statuses = cluster.share(activity)
        own = next((status for status in statuses if status.process == cluster.process), None)
        if not own or not any(status.verdict == "stuck" for status in statuses):
            self._since = None
            return []
        if self._since is None:
            self._since = time.monotonic()
            self._write_stacks(own)
        is_certain = own.verdict == "stuck" and activity.is_late and time.monotonic() - self._since >= STACKS_SECONDS
        if is_certain and self._beat:
            self._end(own, statuses)
        return statuses

    def stalled_elsewhere(self) -> str | None:
        """Returns where another process has been for long without waiting for others; None if none has."""
        return self._cluster().stalled_elsewhere()

    def _tell_supervisor(self) -> None:
        if self._beat:
            with contextlib.suppress(OSError):
                self._beat.touch()

    def _write_stacks(self, own: HostStatus) -> None:
        activity = own.activity
        header = stamped(
            f"process {own.process} on {socket.gethostname()}, pid {os.getpid()}: "
            f"{activity.doing}, step {activity.step:,}, for {activity.seconds:.0f} s: {own.verdict or 'not late'}"
        )
        try:
            append_stacks(self.stacks, header)
        except OSError as error:
            print(f"shardtui: {self.stacks}: stacks cannot be written: {error.strerror}", file=sys.stderr, flush=True)

    def _end(self, own: HostStatus, statuses: Sequence[HostStatus]) -> None:
        waiting = waiting_words(statuses)
        problem = stuck_words(own.activity) + (f"; {waiting}" if waiting else "")
        print(f"shardtui: {problem}: stacks in {self.stacks}", file=sys.stderr, flush=True)
        self._record(Ending(kind="stuck", step=own.activity.step - 1, problems=[problem]))
        os._exit(1)


def stuck_watch(
    directory: RunDirectory,
    config: RunConfig,
    restart: Restart,
    process: int,
    cluster: Callable[[], Cluster],
    record: Callable[[Ending], None],
    user_directory: str | None,
) -> StuckWatch:
    """Returns the watch of one process of a run. `process`: its index."""
    beat = directory.beat(process) if restart.attempt else None
    return StuckWatch(TrainingThread(user_directory), cluster, directory.stacks(config), beat, record)


def words(statuses: Sequence[HostStatus]) -> str:
    """Returns who is stuck, and who waits."""
    stuck = [status for status in statuses if status.verdict == "stuck"]
    waiting = waiting_words(statuses)
    found = "; ".join(f"process {status.process} is {stuck_words(status.activity)}" for status in stuck)
    return found + (f"; {waiting}" if waiting else "")
