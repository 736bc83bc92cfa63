"""Hosts of supervised runs that are lost and return: the others go on without one, then take it in again."""

import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..processes import awaited
from ..simulated_hosts import Hosts, losses_by_step
from .row import Row
from .supervised import Event, Found, differing, spread

COUNTS = (2, 4)
LOSSES = 2
"""Times that a host of each run is lost and returns."""
LIMIT = 240.0
"""Seconds without what is waited for, after which a run counts as one that hangs."""
COMPARED_STEPS = 300
"""Steps of the run without losses."""


@dataclass
class Returned(Found):
    taken_in: list[float] = field(default_factory=list)
    """Seconds from the return of each host to the next step, of all."""


def run(times: int) -> Iterator[Row]:
    """Yields a row for runs on 2 and 4 hosts: `times` of each, in which a host is lost and returns `LOSSES` times."""
    with tempfile.TemporaryDirectory(prefix="shardtui-hosts-") as folder:
        alone = losses_by_step(_alone(Path(folder)))
        for count in COUNTS:
            found, chance = Returned(), random.Random(count)
            for number in range(times):
                place = Path(folder) / f"{count}-{number}"
                place.mkdir()
                _lose(place, count, chance, found, alone)
            note = f"loss to next step: {spread(found.gaps)}; return to next step: {spread(found.taken_in)}"
            yield found.row(f"one host of {count} lost, later back", f"{found.of_process_0} of process 0; {note}")


def _alone(folder: Path) -> list[Event]:
    hosts = Hosts(folder, 1, f"--steps={COMPARED_STEPS}")
    hosts.start(0)
    assert hosts.supervisors[0].wait(LIMIT) == 0, hosts.said(0)
    return hosts.history(0)


def _lose(folder: Path, count: int, chance: random.Random, found: Returned, alone: dict[int, float]) -> None:
    hosts = Hosts(folder, count, "--min-processes=1", "--checkpoint-every=20", "--restarts=1000")
    try:
        for rank in range(count):
            hosts.start(rank)
        _wait(lambda: _trains_on(hosts.shared_history(), count), hosts)
        for _ in range(LOSSES):
            victim = chance.randrange(count)
            found.of_process_0 += victim == 0
            found.faults["loss"] += 1
            saved = [event["step"] for event in hosts.shared_history() if event["type"] == "CheckpointSaved"]
            hosts.kill(victim)
            found.gaps.append(_wait(lambda: _trains_on(hosts.shared_history(), 0, below=count), hosts))
            restored = [event["step"] for event in hosts.shared_history() if event["type"] == "Restored"][-1:]
            for step in restored:
                if step < max(saved, default=0):
                    found.wrong.append(f"step {max(saved)} was committed, {step} was restored")
            hosts.start(victim)
            found.taken_in.append(_wait(lambda: _trains_on(hosts.shared_history(), count), hosts))
        for supervisor in hosts.supervisors.values():
            supervisor.send_signal(signal.SIGTERM)
        codes = [supervisor.wait(LIMIT) for supervisor in hosts.supervisors.values()]
        found.wrong += [f"exit codes {codes}"] if any(codes) else []
        losses = losses_by_step(hosts.shared_history())
        found.wrong += differing({**alone, **losses}, alone)
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
    awaited(until, lambda: f"a step: {hosts.said(min(hosts.supervisors))[-300:]}", LIMIT)
    return time.monotonic() - began
