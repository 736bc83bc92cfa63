"""Tracks which processes of a run are alive: each reports its status every second, and detects lost ones."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import msgspec

from ..base.encoding import encode_msgpack
from ..base.processes import Clock
from ..wire.hosts import HostStatus
from .hang import diagnose_hang
from .joining import HEARTBEAT_SECONDS
from .sealed_store import SealedStore

BEAT_SECONDS = 1.0
POLL_SECONDS = 0.02
PROVING_CHECKS = 3
"""Complete checks that prove the others alive. The first began before it was asked for; in the second, another may have
answered early and died since."""
SILENT_SECONDS = 15.0
"""A process in a step that sends heartbeats but has not reported for so long is late: no Python code runs in it."""
ANSWER_SECONDS = 0.5
"""Time for the last process that leaves to read the service's answer: without it jax aborts the process."""
NO_PYTHON = "native code that keeps Python from running"
NO_HEARTBEAT = f"no heartbeat for {HEARTBEAT_SECONDS} s: killed, hung, or disconnected"


class Liveness:
    """Reports this process's status and watches the others, in its own threads, once it is started."""

    is_reporting = False
    """True once all processes have the seal of this start, so that statuses can be exchanged."""

    def __init__(
        self,
        process: int,
        count: int,
        client: Any,
        store: SealedStore,
        stop: Callable[[], object],
        lost: Callable[[Mapping[int, str]], None],
    ) -> None:
        self._process, self._everyone = process, list(range(count))
        self._client, self._store, self._stop, self._lost = client, store, stop, lost
        self._is_closed = False
        self._checks = 0
        self._lock = threading.Lock()
        """Held while `_own` changes: several threads change it."""
        self._exchanging = threading.Lock()
        """Held while statuses are written and read."""
        self._own = HostStatus(process=process, step=0, bytes_in_use=0)
        self._known: dict[int, HostStatus] = {}
        self._still: dict[int, float] = {}
        """Seconds since each process reported, while this one ran."""

    def start(self) -> None:
        threading.Thread(target=self._watch, name="cluster", daemon=True).start()
        threading.Thread(target=self._exchange, name="statuses", daemon=True).start()

    @property
    def statuses(self) -> list[HostStatus]:
        return diagnose_hang([self._aged(status) for _, status in sorted(self._known.items())])

    def _aged(self, status: HostStatus) -> HostStatus:
        """Returns the status; late if the process, in a step, has not reported for long."""
        activity, silent = status.activity, self._still[status.process]
        if status.process == self._process or not activity.in_step or silent < SILENT_SECONDS:
            return status
        late = msgspec.structs.replace(
            activity, seconds=activity.seconds + silent, is_late=True, where=NO_PYTHON, waits=False
        )
        return msgspec.structs.replace(status, activity=late)

    def update(self, **changes: Any) -> None:
        """Changes the status of this process; the others see it within two beats."""
        with self._lock:
            self._own = msgspec.structs.replace(self._own, **changes)

    def await_checks(self, seconds: float) -> None:
        """Waits until everyone is proven alive, but at most `seconds`. If others are lost, `lost` is called."""
        proven, until = self._checks + PROVING_CHECKS, time.monotonic() + seconds
        while self._checks < proven and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def leave(self, seconds: float, **changes: Any) -> None:
        """Writes a last status and stops watching. The service ends with process 0, and jax aborts processes that are
        still connected: so process 0 waits until the others have left, but at most `seconds`."""
        self._is_closed = True
        self.update(**changes)
        leaving = threading.Thread(target=self._leave, name="leaving", daemon=True)
        leaving.start()
        leaving.join(seconds)

    def _leave(self) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 did not wait
            with self._exchanging:
                self._write_own()
            if self._process:
                self._client.shutdown()
            while self._process == 0 and len(self._client.get_live_nodes(self._everyone)) > 1:
                time.sleep(POLL_SECONDS)
            if self._process == 0:
                time.sleep(ANSWER_SECONDS)

    def _watch(self) -> None:
        """Runs until the end of this process. The service answers once all processes have asked it."""
        while not self._is_closed:
            try:
                living = self._client.get_live_nodes(self._everyone)
                self._exchange_once()  # after the answer: a process that leaves reports that before
            except jax.errors.JaxRuntimeError:  # the service is gone, and process 0 with it
                living = self._everyone[1:]
            gone = self._gone(living)
            if gone and not self._is_closed:
                self._lost(gone)
                return
            self._checks += 1
            if self._process == 0 and any(status.is_stopping for status in self.statuses):
                self._stop()
            time.sleep(BEAT_SECONDS)

    def _exchange(self) -> None:
        """Exchanges statuses every second, also while the service waits for a process that does not ask it."""
        clock = Clock(2 * BEAT_SECONDS)  # a process that was stopped itself does not count that time
        while not self._is_closed:
            time.sleep(BEAT_SECONDS)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # `_watch` deals with it
                self._exchange_once()
            passed = clock.passed()
            for process in self._known:
                self._still[process] += passed

    def _exchange_once(self) -> None:
        with self._exchanging:
            if self.is_reporting and not self._is_closed:
                self._write_own()
                self._read_statuses()

    def _gone(self, living: Iterable[int]) -> dict[int, str]:
        gone = {status.process: status.problem for status in self.statuses if status.problem}
        closing = [status.process for status in self.statuses if status.is_closing]
        known = (*living, *closing, *gone)
        return gone | {process: NO_HEARTBEAT for process in self._everyone if process not in known}

    def _write_own(self) -> None:
        with self._lock:
            self._own = msgspec.structs.replace(self._own, beat=self._own.beat + 1)
        self._store.write(f"status/{self._process}", encode_msgpack(self._own))

    def _read_statuses(self) -> None:
        """Ignores a status older than the last one: somebody may have recorded and replayed it."""
        known = dict(self._known)
        for value in self._store.of_each_process("status/"):
            status = msgspec.msgpack.decode(value, type=HostStatus)
            before = known.get(status.process)
            if before is None or status.beat > before.beat:
                known[status.process], self._still[status.process] = status, 0.0
        self._known = known
