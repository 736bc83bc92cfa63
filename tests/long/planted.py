"""Do the tests find faults? `python tests/long/planted.py [NAME_PART …] [--near-only]`; exit 1 if one is not found.

Each fault of tests/long/planted_faults.py, among them mended ones of CHANGELOG.md, is put into a copy of the checkout,
and the tests run there: first those that are near it, then, if these pass, all that `python -m pytest` runs. It takes
five to ten minutes on two cores with `--near-only`; for each fault that the near tests miss, a whole run more.

To compare two suites, let each look for the same faults: `--checkout FOLDER` takes code and tests of another checkout.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.long.planted_faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
ROOMS = ("engine", "presets", "schemas", "tui")
"""Folders that are packages of `shardtui`."""
NEAR = ("-x", "-q", "-rfE", "-n1")
WHOLE = ("-x", "-q", "-rfE")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?:@[\w.]+)?(?: - .*)?$", re.MULTILINE)
"""A line of pytest's short summary; pytest-xdist adds the group of the test."""
FOUND, FINE = 1, 0
"""Exit codes of pytest; all others are errors, but for the one below."""
STOPPED, STOPS = 2, re.compile(r"^!+ xdist\.dsession\.Interrupted: stopping after 1 failures !+$", re.MULTILINE)
"""With workers, `-x` ends with the code of an interrupt, and this line."""
LIMIT_SECONDS = 3600.0
"""A run of tests that takes longer is ended, which is an error."""


class CannotTell(Exception):
    """The tests did not run as they should, which says nothing about the fault."""


@dataclass(frozen=True)
class Copy:
    """A copy of a checkout, from which tests and the processes that they start import the product."""

    root: Path
    pytest: Sequence[str]
    """More arguments of every run."""

    @property
    def environment(self) -> dict[str, str]:
        """`shardtui` is a namespace package: the first folder of `PYTHONPATH` that has a part of it provides that part,
        before any that is installed."""
        paths = [str(self.root / "import"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def check_imports(self) -> None:
        """Raises CannotTell if other files than those of the copy would be tested."""
        code = "import shardtui.{0} as room; print(room.__file__)"
        for room in ROOMS:
            command = [sys.executable, "-P", "-c", code.format(room)]
            output = subprocess.check_output(command, env=self.environment, cwd="/", text=True)
            if Path(output.strip()).resolve() != self.root / room / "__init__.py":
                raise CannotTell(f"shardtui.{room} is imported from {output.strip()}, not from the copy")

    def failing(self, *arguments: str) -> str | None:
        """Runs tests and returns the first that fails; None if all pass. Raises CannotTell."""
        command = [sys.executable, "-m", "pytest", *arguments, *self.pytest]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise CannotTell(f"no end after {LIMIT_SECONDS:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        failed = FAILED.search(output.rpartition("short test summary info")[2])
        has_found = process.returncode == FOUND or (process.returncode == STOPPED and STOPS.search(output))
        if process.returncode != FINE and not (has_found and failed):
            raise CannotTell(f"pytest ended with {process.returncode}:\n{output[-2000:]}")
        return failed[1] if has_found and failed else None

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Puts the fault in. Modules are compiled again: times of the file are those from before only without it."""
        path = self.root / fault.file
        text, status = path.read_text(), path.stat()
        if (count := text.count(fault.old)) != 1:
            raise CannotTell(f"{fault.file} has the text {count} times that the fault changes")
        path.write_text(text.replace(fault.old, fault.new))
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextmanager
def copied(checkout: Path, pytest: Sequence[str]) -> Iterator[Copy]:
    """Copies what git has of a checkout, and what it would add."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=checkout, text=True)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder).resolve() / "checkout"
        for name in filter(None, listed.split("\0")):
            if (source := checkout / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, root / name, follow_symlinks=False)
        (root / "import/shardtui").mkdir(parents=True)
        for room in ROOMS:
            (root / "import/shardtui" / room).symlink_to(root / room)
        yield Copy(root, pytest)


def near(faults: Sequence[Fault]) -> list[str]:
    return [f"tests/{file}" for file in dict.fromkeys(file for fault in faults for file in fault.near)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME_PART", help="part of the name or of the file of a fault")
    parser.add_argument("--near-only", action="store_true", help="never run all tests")
    parser.add_argument("--list", action="store_true", help="only say which faults there are")
    parser.add_argument("--no-check", action="store_true", help="do not check first that the near tests pass")
    parser.add_argument("--checkout", type=Path, default=ROOT, metavar="FOLDER", help="by default, this one")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], metavar="ARG", help="more of pytest's, last")
    options = parser.parse_args()
    names = [part.lower() for part in options.names]
    chosen = [each for each in FAULTS if not names or any(part in f"{each.name} {each.file}".lower() for part in names)]
    if not chosen:
        parser.error("no such fault: --list names them")
    if options.list:
        for fault in chosen:
            print(f"{fault.file}: {fault.name}{' (mended before)' * fault.is_mended}")
        return 0
    missed: list[str] = []
    found = 0
    with copied(options.checkout.resolve(), options.pytest) as copy, suppress(KeyboardInterrupt):
        try:
            copy.check_imports()
            if not options.no_check and (failing := copy.failing(*NEAR, *near(chosen))):
                raise CannotTell(f"{failing} fails without a fault")
        except CannotTell as error:
            print(error, file=sys.stderr)
            return 1
        for fault in chosen:
            began = time.monotonic()
            try:
                with copy.planted(fault):
                    failing = copy.failing(*NEAR, *near([fault]))
                    if failing is None and not options.near_only:
                        failing = copy.failing(*WHOLE)
                outcome = f"found by {failing}" if failing else "NOT FOUND"
            except CannotTell as error:
                failing, outcome = None, f"CANNOT TELL: {error}"
            found += failing is not None
            missed += [] if failing else [fault.name]
            print(f"{fault.name}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"\nfound {found} of {len(chosen)}", *(f"not found: {name}" for name in missed), sep="\n")
    if tried := found + len(missed) - len(chosen):
        print(f"interrupted: {-tried} were not tried")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
