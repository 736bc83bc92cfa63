"""Do the tests find faults? `python tests/long/planted.py [NAME_PART …] [--near-only]`; exit 1 if one is not found.

Each fault of tests/long/planted_faults.toml, among them mended ones of CHANGELOG.md, is put into a copy of the tree,
and the tests run there: first those that are near it, then, if these pass, all that `python -m pytest` runs. It takes
five to ten minutes on two cores with `--near-only`; for each fault that the near tests miss, a whole run more.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROOMS = ("engine", "presets", "schemas", "tui")
"""Folders that are packages of `shardtui`."""
NEAR, WHOLE = ("-x", "-q", "-rfE", "-n1"), ("-x", "-q", "-rfE")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?:@[\w.]+)?(?: - .*)?$", re.MULTILINE)
"""A line of pytest's short summary; pytest-xdist adds the group of the test."""


class Fault(NamedTuple):
    """One mistake, as tests/long/planted_faults.toml describes it."""

    name: str
    file: str
    old: str
    new: str
    near: list[str]


FAULTS = [Fault(**each) for each in tomllib.loads((ROOT / "tests/long/planted_faults.toml").read_text())["faults"]]


class CannotTell(Exception):
    """The tests did not run as they should, which says nothing about the fault."""


def copied(root: Path) -> None:
    """Copies what git has of this checkout, and what it would add."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (source := ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name, follow_symlinks=False)
    (root / "import/shardtui").mkdir(parents=True)
    for room in ROOMS:
        (root / "import/shardtui" / room).symlink_to(root / room)


def failing(root: Path, *arguments: str) -> str | None:
    """Runs tests of a copy and returns the first that fails; None if all pass. Raises CannotTell."""
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace")
    if not done.returncode:
        return None
    failed = FAILED.search(done.stdout.rpartition("short test summary info")[2])
    if not failed:
        raise CannotTell(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return failed[1]


def found_by(root: Path, fault: Fault, near_only: bool) -> str | None:
    """Puts the fault in, and runs the tests."""
    path = root / fault.file
    text, status = path.read_text(), path.stat()
    if (count := text.count(fault.old)) != 1:
        raise CannotTell(f"{fault.file} has the text {count} times that the fault changes")
    path.write_text(text.replace(fault.old, fault.new))
    try:
        return failing(root, *NEAR, *near(fault)) or (None if near_only else failing(root, *WHOLE))
    finally:
        path.write_text(text)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # so that modules are compiled again only once


def near(*faults: Fault) -> list[str]:
    return [f"tests/{file}" for file in dict.fromkeys(file for fault in faults for file in fault.near)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME_PART", help="part of the name or of the file of a fault")
    parser.add_argument("--near-only", action="store_true", help="never run all tests")
    options = parser.parse_args()
    parts = [part.lower() for part in options.names] or [""]
    chosen = [each for each in FAULTS if any(part in f"{each.name} {each.file}".lower() for part in parts)]
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder).resolve() / "checkout"
        copied(root)
        # `shardtui` is a namespace package: the first folder that has a part of it provides that part
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "import"), os.environ.get("PYTHONPATH", "")])
        code = f"import shardtui.engine as room; assert room.__file__.startswith({str(root)!r}), room.__file__"
        subprocess.run([sys.executable, "-P", "-c", code], cwd="/", check=True)
        if found := failing(root, *NEAR, *near(*chosen)):
            raise SystemExit(f"{found} fails without a fault")
        for fault in chosen:
            began = time.monotonic()
            try:
                found = found_by(root, fault, options.near_only)
                outcome = f"found by {found}" if found else "NOT FOUND"
            except CannotTell as error:
                found, outcome = None, f"CANNOT TELL: {error}"
            missed += [] if found else [fault.name]
            print(f"{fault.name}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"\nfound {len(chosen) - len(missed)} of {len(chosen)}", *(f"not found: {name}" for name in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
