"""Opens of a run's checkpoints fail or are slow: nothing is renamed, no run begins anew, and once the storage works the
run resumes from its newest checkpoint."""

import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..conftest import SETTINGS, SHARDTUI
from .row import Row

ERRORS = ("ESTALE", "EIO", "ETIMEDOUT", "EACCES")
STEP = 6
"""Step of the newest checkpoint."""
PASSING = 2
"""Opens that fail if the storage recovers."""
DELAY = 200_000
"""Microseconds that each open takes on a slow storage."""


def run(times: int) -> Iterator[Row]:
    """Tries `times` errors in each place."""
    if shutil.which("gcc") is None:
        yield Row("opens that fail", 0, 0, "not run: no gcc")
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from Storage(compiled("failing_storage", Path(folder))).rows(times)


def compiled(name: str, folder: Path) -> str:
    """Compiles a library of this folder, for `LD_PRELOAD`."""
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return str(library)


class Storage:
    def __init__(self, library: str) -> None:
        command = ["train", "--run=storage", f"--steps={STEP}", "--checkpoint-every=2", *SETTINGS]
        subprocess.run([*SHARDTUI, *command], check=True, capture_output=True)
        self._library = library
        self._run = Path(os.environ["XDG_STATE_HOME"], "shardtui/runs/storage")
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
            faults = [fault | {"FAULT_ERRNO": str(getattr(errno, error))} for error in errors]
            yield self._row(
                f"{', '.join(errors)}: {place}", [self._refused(each) for each in faults], "exit 1, nothing renamed"
            )
        whole = list(self._places.values())[:3]
        passing = [fault | {"FAULT_ERRNO": str(errno.ESTALE), "FAULT_TIMES": str(PASSING)} for fault in whole]
        yield self._row("ESTALE that passes", [self._resumed(each) for each in passing], f"resumed from step {STEP}")
        slow = {"FAULT_UNDER": str(self._folder), "FAULT_DELAY": str(DELAY)}
        yield self._row("each open takes 0.2 s", [self._resumed(slow)], f"resumed from step {STEP}")

    def _row(self, injected: str, wrong: list[str], seen: str) -> Row:
        problems = [problem for problem in wrong if problem]
        return Row(injected, len(wrong), len(wrong) - len(problems), "; ".join(problems[:2]) or seen)

    def _refused(self, fault: dict[str, str]) -> str:
        """Resumes and verifies with the fault, then without; returns what was wrong."""
        before = self._names()
        result = self._shardtui(fault, "train", "--resume=storage", f"--steps={STEP + 1}", "--json")
        is_read_by_orbax = "FAULT_AFTER" in fault  # which has texts of its own, and `verify` reads less often
        says_why = is_read_by_orbax or "cannot be read" in result.stderr
        if result.returncode != 1 or not says_why or "start a new run" in result.stderr:
            return f"train: exit {result.returncode}: {result.stderr}"
        report = self._shardtui(fault, "verify", "storage")
        if not report.returncode and not is_read_by_orbax:
            return f"verify: exit 0: {report.stdout}"
        if self._names() != before:
            return f"{before} became {self._names()}"
        return self._resumed({})

    def _resumed(self, fault: dict[str, str]) -> str:
        result = self._shardtui(fault, "train", "--resume=storage", f"--steps={STEP + 1}", "--json")
        events: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
        restored = [event["step"] for event in events if event["type"] == "Restored"]
        aside = [name for name in self._names() if "." in name and name[0].isdigit()]
        shutil.rmtree(self._run)
        shutil.copytree(self._saved, self._run)
        good = result.returncode == 0 and restored == [STEP] and not aside
        return (
            "" if good else f"exit {result.returncode}: restored {restored}, set aside {aside}: {result.stderr[-500:]}"
        )

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir())

    def _shardtui(self, fault: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | fault | ({"LD_PRELOAD": self._library} if fault else {})
        return subprocess.run([*SHARDTUI, *arguments], capture_output=True, text=True, check=False, env=environment)
