"""Several processes, on one host or many, connected by `jax.distributed`.

They exchange values through the key-value store of jax's coordination service, which runs in process 0. That needs no
collective, so it does not delay the devices.
"""

import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import msgspec
from jax._src.distributed import global_state  # jax has no public name for the store
from msgspec import Struct

from ..base.advice import TRACEBACK, problems_in, text_of
from ..base.encoding import encode_msgpack
from ..base.user_error import UserError
from ..wire.hosts import Activity, HostInfo, HostStatus
from .cluster import Cluster
from .liveness import NO_HEARTBEAT, Liveness
from .outcomes import ERRORS, Outcome, Stranded, outcome_of, unsuccessful, worst
from .seal import Forged, Seal
from .sealed_store import SealedStore

CLOSING_SECONDS = 30
"""Timeout of process 0 for the others to leave."""
FAILING_SECONDS = 3
"""The same timeout if process 0 failed: the others may hang."""
DETECTION_SECONDS = 60.0
"""Timeout for the check whether another process was lost: heartbeats stop after 10 s, and a busy machine adds to it."""
OUTCOME_TIMEOUT_SECONDS = 5
"""Timeout for the others' outcomes of an attempt with collectives that failed in this process."""
MAX_SHARE = 0.005
MAX_INTERVAL_SECONDS = 0.5
"""Longest time between two broadcasts, unless a step takes longer: a command may wait that long."""
NONCE_BYTES = 16
GENERATION_SIZE = 1000
"""Number of stored decisions that are deleted together, one generation later."""

T = TypeVar("T")


class Decision(Struct, frozen=True):
    value: msgspec.Raw = msgspec.Raw(msgspec.msgpack.encode(None))
    outcome: Outcome = Outcome()


class JaxCluster(Cluster):
    def __init__(
        self, seal: Seal, stop: Callable[[], object], lost: Callable[["JaxCluster", Mapping[int, str]], None]
    ) -> None:
        """`stop` is called in process 0 if another process received a signal to stop; `lost` in every process if others
        are lost, with this cluster and the reason by process index. Both are called in the thread of `Liveness`."""
        self.process, self.count = global_state.process_id, global_state.num_processes
        self._store = SealedStore(global_state.client, seal, self.count)
        self._broadcasts = self._gathers = 0
        self._call_seconds = 0.0
        watched = global_state.client, self._store, stop, lambda gone: lost(self, gone)
        self._liveness = Liveness(self.process, self.count, *watched)
        self._liveness.start()

    def meet(self) -> None:
        """Exchanges nonces, renews the seal, and learns who the others are. Raises UserError if their counts differ."""
        self._store.seal = self._renewed()
        self._liveness.is_reporting = True
        own = HostInfo(process=self.process, processes=self.count, name=socket.gethostname(), pid=os.getpid())
        self.hosts = self.all_gather(own, HostInfo)
        if any(host.processes != self.hosts[0].processes for host in self.hosts):
            counts = ", ".join(f"{host.processes} on {self._name(host.process)}" for host in self.hosts)
            raise UserError(f"--num-processes: {counts}: give the same number on every host")

    def _renewed(self) -> Seal:
        """Returns the seal of this start. Raises Forged if this process's nonce is missing from it."""
        own = os.urandom(NONCE_BYTES)
        if self.process:
            self._store.write(f"hello/{self.process}", own)
            nonces = msgspec.msgpack.decode(self._store.read("welcome"), type=list[bytes])
            if nonces[self.process : self.process + 1] != [own]:
                raise Forged("welcome")
        else:
            nonces = [own, *(self._store.read(f"hello/{process}") for process in range(1, self.count))]
            self._store.write("welcome", msgspec.msgpack.encode(nonces))
        return self._store.seal.renewed(nonces)

    def broadcast(self, decide: Callable[[], T], kind: Any) -> T:
        number, self._broadcasts = self._broadcasts, self._broadcasts + 1
        key = f"broadcast/{number // GENERATION_SIZE}/{number}"
        if self.process:
            decision = msgspec.msgpack.decode(self._store.read(key), type=Decision)
        else:
            decision = _decided(decide)
            began = time.perf_counter()
            self._store.write(key, msgspec.msgpack.encode(decision))
            self._call_seconds = time.perf_counter() - began
            if number % GENERATION_SIZE == 0 and number >= 2 * GENERATION_SIZE:
                self._store.delete(f"broadcast/{number // GENERATION_SIZE - 2}/")
        if decision.outcome.kind != "done":
            raise ERRORS[decision.outcome.kind](*decision.outcome.problems)
        return msgspec.msgpack.decode(decision.value, type=kind)

    def all_gather(self, value: T, kind: Any) -> list[T]:
        gathered = self.gather(value, kind)
        return self.broadcast(lambda: gathered, list[kind])

    def gather(self, value: T, kind: Any) -> list[T]:
        number, self._gathers = self._gathers, self._gathers + 1
        mine = encode_msgpack(value)
        if self.process:
            self._store.write(f"gather/{number}/{self.process}", mine)
            return []
        others = (self._store.read(f"gather/{number}/{other}") for other in range(1, self.count))
        found = [msgspec.msgpack.decode(each, type=kind) for each in (mine, *others)]
        self._store.delete(f"gather/{number}/")
        return found

    def run_on_all(self, attempt: Callable[[], T], has_collectives: bool = False) -> T:
        value, error = _tried(attempt)
        if has_collectives and error is not None:
            self._store.timeout = OUTCOME_TIMEOUT_SECONDS
        try:
            outcomes = self.all_gather(outcome_of(error), Outcome)
        except TimeoutError:
            raise Stranded(*outcome_of(error).problems) from error
        finally:
            self._store.timeout = math.inf
        self._settle(outcomes, error)
        return value  # type: ignore[return-value] # not None: without a value `_settle` raises

    def _settle(self, outcomes: Sequence[Outcome], error: BaseException | None) -> None:
        """Raises the same in every process unless all have succeeded. `error`: the exception in this process."""
        if (kind := worst(outcomes)) != "done":
            if error is not None:
                unsuccessful(error)
            found = enumerate(outcome.problems for outcome in outcomes)
            named = [f"{self._name(process)}: {line}" for process, problems in found for line in problems]
            raise ERRORS[kind](*named) from error

    def fingerprint(self, text: str) -> str:
        return self._store.seal.fingerprint(text)

    def stride(self, step_seconds: float) -> int:
        """Returns the number of steps until the next broadcast, from the measured time of the last one; 1 if
        `step_seconds` is 0, which means unknown."""
        interval = min(self._call_seconds / MAX_SHARE, MAX_INTERVAL_SECONDS)
        return math.ceil(interval / step_seconds) or 1 if step_seconds else 1

    def statuses(self) -> list[HostStatus]:
        return self._liveness.statuses

    def report(self, step: int, bytes_in_use: int) -> None:
        self._liveness.update(step=step, bytes_in_use=bytes_in_use)

    def ask_to_stop(self) -> None:
        self._liveness.update(is_stopping=True)

    def share(self, activity: Activity) -> list[HostStatus]:
        self._liveness.update(activity=activity)
        return self.statuses()

    def fail(self, error: BaseException) -> None:
        """Reports the failure and leaves. Waits first unless the cause is clearly in this process."""
        if not _is_own(error):
            self._liveness.await_checks(DETECTION_SECONDS)
        self._liveness.leave(FAILING_SECONDS, problem="; ".join(problems_in(error)))
        if self.process:  # others are in a collective, and gloo aborts a process whose peer closes its connections
            time.sleep(FAILING_SECONDS)

    def close(self) -> None:
        self._liveness.leave(CLOSING_SECONDS, is_closing=True)

    def loss_report(self, gone: Mapping[int, str]) -> list[str]:
        """Returns why the run ends: a line for each lost process, and one for the others, if they have met."""
        steps = {status.process: status.step for status in self.statuses()}
        lines = [
            f"{self._name(process)} {end} after step {steps.get(process, 0):,}: {why}"
            for process, why in gone.items()
            for end in ["was lost" if why == NO_HEARTBEAT else "failed"]
        ]
        well = [f"process {process} at step {step:,}" for process, step in steps.items() if process not in gone]
        if well:
            lines.append(
                f"{', '.join(well)}: healthy, but part of the state is lost: resume the run from its checkpoint, on "
                "any number of processes"
            )
        return lines

    def _name(self, process: int) -> str:
        host = next((host for host in self.hosts if host.process == process), None)
        return f"process {process}" + (f" ({host.name}, pid {host.pid})" if host else "")


def _decided(decide: Callable[[], Any]) -> Decision:
    value, error = _tried(decide)
    if error is None:
        return Decision(msgspec.Raw(msgspec.msgpack.encode(value)))
    unsuccessful(error)
    return Decision(outcome=outcome_of(error))


def _is_own(error: BaseException) -> bool:
    """True if no other process can be the cause: not a runtime error of jax, or one about memory or the user's code."""
    cause = error.__cause__ if isinstance(error, Stranded) else error
    text = text_of(cause) if cause else ""
    return not isinstance(cause, jax.errors.JaxRuntimeError) or TRACEBACK in text or "RESOURCE_EXHAUSTED" in text


def _tried(attempt: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return attempt(), None
    except BaseException as error:  # of the user's code, perhaps
        return None, error
