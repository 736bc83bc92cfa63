"""The parts of the step whenever they were measured: from time to time, and in each profile."""

from ...engine.wire.events import PartsMeasured, Profiled


def measured_parts(event: PartsMeasured | Profiled) -> list[PartsMeasured]:
    """Returns what an event adds to the history: nothing if its trace could not be read."""
    if isinstance(event, PartsMeasured):
        return [event] if event.step_seconds else []
    if event.account is None:
        return []
    found = PartsMeasured(
        step=event.step,
        preset=event.preset,
        step_seconds=event.account.step_seconds,
        parts=event.account.parts,
        pause_seconds=0.0,
    )
    return [found]
