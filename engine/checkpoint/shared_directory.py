"""The checkpoint directory that all processes of a run must share, and the presets in it."""

import contextlib
import hashlib
import secrets

from ..base.advice import problems_in
from ..base.invalid import Invalid
from ..distributed.cluster import Cluster
from .directory import SAVING, CheckpointDirectory


def prepare_shared(directory: CheckpointDirectory, cluster: Cluster) -> None:
    """Creates the directory. Raises Invalid if it cannot be written, or if a process does not see that of process 0."""
    mark = cluster.agree(lambda: _write_mark(directory), str)
    cluster.together(lambda: _check_mark(directory, mark))
    cluster.agree(directory.clear, None)


def _write_mark(directory: CheckpointDirectory) -> str:
    """Writes a random mark into the directory, by which other processes check that they see the same one."""
    mark = f"{SAVING}{secrets.token_hex(8)}"
    try:
        directory.prepare()
        (directory.root / mark).mkdir()
        (directory.root / mark / "mark").write_text(mark)  # an object store has no empty folders
    except (OSError, ImportError) as error:
        raise Invalid(f"{directory.root}: cannot store checkpoints there: {problems_in(error)[0]}") from error
    return mark


def _check_mark(directory: CheckpointDirectory, mark: str) -> None:
    if not (directory.root / mark / "mark").exists():
        raise Invalid(
            f"{directory.root}: this host cannot see the files of process 0: give a --checkpoint-dir "
            "that all hosts share"
        )


class SharedPresets:
    """Presets that were created in a run of several processes: process 0 writes them, the others read them."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._folder = directory.presets

    def write(self, name: str, text: str) -> str:
        """Writes a preset and returns the SHA-256 of its text. Ignores write errors: `read` reports them."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / f"{name}.toml").write_text(text)
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, name: str, sha256: str) -> str:
        """Reads a preset's text. Raises Invalid if its SHA-256 differs."""
        path = self._folder / f"{name}.toml"
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{path}: cannot be read: {error}") from error
        if hashlib.sha256(text.encode()).hexdigest() != sha256:
            raise Invalid(f"{path}: differs from the preset that was added: all hosts must share this directory")
        return text
