"""The rendezvous of supervisors, and who trains next: decided once, by whoever is left."""

import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.attempt import Supervision
from shardtui.engine.supervision import rendezvous as rendezvous_module
from shardtui.engine.supervision.boundary import Boundary
from shardtui.engine.supervision.election import Election
from shardtui.engine.supervision.engine import SAME_FAULTS
from shardtui.engine.supervision.rendezvous import LOST_SECONDS, MAX_FILE_BYTES, Decision, Heartbeat, Rendezvous
from shardtui.engine.wire.ending import Ending

from ..processes import awaited

KILLED = Ending(kind="killed", problems=["its process was ended by SIGKILL"])
LOST = Ending(kind="lost")


def heartbeat(rank: int, ready_for: int = 1, ending: Ending | None = None) -> Heartbeat:
    return Heartbeat(
        rank=rank, token=f"token-{rank}", host="h", address="localhost", ready_for=ready_for, ending=ending
    )


def rendezvous(folder: Path, rank: int = 0) -> Rendezvous:
    return Rendezvous(folder, heartbeat(rank), Boundary(lambda: 0).note)


def write(folder: Path, found: Heartbeat) -> None:
    (folder / f"host-{found.rank}.json").write_bytes(msgspec.json.encode(found))


@pytest.mark.parametrize("seconds", [0.0, -600.0, 600.0])
def test_a_supervisor_is_present_once_its_beats_change(tmp_path: Path, seconds: float) -> None:
    """A file that an ended supervisor left does not count. Clocks that differ by minutes do not matter, nor does that
    of the file server, which gives files their times."""
    own = rendezvous(tmp_path)
    for beat, expected in ((0, [0]), (0, [0]), (1, [0, 1])):
        write(tmp_path, msgspec.structs.replace(heartbeat(1), beat=beat))
        os.utime(tmp_path / "host-1.json", (time.time() + seconds,) * 2)
        assert list(own.present()) == expected


def test_an_attempt_is_decided_once(tmp_path: Path) -> None:
    first, second = rendezvous(tmp_path), rendezvous(tmp_path, 1)
    assert (first.newest(), first.decision(1)) == (0, None)
    first.decide(Decision(number=1, coordinator="a:1"))
    second.decide(Decision(number=1, coordinator="b:1"))
    found = second.decision(1)
    assert found and found.coordinator == "a:1"
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_storage_that_is_gone_is_reported_once_and_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "supervisors"
    own = rendezvous(folder)
    shutil.rmtree(folder)
    own.update(ready_for=2)
    own.update(ready_for=3)
    with pytest.raises(OSError):
        own.decide(Decision(number=1))
    assert capsys.readouterr().err.count("other hosts do not see this one") == 1
    folder.mkdir()
    own.update(ready_for=4)
    assert msgspec.json.decode((folder / "host-0.json").read_bytes(), type=Heartbeat).ready_for == 4


def test_what_is_no_file_of_a_supervisor_is_reported_once_and_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = rendezvous(tmp_path)
    os.mkfifo(tmp_path / "host-1.json")
    (tmp_path / "host-2.json").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    (tmp_path / "host-3.json").write_text("[" * 100_000)
    (tmp_path / "attempt-x").touch()
    for beat in range(3):
        write(tmp_path, msgspec.structs.replace(heartbeat(4), beat=beat))
        found = own.present()
    assert (list(found), own.newest()) == ([0, 4], 0)
    said = capsys.readouterr().err
    whys = [
        "host-1.json: cannot be read: a FIFO",
        f"host-2.json: cannot be read: {MAX_FILE_BYTES + 1:,} bytes",
        "host-3.json: not written by a supervisor",
    ]
    assert [said.count(why) for why in whys] == [1, 1, 1]


def test_nobody_is_silent_while_the_folder_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, now = tmp_path / "supervisors", 0.0
    own = rendezvous(folder)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for beat in range(2):
        write(folder, msgspec.structs.replace(heartbeat(1), beat=beat))
        own.present()
    folder.rename(tmp_path / "away")
    now += 100
    with pytest.raises(FileNotFoundError):
        own.present()
    (tmp_path / "away").rename(folder)
    assert list(own.present()) == [0, 1]
    now += LOST_SECONDS
    assert list(own.present()) == [0]


def test_of_two_supervisors_of_one_number_the_one_that_began_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_module, "BEAT_SECONDS", 0.2)
    first = rendezvous(tmp_path)
    first.update(ready_for=1)
    own = msgspec.structs.replace(heartbeat(0), token="other")
    with pytest.raises(UserError, match="--process-id 0: the supervisor of h has this number already"):
        Rendezvous(tmp_path, own, Boundary(lambda: 0).note)
    first.refuse_rival()


class Hosts:
    """Three supervisors, of which those are present whose engines end as a test says."""

    def __init__(self, folder: Path, port: int = 9876, **supervision: float) -> None:
        self.rendezvous = rendezvous(folder)
        how = Supervision(**supervision)  # type: ignore[arg-type]
        self.election = Election(self.rendezvous, f"localhost:{port}", 3, how, lambda: self.step)
        self._folder, self._beat = folder, 0
        self.number = self.step = 0

    def decide(self, *endings: Ending | None, waited: float = 0.0) -> Decision | None:
        """Returns what is decided next if the first hosts, as many as there are `endings`, are present."""
        return self.decide_as(dict(enumerate(endings)), waited)

    def decide_as(self, endings: Mapping[int, Ending | None], waited: float = 0.0) -> Decision | None:
        found = {rank: heartbeat(rank, self.number + 1, ending) for rank, ending in endings.items()}
        for _ in range(2):
            self._beat += 1
            for other in found.values():
                write(self._folder, msgspec.structs.replace(other, beat=self._beat))
            self.rendezvous.present()
        self.election.elect(self.number + 1, found, waited)
        if decision := self.rendezvous.decision(self.number + 1):
            self.number += 1
        return decision


def begun(folder: Path, **supervision: float) -> Hosts:
    hosts = Hosts(folder, **supervision)
    hosts.decide(None, None, None)
    return hosts


WRONG = Ending(kind="failed", problems=["device 9 differs"], wrong={1: [9]})
REFUSED = Ending(kind="refused", problems=["seed: 1 on process 1"])
UNFIT = Ending(kind="refused", problems=["no preset fits"], fits=2)
STOPPED = Ending(kind="stopped")
ALL = [0, 1, 2]


def test_an_attempt_waits_for_all_hosts_first(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, min_processes=2)
    assert hosts.decide(None, None, waited=59.0) is None
    found = hosts.decide(None, None, None, waited=59.0)
    assert found and list(found.members) == ALL


def test_a_host_that_is_lost_while_an_attempt_is_decided_is_a_member(tmp_path: Path) -> None:
    """The attempt then ends, as if it was lost a moment later."""
    hosts = Hosts(tmp_path)
    hosts.election.elect(1, {rank: heartbeat(rank) for rank in ALL}, waited=0.0)  # nobody beats any more
    found = hosts.rendezvous.decision(1)
    assert found and list(found.members) == ALL


def test_a_lost_host_is_left_behind_if_enough_are_left(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, min_processes=2)
    first, second = hosts.decide(None, None, None), hosts.decide(LOST, LOST)
    assert first and second
    assert (list(first.members), list(second.members)) == (ALL, [0, 1])
    assert second.lost and second.lost.process == 2
    assert "its supervisor has not answered for 10 s" in second.lost.why
    assert first.coordinator != second.coordinator, "a process that is left over does not reach the next attempt"


def test_a_lost_host_is_waited_for(tmp_path: Path) -> None:
    hosts = begun(tmp_path / "enough", wait_seconds=100.0, min_processes=2)
    assert hosts.decide(LOST, LOST, waited=99.0) is None
    found = hosts.decide(LOST, LOST, waited=101.0)
    assert found and list(found.members) == [0, 1]
    assert begun(tmp_path / "ever").decide(LOST, LOST, waited=1e6) is None
    found = begun(tmp_path / "limited", wait_seconds=10.0).decide(LOST, LOST, waited=11.0)
    assert found and "1 of 3 hosts did not come within 11 s, and at least 3 must train" in found.problem


def test_a_lost_host_is_waited_for_also_if_another_one_is_left_out(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, wait_seconds=100.0, min_processes=1)
    first = hosts.decide(None, None, waited=61.0)
    assert first and list(first.members) == [0, 1]
    assert hosts.decide(WRONG, WRONG, waited=99.0) is None
    second = hosts.decide(WRONG, WRONG, waited=101.0)
    assert second and (list(second.members), second.left_out) == ([0], [1])


def test_attempts_from_the_highest_port_on_find_one(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, port=65535, wait_seconds=0.0)
    for _ in range(2):
        found = hosts.decide(None, None, None)
        assert found and found.coordinator == "localhost:65535"


@pytest.mark.parametrize(
    ("least", "times", "endings", "expected", "problem"),
    [
        (1, 1, [UNFIT] * 3, ([0, 1], [], [2]), ""),
        (3, 1, [REFUSED] * 3, ([], [], []), "seed: 1 on process 1"),  # it is not started again
        (2, SAME_FAULTS, [LOST, KILLED, LOST], ([0, 2], [1], []), ""),  # its process keeps ending
        (3, SAME_FAULTS, [WRONG] * 3, ([], [], []), ".*each time because: device 9 differs.*"),  # its host is needed
    ],
)
def test_a_host_is_left_out_or_spare_or_the_run_is_given_up(
    tmp_path: Path, least: int, times: int, endings: list[Ending], expected: tuple[list[int], ...], problem: str
) -> None:
    hosts = begun(tmp_path, min_processes=least)
    for _ in range(times - 1):
        again = hosts.decide(*endings)
        assert again and (list(again.members), again.left_out) == (ALL, [])
    found = hosts.decide(*endings)
    assert found and (list(found.members), found.left_out, found.spare) == expected
    assert re.fullmatch(problem, found.problem)


def test_a_host_with_a_wrong_device_is_left_out_at_once(tmp_path: Path) -> None:
    """Process 1 of the attempt is the host of rank 2 once rank 1 is gone."""
    hosts = begun(tmp_path, min_processes=1, restarts=1)
    first = hosts.decide(WRONG, WRONG, WRONG)
    assert first and (list(first.members), first.left_out) == ([0, 2], [1])
    assert first.lost and (first.lost.process, first.lost.why) == (1, "device 9 differs")
    second = hosts.decide_as({0: WRONG, 2: WRONG})
    assert second and (list(second.members), second.left_out, second.problem) == ([0], [2], "")


def test_a_host_that_comes_and_goes_reaches_the_limit_of_restarts(tmp_path: Path) -> None:
    hosts = begun(tmp_path, min_processes=2, restarts=2)
    for step in (1, 2):
        hosts.step = step
        lost = hosts.decide(LOST, LOST)
        assert lost and not lost.problem
        returned = hosts.decide(STOPPED, STOPPED, None)
        assert returned and (list(returned.members), returned.lost) == (ALL, None)
    found = hosts.decide(LOST, LOST)
    assert found and "restarted 2 times within an hour" in found.problem


def test_beats_go_on_by_themselves(tmp_path: Path) -> None:
    own = rendezvous(tmp_path)
    before = own.own.beat
    awaited(lambda: own.own.beat != before)
