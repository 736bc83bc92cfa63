"""The directory of a run's files, its lock, and the path of its socket.

`$XDG_STATE_HOME/shardtui/runs/RUN/` contains `run.json`, `events.jsonl`, `engine.log` and `lock`, and `checkpoints`,
`profile`, `presets`, `metrics-KIND.log` and `step.json` if there are any. The socket is in `/tmp/shardtui-UID/`,
because paths of Unix sockets must be short.
"""

import contextlib
import itertools
import os
import re
import shutil
import stat
import zlib
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..base.atomic_write import write_atomically
from ..base.directories import cache_directory, state_directory
from ..base.encoding import exact_json
from ..base.untrusted import read_struct, read_text
from ..base.user_error import UserError, suggestion
from ..spec.config import DestinationKind, Membership, RunConfig, WatchedRun
from . import lock
from .lock import Holder

MAX_CONFIG_BYTES = 2**24
RUN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MAX_HOST_BYTES = 1024
MAX_STEM = 58
"""Characters of a name, so that a number can be appended."""


def state_home() -> Path:
    return state_directory() / "runs"


def compilation_cache() -> Path:
    return cache_directory() / "jax"


def chosen_presets() -> Path:
    return state_directory() / "chosen"


def plan_cache() -> Path:
    return cache_directory() / "plan"


def newest_checkpoint(directory: Path) -> int:
    """Returns the step of the newest checkpoint in a directory, 0 without one. Raises OSError."""
    return max((int(path.name) for path in directory.iterdir() if path.name.isdecimal()), default=0)


class RunDirectory:
    """The directory of one run. It need not exist."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.events, self.log, self.lock = path / "events.jsonl", path / "engine.log", path / "lock"
        self.supervisor_lock, self.presets, self.profile = path / "supervisor", path / "presets", path / "profile"
        self.shown_on = path / "shown-on.txt"
        """Has the name of the host of process 0; there is none on that host."""
        self.run_file = path / "run.toml"
        """The options that start a run like it; absent if neither `run` nor `train` started it."""
        self.step = path / "step.json"
        """The lowered step of an external loop."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunDirectory) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    def log_of(self, process: int) -> Path:
        return self.path / f"engine-{process}.log" if process else self.log

    def metrics_log(self, kind: DestinationKind) -> Path:
        """Returns the file for the output of the process that writes the curves elsewhere, `--to`."""
        return self.path / f"metrics-{kind}.log"

    def beat(self, process: int) -> Path:
        """Returns the file in which a supervised process shows its supervisor that it runs. Raises UserError."""
        return self.socket.with_suffix(f".beat-{process}")

    def stacks(self, config: RunConfig) -> Path:
        """Returns the file for the stacks of processes if one is stuck: one for all hosts whose supervisors meet."""
        shared = Path(self.checkpoints(config)) / "supervisors"
        return (shared if shared.is_dir() else self.path) / "stacks.txt"

    @property
    def supervisor(self) -> Holder | None:
        """The supervisor of the run, which will start another engine if a process of the current one is lost."""
        return lock.holder(self.supervisor_lock)

    @property
    def is_supervised(self) -> bool:
        return self.supervisor is not None

    @property
    def elsewhere(self) -> str:
        """Returns where a supervised run is shown, in words, if process 0 is on another host; empty if it is not."""
        with contextlib.suppress(UserError):
            host = read_text(self.shown_on, MAX_HOST_BYTES)
            if self.is_supervised:
                return f"process 0 is on {host}: `shardtui attach {self.name}` there shows the run"
        return ""

    @property
    def config(self) -> RunConfig:
        """Reads `run.json`. Raises UserError if it cannot be read, or if the training loop is external."""
        if watched := self.watched:
            raise UserError(watched.refusal)
        return read_struct(self.path / "run.json", RunConfig, MAX_CONFIG_BYTES, advice="remove its directory")

    @property
    def watched(self) -> WatchedRun | None:
        """Reads `run.json` of a run with an external training loop; None for any other run."""
        with contextlib.suppress(UserError):
            return read_struct(self.path / "run.json", WatchedRun, MAX_CONFIG_BYTES)
        return None

    @property
    def about(self) -> RunConfig | WatchedRun:
        """Reads `run.json` of either kind of run. Raises UserError if it cannot be read."""
        return self.watched or self.config

    @property
    def socket(self) -> Path:
        """Returns the path of the run's socket. Raises UserError if the runtime directory is not safe to use."""
        digest = zlib.crc32(os.fsencode(self.path.resolve()))
        return runtime_directory() / f"{self.name[:32]}-{digest:08x}.sock"

    def new_members(self, processes: int) -> list[tuple[Membership, ...]]:
        """Returns the membership of each process of a new start on this machine; of a single process, none. The socket
        of their coordinator has a new path, so that processes left over from an earlier start cannot join."""
        if processes == 1:
            return [()]
        coordinator = f"unix:{self.socket.with_suffix('')}-{os.urandom(2).hex()}"
        return [(Membership(coordinator=coordinator, processes=processes, process=n),) for n in range(processes)]

    def clear_coordinators(self) -> None:
        """Deletes the coordinator sockets of all starts. Only for the process that holds the lock."""
        for old in runtime_directory().glob(f"{self.socket.stem}-????"):
            old.unlink(missing_ok=True)

    def write_config(self, about: RunConfig | WatchedRun) -> None:
        """Writes `run.json` atomically; creates the directory if this host has none. Raises UserError and OSError."""
        content = msgspec.json.format(exact_json(about))
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.path / "run.json", content)

    def checkpoints(self, config: RunConfig) -> str:
        """Returns the directory of the run's checkpoints, which may be a URL such as `gs://…`."""
        elsewhere = config.checkpoints.directory
        return f"{elsewhere.rstrip('/')}/{self.name}" if elsewhere else str(self.path / "checkpoints")

    def hold(self) -> BinaryIO:
        return lock.take(self.lock)

    def hold_ended(self) -> BinaryIO:
        """Holds a run that nothing will train again by itself. Raises UserError if it is live or supervised."""
        if self.is_supervised:
            raise UserError(f"run {self.name}: a supervisor keeps it training: `shardtui stop {self.name}` ends it")
        return self.hold()

    def holder(self) -> Holder | None:
        return lock.holder(self.lock)

    @property
    def is_alive(self) -> bool:
        """Whether an engine, or an external loop, holds the run."""
        holder = self.holder()
        return holder is not None and holder.is_alive

    @property
    def bytes(self) -> int:
        """Size of all its files, checkpoints included. Raises OSError if one goes meanwhile."""
        return sum(path.lstat().st_size for path in self.path.rglob("*"))

    def rename(self, name: str) -> "RunDirectory":
        """Moves an ended run to another name. Raises UserError if it is live or its checkpoints lie elsewhere, or the
        name is taken or not valid."""
        renamed = RunDirectory(self.path.with_name(checked_name(name)))
        with self.hold_ended():
            about = self.about
            if isinstance(about, RunConfig) and about.checkpoints.directory:
                raise UserError(f"run {self.name}: its checkpoints are in {self.checkpoints(about)}, under its name")
            if renamed.path.exists():
                raise UserError(f"run {name}: this run already exists: choose another name")
            try:
                self.path.rename(renamed.path)
                renamed.write_config(msgspec.structs.replace(about, run=name))
            except OSError as error:
                raise UserError(f"run {self.name}: {error.filename}: cannot be renamed: {error.strerror}") from error
        return renamed

    def discard(self) -> None:
        shutil.rmtree(self.path)


class NameTaken(UserError):
    """A run of that name exists."""


def create(about: RunConfig | WatchedRun) -> RunDirectory:
    """Creates a directory with the run's `run.json`. Raises NameTaken, and UserError if it cannot be written."""
    directory = RunDirectory(state_home() / checked_name(about.run))
    try:
        directory.path.mkdir(parents=True, mode=0o700)
        directory.write_config(about)
    except FileExistsError as error:
        raise NameTaken(f"--run {about.run}: this run already exists: choose another name, or attach to it") from error
    except OSError as error:
        if directory.path.is_dir():
            directory.discard()
        raise UserError(
            f"{directory.path}: cannot be written: {error.strerror}: set XDG_STATE_HOME to a directory that you can "
            "write"
        ) from error
    return directory


def create_numbered(about: WatchedRun) -> RunDirectory:
    """Creates a directory as `create` does; appends -2, -3, … to the name if it is taken. Raises UserError."""
    names = (about.run[:MAX_STEM] + f"-{number}" for number in itertools.count(2))
    name = about.run
    while True:
        try:
            return create(msgspec.structs.replace(about, run=name))
        except NameTaken:
            name = next(names)


def free_name(model: str) -> str:
    """Returns the first of MODEL-1, MODEL-2, … that no run has."""
    return next(name for n in itertools.count(1) if not (state_home() / (name := f"{model}-{n}")).exists())


def find(name: str | None) -> RunDirectory:
    """Returns the run of that name; with None the newest one that is running. Raises UserError if there is none."""
    if name is not None:
        directory = RunDirectory(state_home() / checked_name(name))
        if not directory.exists:
            maybe = suggestion(name, (run.name for run in all_runs()))
            raise UserError(f"run {name}: no such run in {state_home()}: {maybe}see `shardtui ls`")
        return directory
    living = [directory for directory in all_runs() if directory.is_alive]
    if not living:
        raise UserError("no run is training: start one with `shardtui`, or name an ended one: see `shardtui ls`")
    return living[-1]


def all_runs() -> list[RunDirectory]:
    """Returns all runs, oldest first. Ignores directories whose name is not valid for a run."""
    found: dict[Path, float] = {}
    for file in state_home().glob("*/run.json"):
        with contextlib.suppress(OSError):  # it is removed meanwhile
            found[file.parent] = file.stat().st_mtime
    return [RunDirectory(path) for path in sorted(found, key=lambda each: found[each]) if RUN_NAME.fullmatch(path.name)]


def checked_name(name: str) -> str:
    """Returns `name`. Raises UserError if it is not valid for a run."""
    if not RUN_NAME.fullmatch(name):
        raise UserError(
            f"run {name!r}: a name has 1 to 64 characters of a–z, 0–9, '.', '_' and '-', and starts with a letter or "
            "digit"
        )
    return name


def runtime_directory() -> Path:
    """Returns the directory of the sockets, created with mode 0700. Raises UserError if other users can enter it."""
    path = Path(os.environ.get("SHARDTUI_RUNTIME_DIR") or f"/tmp/shardtui-{os.getuid()}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise UserError(f"{path}: cannot be used for sockets: {error.strerror}: set SHARDTUI_RUNTIME_DIR") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise UserError(f"{path}: not a directory of yours: remove it, or set SHARDTUI_RUNTIME_DIR to another")
    if mode := stat.S_IMODE(status.st_mode) & 0o077:
        raise UserError(f"{path}: other users can enter it (mode {0o700 | mode:o}): run `chmod 700 {path}`")
    if (length := len(os.fsencode(path))) > 60:
        raise UserError(f"{path}: too long for a socket ({length} bytes, at most 60): set SHARDTUI_RUNTIME_DIR")
    return path
