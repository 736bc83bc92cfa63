"""Runs the engine of one host of several, together with the supervisors of the others."""

import contextlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..base.advice import problems_in
from ..base.output import say
from ..base.regular_file import append_regular, open_regular
from ..base.user_error import UserError
from ..distributed.address import reachable_address
from ..spec.attempt import Attempt, Supervision
from ..spec.config import Membership, Restart
from ..wire.ending import Ending
from ..wire.engine_command import engine_command
from ..wire.run_directory import RunDirectory, checked_name, newest_checkpoint, state_home
from .boundary import Boundary
from .election import Election
from .engine import SETTLE_SECONDS, Engine, SignalHandler
from .rendezvous import Decision, Heartbeat, Rendezvous
from .supervisor import NO_ENGINE, POLL_SECONDS, give_up, held, last_step

LOOK_SECONDS = 0.5
WAITING_SECONDS = 20.0
"""A supervisor that waits longer for others says for which."""
COMPARED_BYTES = 4096
"""Bytes at the end of the copy by which a log that goes on from it is known."""


class HostSupervisor:
    """Runs one engine process after the other until the run has ended."""

    def __init__(
        self,
        directory: RunDirectory,
        restart: Restart,
        membership: Membership,
        supervision: Supervision,
        signals: SignalHandler,
    ) -> None:
        """`membership`: of the run on all hosts. Raises UserError if this host cannot take part."""
        assert restart.config and membership.coordinator and membership.processes and membership.process is not None
        self._directory, self._membership = directory, membership
        self._restart = msgspec.structs.replace(restart, fallback=supervision.fallback)
        self._rank, self._count = membership.process, membership.processes
        self._config, self._checkpoints = restart.config, Path(directory.checkpoints(restart.config))
        folder = self._checkpoints / "supervisors"
        own = Heartbeat(
            rank=self._rank,
            token=secrets.token_hex(8),
            host=socket.gethostname(),
            address=reachable_address(membership.coordinator, self._rank),
        )
        self._boundary = Boundary(lambda: signals.count)
        self._rendezvous = Rendezvous(folder, own, self._boundary.note)
        shared = folder / "events.jsonl"
        self._history = History(directory.events, shared)
        self._election = Election(
            self._rendezvous, membership.coordinator, self._count, supervision, lambda: last_step(shared)
        )
        self._serves = False
        """Whether process 0 of the last attempt was on this host, which then has the history."""
        self._signals = signals

    def run(self) -> int:
        """Returns the exit code of the run on this host: 0, 1 if it failed, 2 if it was refused."""
        ending: Ending | None = None
        while True:
            number = self._rendezvous.newest() + 1
            self._rendezvous.update(ready_for=number, ending=ending)
            decision = self._awaited(number)
            if decision is None:
                return 0
            if problem := self._problem(decision):
                return self._give_up(problem, ending)
            ending = None
            if decision.members.get(self._rank) == self._rendezvous.own.token:
                ending = self._run_attempt(decision)
                present = self._boundary.retried("hosts", self._rendezvous.present) or {}
                makes_room = any(other.makes_room == number for other in present.values())
                if ending.is_orderly and (self._signals.count or not makes_room):
                    self._rendezvous.update(is_done=True)
                    return 0
                if ending.kind == "late" and makes_room and not self._signals.count:  # nobody asked for the run's end
                    ending = msgspec.structs.replace(ending, kind="failed")
                self._boundary.is_blocked(ending)

    def _awaited(self, number: int) -> Decision | None:
        """Waits for the decision on an attempt, or makes it as the first supervisor; None if the run is over. Raises
        UserError if there is another supervisor of this rank."""
        since = time.monotonic()
        while True:
            self._rendezvous.refuse_rival()
            with self._boundary.turn("hosts"):
                if decision := self._rendezvous.decision(number):
                    return decision
                present = self._rendezvous.present()
                if any(other.is_done and other.ready_for == number - 1 for other in present.values()):
                    return None
                self._tell_waiting(number, present, time.monotonic() - since)
                if min(present) == self._rank and all(other.ready_for >= number for other in present.values()):
                    self._election.elect(number, present, time.monotonic() - since)
            if self._signals.count:
                return Decision(number=number, problem=NO_ENGINE)
            time.sleep(LOOK_SECONDS)

    def _tell_waiting(self, number: int, present: Mapping[int, Heartbeat], waited: float) -> None:
        gone = [f"process {rank} is not there" for rank in range(self._count) if rank not in present]
        busy = [f"process {rank} is not ready" for rank, other in present.items() if other.ready_for < number]
        if waited >= WAITING_SECONDS:
            self._boundary.note("waiting", f"attempt {number} waits: {', '.join([*gone, *busy]) or 'nobody decides'}")

    def _problem(self, decision: Decision) -> str:
        if self._rank not in decision.left_out:
            return decision.problem
        assert decision.lost
        return f"the run goes on without this host (process {self._rank}): {decision.lost.why}"

    def _give_up(self, problem: str, ending: Ending | None) -> int:
        if self._serves:
            give_up(self._directory, problem)
            self._history.publish()
        else:
            say(problem)
        return 2 if ending and ending.kind == "refused" else 1

    def _run_attempt(self, decision: Decision) -> Ending:
        process = sorted(decision.members).index(self._rank)
        try:
            if process == 0 and not self._serves:
                self._history.fetch()
            self._serves = process == 0
            self._tell_host(decision)
            engine = self._started(decision, process)
        except (OSError, UserError) as error:
            return Ending(kind="blocked", problems=problems_in(error))
        self._signals.follow(engine)
        watch = _Watch(decision, self._rendezvous, self._checkpoints)
        ending = self._watched(engine, watch)[process]
        if self._serves:
            self._history.publish()
        return Ending(kind="lost") if watch.has_killed else ending

    def _watched(self, engine: Engine, watch: "_Watch") -> dict[int, Ending]:
        """Returns how the processes ended. Raises UserError if there is another supervisor of this rank."""
        looked = time.monotonic()
        while True:
            self._rendezvous.refuse_rival()
            with self._boundary.turn("engine"):
                if endings := engine.ended():
                    return endings
            time.sleep(POLL_SECONDS)
            if time.monotonic() - looked >= LOOK_SECONDS:
                with self._boundary.turn("hosts"):
                    watch.look(engine)
                    if self._serves:
                        self._history.publish()
                looked = time.monotonic()

    def _tell_host(self, decision: Decision) -> None:
        """Tells the viewers on this host which one has process 0, if that is another one."""
        self._directory.shown_on.unlink(missing_ok=True)
        if not self._serves:
            first = min(decision.members)
            present = self._rendezvous.present()
            self._directory.shown_on.write_text(present[first].host if first in present else f"host {first}")

    def _started(self, decision: Decision, process: int) -> Engine:
        count = len(decision.members)
        attempt = Attempt(
            number=decision.number, supervisor=os.getpid(), processes=count, of=self._count, lost=decision.lost
        )
        restart = msgspec.structs.replace(self._restart, attempt=attempt)
        self._restart = msgspec.structs.replace(self._restart, step=None, preset=None, profile=None)
        if count == 1:
            alone = engine_command("serve", str(self._directory.path), restart)
            return Engine(self._directory, self._config, {0: alone})
        member = msgspec.structs.replace(
            self._membership, coordinator=decision.coordinator, processes=count, process=process
        )
        command = engine_command("host", self._directory.name, None, restart, member)
        return Engine(self._directory, self._config, {process: command}, has_logs=False)


class _Watch:
    """Looks at the other supervisors while the engines of an attempt run."""

    has_killed = False
    """Whether the engine of this host was ended because another one had ended."""

    def __init__(self, decision: Decision, rendezvous: Rendezvous, checkpoints: Path) -> None:
        self._decision, self._rendezvous, self._checkpoints = decision, rendezvous, checkpoints
        self._ended_at: float | None = None
        """When another engine was first seen to have ended, or its supervisor to be gone."""
        self._saved: int | None = None
        """The newest checkpoint when a host was first seen to wait."""

    def look(self, engine: Engine) -> None:
        """Ends the engine after another one, unless it ends by itself; stops it for hosts that wait."""
        number, members = self._decision.number, self._decision.members
        present = self._rendezvous.present()
        mine = {rank: other for rank, other in present.items() if members.get(rank) == other.token}
        ended = [other for other in mine.values() if other.ready_for > number]
        if ended or len(mine) < len(members):
            self._ended_at = self._ended_at or time.monotonic()
            is_killed = any(other.ending and other.ending.kind in ("killed", "stuck") for other in ended)
            if is_killed or time.monotonic() - self._ended_at >= SETTLE_SECONDS:
                self.has_killed = True
                engine.kill()
        others = (rank for rank, other in present.items() if rank not in mine and other.ready_for > number)
        waiting = [rank for rank in others if rank not in self._decision.spare]
        if waiting and min(members) == self._rendezvous.own.rank and self._rendezvous.own.makes_room != number:
            self._make_room(engine, waiting)

    def _make_room(self, engine: Engine, waiting: list[int]) -> None:
        """Stops the engines once there is a new checkpoint: a host that comes and goes costs no step."""
        newest = newest_checkpoint(self._checkpoints)
        if self._saved is None:
            self._saved = newest
        elif newest > self._saved:
            say(f"process {', '.join(map(str, waiting))} is back: attempt {self._decision.number + 1} takes it in")
            self._rendezvous.update(makes_room=self._decision.number)
            engine.stop()


class History:
    """The event log of this host, and its copy beside the checkpoints, with which another host can go on."""

    def __init__(self, own: Path, shared: Path) -> None:
        self._own, self._shared = own, shared

    def fetch(self) -> None:
        """Replaces this host's log by the shared copy, unless it goes on from there. Only while no engine writes it."""
        if self._shared.exists() and not self._goes_on():
            new = self._own.with_name(f"{self._own.name}.new")
            shutil.copyfile(self._shared, new)
            new.replace(self._own)

    def publish(self) -> None:
        """Appends to the copy what was written here since. Ignores a failing storage: the next call copies the rest."""
        with contextlib.suppress(OSError), open_regular(self._own) as own, append_regular(self._shared) as shared:
            own.seek(shared.seek(0, 2))
            shutil.copyfileobj(own, shared)

    def _goes_on(self) -> bool:
        """Whether this host's log begins with the copy, as far as the end of the copy tells."""
        if not self._own.exists():
            return False
        with open_regular(self._own) as own, open_regular(self._shared) as shared:
            start = max(0, shared.seek(0, 2) - COMPARED_BYTES)
            shared.seek(start)
            own.seek(start)
            ending = shared.read()
            return own.read(len(ending)) == ending


def supervise_host(run: str, restart: Restart, membership: Membership, supervision: Supervision) -> int:
    """Supervises the engine of this host, and returns the exit code of the run. Raises UserError."""
    directory = RunDirectory(state_home() / checked_name(run))
    assert restart.config
    if not directory.exists:
        directory.write_config(restart.config)
    with held(directory), SignalHandler() as signals:
        return HostSupervisor(directory, restart, membership, supervision, signals).run()
