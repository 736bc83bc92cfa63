"""Supervisors of several hosts: each host has its own run directory, and they share the checkpoints."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shardtui.engine.supervision.rendezvous import DECISION

from ..conftest import LEAST, PACED, SETTINGS
from ..processes import awaited
from ..simulated_hosts import Hosts, losses_by_step
from .test_hosts import named, train
from .test_supervision import losses

SHRINKING = ("--min-processes=1", "--preset=data2-model4")


@pytest.fixture
def hosts(home: Path) -> Iterator[Callable[..., Hosts]]:
    made: list[Hosts] = []

    def make(count: int, *options: str, **settings: Any) -> Hosts:
        made.append(Hosts(home, count, *options, **settings))
        for rank in range(count):
            made[-1].start(rank)
        return made[-1]

    yield make
    for supervisor in (supervisor for each in made for supervisor in each.supervisors.values()):
        supervisor.kill()
        supervisor.wait()


def attempts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["attempt"] for event in named(events, "EngineStarted")]


@pytest.mark.slow
def test_hosts_go_on_without_the_host_of_process_0(hosts: Callable[..., Hosts]) -> None:
    """The next host serves the run, with its history, and the mesh of eight devices shrinks to four."""
    run = hosts(2, *SHRINKING, "--checkpoint-every=10", "--steps=300")
    awaited(lambda: named(run.history(0), "CheckpointSaved"))
    run.kill(0)
    assert run.supervisors[1].wait(timeout=240) == 0, run.said(1)
    events = run.history(1)
    assert [(attempt["processes"], attempt["of"]) for attempt in attempts(events)] == [(2, 2), (1, 2)]
    assert attempts(events)[1]["lost"]["process"] == 0
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), "the history goes on"
    assert losses_by_step(events) == pytest.approx(losses(train(*SETTINGS, "--steps=300")), rel=1e-5)


@pytest.mark.slow
def test_a_host_that_returns_is_taken_in_after_the_next_checkpoint(hosts: Callable[..., Hosts]) -> None:
    """An engine that is killed is started again with all hosts; a host that is gone is left out until it returns."""
    run = hosts(2, *SHRINKING, "--checkpoint-every=20", "--steps=1000000")
    awaited(lambda: named(run.history(0), "CheckpointSaved"))
    ready = named(run.history(0), "EngineReady")[-1]
    os.kill(ready["hosts"][1]["pid"], signal.SIGKILL)
    awaited(lambda: attempt_with(run, number=2, processes=2))
    run.kill(1)
    awaited(lambda: attempt_with(run, number=3, processes=1))
    run.start(1)
    awaited(lambda: attempt_with(run, number=4, processes=2))
    shown_on = [run.folder / f"host-{rank}/shardtui/runs/big/shown-on.txt" for rank in (0, 1)]
    assert (shown_on[0].exists(), shown_on[1].read_text()) == (False, socket.gethostname())
    run.supervisors[0].send_signal(signal.SIGTERM)
    assert [run.supervisors[rank].wait(timeout=240) for rank in (0, 1)] == [0, 0], run.said(0) + run.said(1)
    events = run.history(0)
    assert [attempt["lost"] and attempt["lost"]["process"] for attempt in attempts(events)] == [None, 1, 1, None]
    assert "process 1 is back" in run.said(0)
    taken = [event["step"] for event in named(events, "Restored")][-1]
    stopped = [event["step"] for event in named(events, "EngineStopped")]
    assert taken == stopped[0], "no step was made again to take the host in"
    found = losses_by_step(events)
    alone = losses(train(*SETTINGS, "--steps=60"))
    assert list(alone) == [*range(1, 61)]
    assert {step: found[step] for step in alone} == pytest.approx(alone, rel=1e-5)


def attempt_with(run: Hosts, number: int, processes: int) -> bool:
    events = run.history(0)
    for event in reversed(events):
        if event["type"] == "EngineStarted":
            assert event["attempt"]["number"] < number or event["attempt"]["processes"] == processes, run.said(0)
            return event["attempt"]["number"] == number and bool(named(events[events.index(event) :], "StepsDone"))
    return False


def test_two_supervisors_of_one_host_number_are_refused(hosts: Callable[..., Hosts]) -> None:
    run = hosts(2, settings=LEAST)
    first = run.supervisors[1]
    awaited(lambda: (run.folder / "shared/big/supervisors/host-1.json").exists())
    run.start(1, home=2)
    assert run.supervisors[1].wait(timeout=240) == 2
    assert "--process-id 1: the supervisor of" in run.said(1)
    first.kill()


@pytest.mark.slow
def test_two_of_three_hosts_go_on_where_no_preset_fits_all(hosts: Callable[..., Hosts]) -> None:
    """The batch of 8 does not divide by the six devices of three hosts: after that attempt is refused, two go on."""
    run = hosts(4, *SHRINKING, "--checkpoint-every=10", "--steps=1000000", settings=PACED)
    awaited(lambda: named(run.history(0), "CheckpointSaved"))
    run.kill(3)
    awaited(lambda: attempt_with(run, number=3, processes=2))


@pytest.mark.slow
def test_a_supervisor_says_for_whom_it_waits_and_answers_signals(home: Path) -> None:
    run = Hosts(home, 2)
    run.start(0)
    awaited(lambda: "attempt 1 waits: process 1 is not there" in run.said(0))  # after WAITING_SECONDS, 20 s
    run.supervisors[0].send_signal(signal.SIGTERM)
    assert run.supervisors[0].wait(timeout=10) == 1, run.said(0)


def test_what_another_host_has_written_is_printed_as_text(home: Path) -> None:
    """A supervisor of two waits for the other host. What it finds in the folder instead gives up the run."""
    run = Hosts(home, 2)
    run.start(0)
    folder = home / "shared/big/supervisors"
    awaited(lambda: any('"ready_for":1' in path.read_text() for path in folder.glob("host-0.json")))
    problem = "\x1b]52;c;b3duZWQ=\x07\x9b31m\u202e\x00\n"
    planted = folder / "planted"
    planted.mkdir()
    (planted / DECISION).write_text(json.dumps({"number": 1, "problem": problem}))
    planted.rename(folder / "attempt-1")
    assert run.supervisors[0].wait(timeout=240) == 1, run.said(0)
    assert "shardtui: \\x1b]52;c;b3duZWQ=\\x07\\x9b31m\\u202e\\x00" in run.said(0)
    assert all(line.isprintable() for line in run.said(0).split("\n"))
