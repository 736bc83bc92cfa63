"""Hosts of supervised runs that are lost and return: the others go on without one, then take it in again."""

import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ..simulated_hosts import Hosts, losses_by_step
from .row import Row
from .supervised import TOLERANCE, Event

COUNTS = (2, 4)
LOSSES = 2
"""Times that a host of each run is lost and returns."""
LIMIT = 240.0
"""Seconds without what is waited for, after which a run counts as one that hangs."""
COMPARED_STEPS = 300
"""Steps of the run without losses."""


@dataclass
class Found:
    """What happened to runs whose hosts were lost."""

    wrong: list[str] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    """Seconds from the loss of each host to the next step, of the others."""
    taken_in: list[float] = field(default_factory=list)
    """Seconds from the return of each host to the next step, of all."""
    first: int = 0
    """Losses of the host of process 0."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for runs on 2 and 4 hosts: `times` of each, in which a host is lost and returns `LOSSES` times."""
    with tempfile.TemporaryDirectory(prefix="shardtui-hosts-") as folder:
        alone = losses_by_step(_alone(Path(folder)))
        for count in COUNTS:
            found, chance = Found(), random.Random(count)
            for number in range(times):
                place = Path(folder) / f"{count}-{number}"
                place.mkdir()
                _lose(place, count, chance, found, alone)
            yield _row(count, found, times * LOSSES)


def _alone(folder: Path) -> list[Event]:
    hosts = Hosts(folder, 1, f"--steps={COMPARED_STEPS}")
    hosts.start(0)
    assert hosts.supervisors[0].wait(LIMIT) == 0, hosts.said(0)
    return hosts.history(0)


def _row(count: int, found: Found, times: int) -> Row:
    note = "; ".join(found.wrong[:3]) or (
        f"{found.first} of process 0; loss to next step: median {median(found.without):.1f} s, longest "
        f"{max(found.without):.1f} s; return to next step: median {median(found.taken_in):.1f} s, longest "
        f"{max(found.taken_in):.1f} s; losses as without faults, nothing committed lost"
    )
    return Row(f"one host of {count} lost, later back", times, times - len(found.wrong), note)


def _lose(folder: Path, count: int, chance: random.Random, found: Found, alone: dict[int, float]) -> None:
    hosts = Hosts(folder, count, "--min-processes=1", "--checkpoint-every=20", "--restarts=1000")
    try:
        for rank in range(count):
            hosts.start(rank)
        _wait(lambda: _trains_on(hosts.shared_history(), count), hosts)
        for _ in range(LOSSES):
            victim = chance.randrange(count)
            found.first += victim == 0
            committed = max(
                (event["step"] for event in hosts.shared_history() if event["type"] == "CheckpointSaved"), default=0
            )
            hosts.kill(victim)
            found.without.append(_wait(lambda: _trains_on(hosts.shared_history(), 0, below=count), hosts))
            restored = [event["step"] for event in hosts.shared_history() if event["type"] == "Restored"][-1:]
            found.wrong += [
                f"step {committed} was committed, {step} was restored" for step in restored if step < committed
            ]
            hosts.start(victim)
            found.taken_in.append(_wait(lambda: _trains_on(hosts.shared_history(), count), hosts))
        for supervisor in hosts.supervisors.values():
            supervisor.send_signal(signal.SIGTERM)
        codes = [supervisor.wait(LIMIT) for supervisor in hosts.supervisors.values()]
        found.wrong += [f"exit codes {codes}"] if any(codes) else []
        losses = losses_by_step(hosts.shared_history())
        far = [step for step in losses.keys() & alone.keys() if abs(losses[step] / alone[step] - 1) > TOLERANCE]
        found.wrong += [f"the loss of step {step} differs" for step in sorted(far)[:1]]
    except TimeoutError as error:
        found.wrong.append(str(error))
    finally:
        for supervisor in hosts.supervisors.values():
            supervisor.kill()
            supervisor.wait()


def _trains_on(events: list[Event], count: int, below: int = 0) -> bool:
    """Whether the last attempt has trained a step on `count` processes; if `below` is given, on fewer than that."""
    starts = [index for index, event in enumerate(events) if event["type"] == "EngineStarted"]
    if not starts:
        return False
    processes = events[starts[-1]]["attempt"]["processes"]
    has_trained = any(event["type"] == "StepsDone" for event in events[starts[-1] :])
    return has_trained and (processes < below if below else processes == count)


def _wait(until: Callable[[], bool], hosts: Hosts) -> float:
    """Returns how many seconds it took."""
    began = time.monotonic()
    while not until():
        if time.monotonic() - began > LIMIT:
            raise TimeoutError(f"no step within {LIMIT:.0f} s: {hosts.said(min(hosts.supervisors))[-300:]}")
        time.sleep(0.1)
    return time.monotonic() - began
