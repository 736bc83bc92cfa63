"""Where a run keeps its files, who holds it, and where its socket is.

`$XDG_STATE_HOME/shardtui/runs/RUN/` holds `run.json`, `events.jsonl`, `engine.log` and `lock`, and `checkpoints`,
`profile` and `presets` once there are some; the socket lies in `/tmp/shardtui-UID/` because the paths of Unix sockets
must be short.
"""

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..base.invalid import Invalid
from ..base.regular_file import read_regular
from ..spec.config import RunConfig, WatchedRun
from . import lock
from .lock import Holder

UNREADABLE = (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError)
RUN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
LONGEST_STEM = 58
"""Characters of a name that leave room for a number."""


def state_home() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "shardtui" / "runs"


def compilation_cache() -> Path:
    """Where jax keeps compiled programs for the next run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "shardtui" / "jax"


def plan_cache() -> Path:
    """Where answers of the TPU compiler are kept."""
    return compilation_cache().with_name("plan")


@dataclass(frozen=True)
class RunDirectory:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "engine.log"

    def log_of(self, process: int) -> Path:
        """Of one of several processes on this machine."""
        return self.path / f"engine-{process}.log" if process else self.log

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    @property
    def presets(self) -> Path:
        """Those that were made in the run."""
        return self.path / "presets"

    @property
    def config(self) -> RunConfig:
        """Raises Invalid where it cannot be read, and where the run is only watched."""
        if watched := self.watched:
            raise Invalid(watched.refusal)
        path = self.path / "run.json"
        try:
            return msgspec.json.decode(read_regular(path), type=RunConfig)
        except UNREADABLE as error:
            why = getattr(error, "strerror", None) or error
            raise Invalid(f"{path}: not the configuration of a run: {why}: remove its directory") from error

    @property
    def watched(self) -> WatchedRun | None:
        """None of a run that an engine trains."""
        with contextlib.suppress(*UNREADABLE):
            return msgspec.json.decode(read_regular(self.path / "run.json"), type=WatchedRun)
        return None

    @property
    def about(self) -> RunConfig | WatchedRun:
        """Raises Invalid where it cannot be read."""
        return self.watched or self.config

    @property
    def socket(self) -> Path:
        """Raises Invalid where the runtime directory is not safe to use."""
        digest = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:8]
        return runtime_directory() / f"{self.name[:32]}-{digest}.sock"

    def new_coordinator(self) -> Path:
        """A path for the socket at which processes of one machine find each other, of this start alone: processes that
        an earlier one left behind cannot join."""
        return self.socket.with_name(f"{self.socket.stem}-{secrets.token_hex(2)}")

    def clear_coordinators(self) -> None:
        """Those of past starts, and of this one at its end. For the process that holds the run."""
        for old in runtime_directory().glob(f"{self.socket.stem}-????"):
            old.unlink(missing_ok=True)

    def write_config(self, about: RunConfig | WatchedRun) -> None:
        """All or nothing. Makes the directory where this host has none of the run."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self.path / "run.json.new"
        new.write_bytes(msgspec.json.format(msgspec.json.encode(about)))
        new.replace(self.path / "run.json")

    def checkpoints(self, config: RunConfig) -> str:
        """Where the run's checkpoints are; not always a path of this machine."""
        elsewhere = config.checkpoints.directory
        return f"{elsewhere.rstrip('/')}/{self.name}" if elsewhere else str(self.path / "checkpoints")

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def hold(self) -> BinaryIO:
        """Takes the lock; it stays taken while the returned file is open. Raises Invalid where another holds it."""
        return lock.take(self.lock)

    def holder(self) -> Holder | None:
        """The engine that lives in here, None where there is none."""
        return lock.holder(self.lock)

    def discard(self) -> None:
        shutil.rmtree(self.path)


class NameTaken(Invalid):
    """There is a run of that name."""


def create(about: RunConfig | WatchedRun) -> RunDirectory:
    """A new directory with the run's `run.json`. Raises NameTaken, and Invalid where nothing can be written."""
    directory = RunDirectory(state_home() / checked_name(about.run))
    try:
        directory.path.mkdir(parents=True, mode=0o700)
        directory.write_config(about)
    except FileExistsError as error:
        raise NameTaken(f"--run {about.run}: the name is taken: choose another, or attach to it") from error
    except OSError as error:
        if directory.path.is_dir():
            directory.discard()
        raise Invalid(
            f"{directory.path}: cannot be written: {error.strerror}: set XDG_STATE_HOME to a directory of yours"
        ) from error
    return directory


def create_numbered(about: WatchedRun) -> RunDirectory:
    """As `create`, of the name with -2, -3, … where there is a run of that name. Raises Invalid."""
    names = (about.run[:LONGEST_STEM] + f"-{number}" for number in itertools.count(2))
    name = about.run
    while True:
        try:
            return create(msgspec.structs.replace(about, run=name))
        except NameTaken:
            name = next(names)


def free_name(model: str) -> str:
    """The first of MODEL-1, MODEL-2, … that no run has."""
    return next(name for n in itertools.count(1) if not (state_home() / (name := f"{model}-{n}")).exists())


def find(name: str | None) -> RunDirectory:
    """The run of that name; with None the newest living one. Raises Invalid."""
    if name is not None:
        directory = RunDirectory(state_home() / checked_name(name))
        if not (directory.path / "run.json").exists():
            raise Invalid(f"run {name}: there is none in {state_home()}: see `shardtui ls`")
        return directory
    living = [directory for directory in all_runs() if (holder := directory.holder()) and holder.is_alive]
    if not living:
        raise Invalid("no run is going on: start one with `shardtui`, or name an ended one: see `shardtui ls`")
    return living[-1]


def all_runs() -> list[RunDirectory]:
    """Oldest first. What is not named as a run is none."""
    files = [file for file in state_home().glob("*/run.json") if RUN_NAME.fullmatch(file.parent.name)]
    return [RunDirectory(file.parent) for file in sorted(files, key=lambda file: file.stat().st_mtime)]


def checked_name(name: str) -> str:
    if not RUN_NAME.fullmatch(name):
        raise Invalid(
            f"run {name!r}: a name is 1 to 64 of a–z, 0–9, '.', '_' and '-', and starts with a letter or digit"
        )
    return name


def runtime_directory() -> Path:
    """The directory of the sockets: made 0700, and refused where it is not ours alone. Raises Invalid."""
    path = Path(os.environ.get("SHARDTUI_RUNTIME_DIR") or f"/tmp/shardtui-{os.getuid()}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise Invalid(f"{path}: cannot be used for sockets: {error.strerror}: set SHARDTUI_RUNTIME_DIR") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise Invalid(f"{path}: not a directory that only you can enter: remove it, or set SHARDTUI_RUNTIME_DIR")
    if len(str(path)) > 60:
        raise Invalid(f"{path}: too long for a socket ({len(str(path))} of 60 characters): set SHARDTUI_RUNTIME_DIR")
    return path
