"""Several runs want one directory of checkpoints: one has it at a time, and one that lost it changes nothing more."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from ..conftest import SETTINGS, SHARDTUI
from ..processes import awaited
from .row import Row, tried

STEPS = 1_000_000
DEADLINE = 180.0
REFUSAL = "saves its checkpoints there"
LOST = "has taken over these checkpoints"


class Launched:
    """A run of `train` with a state directory of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        home.mkdir(exist_ok=True)
        self._output, self.problems = home / f"{time.monotonic_ns()}.out", home / f"{time.monotonic_ns()}.err"
        with self._output.open("w") as output, self.problems.open("w") as problems:
            command = [*SHARDTUI, "train", "--json", f"--steps={STEPS}", *arguments]
            environment = os.environ | {"XDG_STATE_HOME": str(home)}
            self.process = subprocess.Popen(command, stdout=output, stderr=problems, env=environment)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        lines = self._output.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["type"] in kinds]

    @property
    def engine(self) -> int:
        return self.events("EngineStarted")[-1]["pid"]

    @property
    def is_refused(self) -> bool:
        return self.process.poll() == 2 and REFUSAL in self.problems.read_text()

    def saves(self, more: int = 2) -> "Launched":
        """Waits for more checkpoints."""
        before = len(self.events("CheckpointSaved"))
        awaited(lambda: len(self.events("CheckpointSaved")) >= before + more, self.problems.read_text, DEADLINE)
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            os.kill(self.engine, number)
        return self.process.wait(timeout=DEADLINE)


class Place:
    """A directory of checkpoints, and the runs that want it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._checkpoints = folder, folder / "checkpoints/shared"
        self._launched: list[Launched] = []

    def start(self, home: str) -> Launched:
        return self._start(home, "--run=shared", f"--checkpoint-dir={self._checkpoints.parent}", *SETTINGS)

    def resume(self, home: str) -> Launched:
        return self._start(home, "--resume=shared")

    def _start(self, home: str, *arguments: str) -> Launched:
        self._launched.append(Launched(self._folder / home, *arguments, "--checkpoint-every=20"))
        return self._launched[-1]

    def reboot(self, home: str, engine: int) -> None:
        """Makes the lock and the lease of a killed engine those of an earlier boot, and its process id this one's."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for path in (self._folder / home / "shardtui/runs/shared/lock", self._checkpoints / "lease.json"):
            text = path.read_text()
            assert f"{engine} {boot}" in text, text
            path.write_text(text.replace(f"{engine} {boot}", f"{os.getpid()} {boot[::-1]}"))

    def check(self) -> None:
        """Asserts that no checkpoint was set aside."""
        names = [path.name for path in self._checkpoints.iterdir()]
        assert not [name for name in names if name[0].isdigit() and "." in name], names

    def close(self) -> None:
        for each in self._launched:
            if each.process.poll() is None and each.events("EngineStarted"):
                os.kill(each.engine, signal.SIGKILL)
            each.process.kill()
            each.process.wait()


def run(times: int) -> Iterator[Row]:
    for name, story, seen in (
        ("a second run wants the checkpoints of a live one", _second, "refused, the first saves on"),
        (
            "the engine is stopped, and another run begins",
            _stopped,
            "taken over; the first reports it, and saves no more",
        ),
        ("SIGKILL, then `--resume`", _killed, "resumed"),
        ("SIGKILL, lock and lease made those of another boot, then `--resume`", _rebooted, "resumed"),
        ("two runs begin together", _together, "one trains, one is refused"),
        ("SIGKILL, then two runs begin together", _killed_twice, "one trains, one is refused"),
    ):
        yield tried(name, times, partial(_told, story, seen))


def _told(story: Callable[[Place], None], seen: str) -> str:
    with tempfile.TemporaryDirectory() as folder, closing(Place(Path(folder))) as place:
        story(place)
        place.check()
    return seen


def _second(place: Place) -> None:
    first = place.start("first").saves()
    second = place.start("second")
    second.process.wait(timeout=DEADLINE)
    assert second.is_refused, second.problems.read_text()
    assert not list((second.problems.parent / "shardtui/runs").iterdir()), "the refused run left its directory"
    first.saves()
    assert first.end() == 0, first.problems.read_text()


def _stopped(place: Place) -> None:
    first = place.start("first").saves()
    os.kill(first.engine, signal.SIGSTOP)
    second = place.start("second").saves()
    before = len(first.events("CheckpointSaved"))
    os.kill(first.engine, signal.SIGCONT)
    awaited(lambda: LOST in str(first.events("CheckpointFailed")), first.problems.read_text, DEADLINE)
    second.saves()
    known = len(first.events("CheckpointSaved"))
    assert known <= before + 1, (
        "saved without the lease"
    )  # one was committed, and not yet reported, when it was stopped
    assert first.end() == 1
    assert len(first.events("CheckpointSaved")) == known
    assert second.end() == 0, second.problems.read_text()


def _killed(place: Place) -> None:
    place.start("first").saves().end(signal.SIGKILL)
    _resume(place)


def _rebooted(place: Place) -> None:
    first = place.start("first").saves()
    first.end(signal.SIGKILL)
    place.reboot("first", first.engine)
    _resume(place)


def _resume(place: Place) -> None:
    again = place.resume("first").saves()
    assert again.events("Restored"), "did not resume"
    assert again.end() == 0, again.problems.read_text()


def _together(place: Place) -> None:
    _compete(place)


def _killed_twice(place: Place) -> None:
    place.start("first").saves().end(signal.SIGKILL)
    _compete(place)


def _compete(place: Place) -> None:
    runs = [place.start("second"), place.start("third")]
    awaited(lambda: any(each.process.poll() is not None for each in runs), "a refusal", DEADLINE)
    (loser,) = [each for each in runs if each.process.poll() is not None]
    assert loser.is_refused, loser.problems.read_text()
    (winner,) = [each for each in runs if each is not loser]
    assert winner.saves().end() == 0, winner.problems.read_text()
