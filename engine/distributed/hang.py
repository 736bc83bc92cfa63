"""Which processes of a run hang, and which wait for them: concluded from what each of them reports."""

from collections.abc import Sequence

import msgspec

from ..wire.hosts import HostStatus


def diagnose_hang(statuses: Sequence[HostStatus]) -> list[HostStatus]:
    """Returns the statuses with their verdicts: none while any process makes progress. If all are late with a step, or
    wait for another process before one, those at fault are late outside a collective, and have begun the fewest steps:
    they have not arrived where the others wait. If all are in one, those that have begun the fewest steps; all in the
    same: a device or the network does not answer."""
    late = [status for status in statuses if status.activity.is_late]
    if not late or not all(status.activity.is_late or status.activity.waits for status in statuses):
        return list(statuses)
    outside = [status for status in late if not status.activity.waits] or late
    least = min(status.activity.step for status in outside)
    stuck = {status.process for status in outside if status.activity.step == least}
    return [
        msgspec.structs.replace(status, verdict="stuck" if status.process in stuck else "waiting")
        for status in statuses
    ]


def words(status: HostStatus) -> str:
    at, is_stuck = status.activity, status.verdict == "stuck"
    where = f"waiting for its devices in {at.where}" if is_stuck and at.waits else f"in {at.where}"
    return f"{status.verdict} {where} in step {at.step:,} for {at.seconds:.0f} s"


def waiting_words(statuses: Sequence[HostStatus]) -> str:
    """Returns which processes wait for those that are stuck, after a semicolon; empty if none does."""
    waiting = [str(status.process) for status in statuses if status.verdict == "waiting"]
    if not waiting:
        return ""
    who = f"processes {', '.join(waiting)} were" if waiting[1:] else f"process {waiting[0]} was"
    return f"; {who} waiting for it"


def hang_words(statuses: Sequence[HostStatus]) -> str:
    stuck = [status for status in statuses if status.verdict == "stuck"]
    found = "; ".join(f"process {status.process} is {words(status)}" for status in stuck)
    return found + waiting_words(statuses)
