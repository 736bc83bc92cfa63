"""Opens of a run's checkpoints fail or are slow: nothing is renamed, no run begins anew, and once the storage works the
run resumes from its newest checkpoint."""

import errno
import shutil
from collections.abc import Iterator
from functools import partial

from shardtui.engine.wire import run_directory

from ..conftest import SETTINGS
from .launched import Finished, failing_calls, printed, shardtui
from .row import Row, tried

ERRORS = ("ESTALE", "EIO", "ETIMEDOUT", "EACCES")
STEP = 6
"""Step of the newest checkpoint."""
PASSING = 2
"""Opens that fail if the storage recovers."""
DELAY = 200_000
"""Microseconds that each open takes on a slow storage."""


def run(times: int) -> Iterator[Row]:
    """Tries `times` errors in each place."""
    yield from Storage().rows(times)


class Storage:
    def __init__(self) -> None:
        self._library = failing_calls()
        trained = shardtui("train", "--run=storage", f"--steps={STEP}", "--checkpoint-every=2", *SETTINGS)
        assert trained.returncode == 0, trained.stderr
        self._run = run_directory.find("storage").path
        self._folder = self._run / "checkpoints"
        self._saved = self._run.with_name("storage.saved")
        shutil.copytree(self._run, self._saved)
        arrays = self._folder / str(STEP) / "arrays"
        files = sum(path.is_file() for path in arrays.rglob("*"))
        self._places = {
            "the whole directory": {"FAULT_UNDER": str(self._folder)},
            "the manifests": {"FAULT_UNDER": "/checkpoint.json"},
            "the arrays' files": {"FAULT_UNDER": str(arrays)},
            "the arrays' files, after their check": {"FAULT_UNDER": str(arrays), "FAULT_AFTER": str(2 * files)},
        }

    def rows(self, times: int) -> Iterator[Row]:
        for number, (place, fault) in enumerate(self._places.items()):
            errors = [ERRORS[(number + more) % len(ERRORS)] for more in range(times)]
            faults = iter([fault | {"FAULT_ERRNO": str(getattr(errno, error))} for error in errors])
            yield tried(f"{', '.join(errors)}: {place}", times, lambda faults=faults: self._refused(next(faults)))
        passing = {"FAULT_ERRNO": str(errno.ESTALE), "FAULT_TIMES": str(PASSING)}
        places = iter(list(self._places.values())[:3])
        yield tried("ESTALE that passes", 3, lambda: self._resumed(next(places) | passing))
        slow = {"FAULT_UNDER": str(self._folder), "FAULT_DELAY": str(DELAY)}
        yield tried("each open takes 0.2 s", 1, partial(self._resumed, slow))

    def _refused(self, fault: dict[str, str]) -> str:
        """Resumes and verifies with the fault, then without."""
        before = self._names()
        result = self._resume(fault)
        is_read_by_orbax = "FAULT_AFTER" in fault  # which has texts of its own, and `verify` reads less often
        says_why = is_read_by_orbax or "cannot be read" in result.stderr
        is_refused = result.returncode == 1 and says_why and "start a new run" not in result.stderr
        assert is_refused, f"train: exit {result.returncode}: {result.stderr}"
        report = shardtui("verify", "storage", **self._library, **fault)
        assert report.returncode or is_read_by_orbax, f"verify: exit 0: {report.stdout}"
        assert self._names() == before, f"{before} became {self._names()}"
        self._resumed({})
        return "exit 1, nothing renamed"

    def _resumed(self, fault: dict[str, str]) -> str:
        result = self._resume(fault)
        restored = [event["step"] for event in printed(result, "Restored")]
        aside = [name for name in self._names() if "." in name and name[0].isdigit()]
        shutil.rmtree(self._run)
        shutil.copytree(self._saved, self._run)
        found = (result.returncode, restored, aside)
        assert found == (0, [STEP], []), f"exit, restored, set aside: {found}: {result.stderr[-500:]}"
        return f"resumed from step {STEP}"

    def _resume(self, fault: dict[str, str]) -> Finished:
        """With `fault` if there is one."""
        environment = self._library | fault if fault else {}
        return shardtui("train", "--resume=storage", f"--steps={STEP + 1}", "--json", **environment)

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir())
