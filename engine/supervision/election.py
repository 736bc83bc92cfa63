"""Elects who trains in the next attempt: the first supervisor that is present does."""

import socket
from collections.abc import Callable, Mapping

from ..spec.attempt import LostProcess, Supervision
from ..wire.ending import Ending, worst
from .engine import Retries
from .rendezvous import LOST_SECONDS, Decision, Heartbeat, Rendezvous

FIRST_SECONDS = 60.0
"""Time for all hosts to come when a run is started."""
PORTS = 100
"""Each attempt uses the next of so many ports, from --coordinator on: a process that is left over reaches none."""
GONE = f"its supervisor has not answered for {LOST_SECONDS:g} s: its host is down, or cannot reach the shared storage"


class Election:
    def __init__(
        self,
        rendezvous: Rendezvous,
        coordinator: str,
        count: int,
        supervision: Supervision,
        last_step: Callable[[], int],
    ) -> None:
        """`count`: supervisors of the run. `last_step` returns the last step that any host has reported."""
        self._rendezvous, self._count, self._last_step = rendezvous, count, last_step
        self._port = int(coordinator.rpartition(":")[2])
        self._least = min(supervision.min_processes or count, count)
        self._patience = supervision.wait_seconds
        self._retries = Retries(supervision.restarts)
        self._noted = 0

    def elect(self, number: int, present: Mapping[int, Heartbeat], waited: float) -> None:
        """Decides on an attempt for which all present supervisors are ready, unless it still waits for hosts."""
        before = self._rendezvous.decision(number - 1)
        endings = _endings(before, present)
        rank, ending = worst(endings) if endings else (0, Ending(kind="stopped"))
        wrong = self._wrong(before, present, ending)
        if not ending.is_orderly and ending.kind != "blocked" and not wrong and self._noted < number:
            self._noted = number
            self._retries.note(rank, ending, self._last_step())
        decision = self._verdict(number, present, wrong[0] if wrong else rank, ending, wrong)
        if not decision.problem and (missing := self._count - len({*present, *decision.left_out})):
            patience = self._patience if endings else FIRST_SECONDS
            is_enough = len(decision.members) >= self._least
            if waited < (patience or 0.0) or (patience is None and not is_enough):
                return
            if not is_enough:
                decision = Decision(number=number, problem=self._too_few(missing, waited))
        self._rendezvous.decide(decision)

    def _wrong(self, before: Decision | None, present: Mapping[int, Heartbeat], ending: Ending) -> list[int]:
        """Returns the hosts whose devices were wrong in the attempt before, if enough are left without them."""
        members = sorted(before.members) if before else []
        wrong = [members[process] for process in ending.wrong]
        return wrong if len(present.keys() - wrong) >= self._least else []

    def _verdict(
        self, number: int, present: Mapping[int, Heartbeat], rank: int, ending: Ending, left_out: list[int]
    ) -> Decision:
        """Returns the decision with all who can take part, except those who are to be `left_out`. `rank`: whose
        `ending` ended the attempt before."""
        spare: list[int] = []
        ranks = [other for other in present if other not in left_out]
        is_dead = self._retries.is_repeated and ending.kind in ("killed", "lost", "stuck")
        if ending.fits is not None:
            ranks, spare = ranks[: ending.fits], ranks[ending.fits :]
        elif ending.kind in ("refused", "late"):
            return Decision(number=number, problem=ending.why)
        elif is_dead and rank in ranks and len(ranks) > self._least:
            left_out = [rank]
            ranks = [other for other in ranks if other != rank]
            self._retries.forget_faults()
        elif not ending.is_orderly and ending.kind != "blocked" and not left_out and (problem := self._retries.problem):
            return Decision(number=number, problem=problem)
        if spare and len(ranks) < self._least:
            return Decision(number=number, problem=f"{ending.why}; --min-processes {self._least} allows no fewer")
        return Decision(
            number=number,
            members={other: present[other].token for other in ranks},
            coordinator=self._coordinator(number),
            spare=spare,
            left_out=left_out,
            lost=None if ending.is_orderly else LostProcess(rank, ending.why),
        )

    def _too_few(self, missing: int, waited: float) -> str:
        return (
            f"{missing} of {self._count} hosts did not come within {waited:.0f} s, and at least {self._least} must "
            "train: start `shardtui engine --supervise` on them, or give a smaller --min-processes"
        )

    def _coordinator(self, number: int) -> str:
        for offset in range(PORTS):
            port = self._port + (number - 1 + offset) % PORTS
            try:
                with socket.create_server(("", port)):
                    return f"{self._rendezvous.own.address}:{port}"
            except (OSError, OverflowError):  # taken, or more than the highest port
                continue
        return f"{self._rendezvous.own.address}:{self._port}"


def _endings(before: Decision | None, present: Mapping[int, Heartbeat]) -> dict[int, Ending]:
    """Returns how the engines of the attempt before ended; none if these supervisors have run none together. If hosts
    are gone, only theirs: the others may have failed because of that."""
    found = {rank: other.ending for rank, other in present.items() if other.ending}
    if not found or before is None:
        return {}
    gone = [rank for rank, token in before.members.items() if rank not in present or present[rank].token != token]
    return {rank: Ending(kind="killed", problems=[GONE]) for rank in gone} or found
