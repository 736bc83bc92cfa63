"""Which processes of a run are stuck, and which wait for them: concluded from what each of them last began."""

from collections.abc import Collection, Sequence

import msgspec

from ..wire.hosts import Activity, HostStatus


def judged(statuses: Sequence[HostStatus], silent: Collection[int] = ()) -> list[HostStatus]:
    """Returns the statuses of all processes with their verdicts.

    `silent`: processes that report nothing any more, although their heartbeats go on. Nobody is stuck while a process
    compiles, saves or loads, however long that takes: the others wait for it. Nor while one waits for a command.
    """
    if any(status.activity.doing == "idle" for status in statuses):
        return list(statuses)
    stuck = _stuck(statuses, silent)
    return [msgspec.structs.replace(status, verdict=_verdict(status, stuck)) for status in statuses]


def _verdict(status: HostStatus, stuck: Collection[int]) -> str:
    return "stuck" if status.process in stuck else "waiting" if status.activity.is_late else ""


def _stuck(statuses: Sequence[HostStatus], silent: Collection[int]) -> Collection[int]:
    """Returns the processes that the others wait for; none while one of them makes progress.

    Those that are not in a collective have begun it last, or not at all. If all are in one, those that have begun
    fewer steps; else nobody is to blame: a device or the network does not answer.
    """
    if silent:
        return silent
    if not statuses or not all(status.activity.is_late for status in statuses):
        return ()
    outside = [status for status in statuses if not status.activity.waits] or statuses
    least = min(status.activity.step for status in outside)
    return [status.process for status in outside if status.activity.step == least]


def stuck_words(activity: Activity) -> str:
    """Returns where a process is stuck. One that does not report it has threads that cannot run."""
    if not activity.where:
        return f"stuck in step {activity.step:,}: native code keeps Python from running"
    where = f"waiting for its devices in {activity.where}" if activity.waits else f"in {activity.where}"
    return f"stuck {where} in step {activity.step:,} for {activity.seconds:.0f} s"


def waiting_words(statuses: Sequence[HostStatus]) -> str:
    """Returns which processes wait for those that are stuck; empty if none does."""
    waiting = [str(status.process) for status in statuses if status.verdict == "waiting"]
    match waiting:
        case []:
            return ""
        case [one]:
            return f"process {one} was waiting for it"
        case _:
            return f"processes {', '.join(waiting)} were waiting for it"
