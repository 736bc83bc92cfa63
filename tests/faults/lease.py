"""Several runs want one directory of checkpoints: one has it at a time, and one that lost it changes nothing more."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ..conftest import SETTINGS
from ..processes import awaited
from .launched import Launched
from .row import Row, tried

DEADLINE = 180.0
REFUSAL = "saves its checkpoints there"
LOST = "has taken over these checkpoints"


class Place:
    """A directory of checkpoints, and the runs that want it. Each has a state directory of its own."""

    def __init__(self, folder: Path, launched: ExitStack) -> None:
        self.folder, self.checkpoints, self._launched = folder, folder / "checkpoints/shared", launched

    def start(self, home: str) -> Launched:
        return self._start(home, f"--checkpoint-dir={self.checkpoints.parent}", *SETTINGS)

    def _start(self, home: str, *options: str) -> Launched:
        run = Launched("shared", *options, "--checkpoint-every=20", XDG_STATE_HOME=str(self.folder / home))
        return self._launched.enter_context(run)

    def killed(self) -> Launched:
        """Returns a run whose engine was killed after it had saved."""
        first = self.start("first").more("CheckpointSaved", 2, seconds=DEADLINE)
        _end(first, signal.SIGKILL)
        return first

    def resume(self) -> None:
        """Resumes the killed run."""
        again = self._start("first", "--resume=shared").more("CheckpointSaved", 2, seconds=DEADLINE)
        assert again.events("Restored"), "did not resume"
        assert _end(again) == 0, again.said

    def compete(self) -> None:
        """Starts two other runs at once."""
        runs = [self.start("second"), self.start("third")]
        awaited(lambda: any(each.process.poll() is not None for each in runs), "a refusal", DEADLINE)
        (loser,) = [each for each in runs if each.process.poll() is not None]
        assert _is_refused(loser), loser.said
        (winner,) = [each for each in runs if each is not loser]
        assert _end(winner.more("CheckpointSaved", 2, seconds=DEADLINE)) == 0, winner.said


def run(times: int) -> Iterator[Row]:
    for name, story, seen in (
        ("a second run wants the checkpoints of a live one", _second, "refused, the first saves on"),
        (
            "the engine is stopped, and another run begins",
            _stopped,
            "taken over; the first reports it, and saves no more",
        ),
        ("SIGKILL, lock and lease made those of another boot, then `--resume`", _rebooted, "resumed"),
        ("SIGKILL, then two runs begin together", _killed_twice, "one trains, one is refused"),
    ):
        yield tried(name, times, partial(_told, story, seen))


def _told(story: Callable[[Place], None], seen: str) -> str:
    with ExitStack() as launched:
        place = Place(Path(tempfile.mkdtemp(dir=Path.cwd())), launched)
        story(place)
        names = [path.name for path in place.checkpoints.iterdir()]
        assert not [name for name in names if name[0].isdigit() and "." in name], f"set aside: {names}"
    return seen


def _end(run: Launched, number: signal.Signals = signal.SIGTERM) -> int:
    if run.process.poll() is None:
        os.kill(run.engine, number)
    return run.process.wait(DEADLINE)


def _is_refused(run: Launched) -> bool:
    return run.process.poll() == 2 and REFUSAL in run.said


def _second(place: Place) -> None:
    first = place.start("first").more("CheckpointSaved", 2, seconds=DEADLINE)
    second = place.start("second")
    second.process.wait(DEADLINE)
    assert _is_refused(second), second.said
    assert not list((place.folder / "second/shardtui/runs").iterdir()), "the refused run left its directory"
    first.more("CheckpointSaved", 2, seconds=DEADLINE)
    assert _end(first) == 0, first.said


def _stopped(place: Place) -> None:
    first = place.start("first").more("CheckpointSaved", 2, seconds=DEADLINE)
    os.kill(first.engine, signal.SIGSTOP)
    second = place.start("second").more("CheckpointSaved", 2, seconds=DEADLINE)
    before = len(first.events("CheckpointSaved"))
    os.kill(first.engine, signal.SIGCONT)
    awaited(lambda: LOST in str(first.events("CheckpointFailed")), lambda: first.said, DEADLINE)
    second.more("CheckpointSaved", 2, seconds=DEADLINE)
    known = len(first.events("CheckpointSaved"))
    # one was committed, and not yet reported, when it was stopped
    assert known <= before + 1, "saved without the lease"
    assert _end(first) == 1
    assert len(first.events("CheckpointSaved")) == known
    assert _end(second) == 0, second.said


def _rebooted(place: Place) -> None:
    """The lock and the lease become those of an earlier boot, and the killed engine's process id this one's."""
    engine, boot = place.killed().engine, Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for path in (place.folder / "first/shardtui/runs/shared/lock", place.checkpoints / "lease.json"):
        text = path.read_text()
        assert f"{engine} {boot}" in text, text
        path.write_text(text.replace(f"{engine} {boot}", f"{os.getpid()} {boot[::-1]}"))
    place.resume()


def _killed_twice(place: Place) -> None:
    place.killed()
    place.compete()
