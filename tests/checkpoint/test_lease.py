"""The lease of a directory of checkpoints: one holder at a time, also when many want it, and none that lost it acts."""

import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from etils import epath
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint import lease
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.checkpoint.lease import Lease, Record
from shardtui.engine.checkpoint.owned_directory import OwnedDirectory
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.outcomes import Failure

TAKERS = 8


New = Callable[[float], Lease]


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[New]:
    """Makes leases on one directory, which beat faster than those of an engine and are stale after some seconds."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.02)
    made: list[Lease] = []

    def make(stale_after: float) -> Lease:
        monkeypatch.setattr(lease, "STALE_SECONDS", stale_after)
        made.append(Lease(epath.Path(tmp_path)))
        return made[-1]

    yield make
    for each in made:
        each.release()


def plant(folder: Path, token: str, process: str = "") -> None:
    """Replaces the file as another engine would."""
    (folder / "new").write_bytes(msgspec.json.encode(Record(token=token, process=process)))
    (folder / "new").replace(folder / lease.FILE_NAME)


def test_a_second_run_is_refused_until_the_first_gives_the_lease_back(new: New) -> None:
    first, second = new(3600), new(3600)
    first.take(UserError)
    with pytest.raises(UserError, match=r"process \d+ on .+ saves its checkpoints there, and beat less than 1 s ago"):
        second.take(UserError)
    first.check()
    first.release()
    second.take(UserError)
    second.check()
    with pytest.raises(Failure):
        first.check()


def test_a_holder_that_does_not_beat_loses_the_lease_and_acts_no_more(tmp_path: Path, new: New) -> None:
    (tmp_path / "4").mkdir()
    second = new(0.3)
    first = OwnedDirectory.take(CheckpointDirectory(epath.Path(tmp_path)), Cluster(), UserError)
    assert first.lease
    first.lease._ended.set()  # as if its process was stopped
    first.unfinished(6).mkdir()
    second.take(UserError)
    for change in (
        lambda: first.commit(6),
        lambda: first.set_aside(4, "damaged"),
        lambda: first.delete(4),
        first.clear,
    ):
        with pytest.raises(Failure, match=r"process \d+ on .+ has taken over these checkpoints"):
            change()
    first.lease.release()
    second.check()
    assert {path.name for path in tmp_path.iterdir()} == {"4", first.unfinished(6).name, lease.FILE_NAME}


@pytest.mark.parametrize("is_stale", [True, False])
def test_one_of_many_takers_gets_a_stale_lease_or_a_new_one(tmp_path: Path, new: New, is_stale: bool) -> None:
    if is_stale:
        plant(tmp_path, "gone")
    takers = [new(0.3) for _ in range(TAKERS)]
    together = threading.Barrier(TAKERS)

    def take(taker: Lease) -> bool:
        together.wait()
        with contextlib.suppress(UserError):
            taker.take(UserError)
            return True
        return False

    with ThreadPoolExecutor(TAKERS) as pool:
        (holder,) = itertools.compress(takers, pool.map(take, takers))
    holder.check()


def test_a_lease_whose_process_has_ended_is_taken_at_once(tmp_path: Path, new: New) -> None:
    code = "from shardtui.engine.wire import lock; print(lock.own_text())"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as ended:
        assert ended.stdout
        plant(tmp_path, "gone", ended.stdout.read().strip())
        new(3600).take(UserError)  # also while it is a zombie


def test_a_damaged_lease_is_taken_once_it_is_stale(tmp_path: Path, new: New) -> None:
    (tmp_path / lease.FILE_NAME).write_bytes(b"\0")
    new(0.1).take(UserError)


def test_a_holder_takes_the_lease_again_if_it_was_deleted(tmp_path: Path, new: New) -> None:
    first = new(0.1)
    first.take(UserError)
    (tmp_path / lease.FILE_NAME).unlink()
    first.check()
    plant(tmp_path, "other")
    for _ in range(2):  # the second time after the other one was deleted, too
        with pytest.raises(Failure, match="has taken over"):
            first.check()
        (tmp_path / lease.FILE_NAME).unlink(missing_ok=True)
