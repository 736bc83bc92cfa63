"""The manifest of a checkpoint: its origin, and a digest of every array and file. Needs no jax."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader

import msgspec
from etils import epath
from msgspec import Struct

from ..base import formatting
from ..distributed.outcomes import Damaged, Unreadable
from ..spec.config import Restart, RunConfig, UserModel
from ..wire.checkpoints import CheckpointInfo
from ..wire.descriptions import CorpusInfo
from .reading import is_local, patiently, read_file, short_name

FILE_NAME = "checkpoint.json"
SCHEMA = 1
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class FileDigest(Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `checkpoint.json`, which also has the manifest's own digest."""

    schema: int = SCHEMA
    step: int
    time: float
    preset: str
    """A preset's name, or the path of its file."""
    in_place_of: str | None = None
    """The preset that the run returns to, if `preset` replaced it on fewer devices; else None."""
    platform: str
    devices: int
    loss: float | None
    """Mean of the last steps' losses; `eval_loss`: of the last evaluation. None if unknown or not finite."""
    eval_loss: float | None = None
    config: RunConfig
    corpus: CorpusInfo
    digests: dict[str, int]
    arrays: dict[str, str]
    files: dict[str, FileDigest]
    """By path inside the checkpoint, without this file."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def describe(self) -> CheckpointInfo:
        return msgspec.convert(self, CheckpointInfo, from_attributes=True)

    def other_model(self, config: RunConfig) -> tuple[str, str] | None:
        if config.model == self.config.model:
            return None
        return _model(config, self.config), _model(self.config, config)

    def problems_with(
        self, config: RunConfig, arrays: dict[str, str], corpus: CorpusInfo, platform: str, restart: Restart
    ) -> list[str]:
        """Returns why a run of `config`, with `arrays` in its state, cannot resume from here; empty if it can."""
        problems: list[str] = []
        if models := self.other_model(config):
            problems.append(f"the model is {models[0]}, but {models[1]} in the checkpoint: start a new run with it")
        elif arrays != self.arrays:
            problems.append(f"{_difference(arrays, self.arrays)}: start a new run with it, or restore its old code")
        if config.seed != self.config.seed:
            problems.append(
                f"run.json: seed is {config.seed}, but the checkpoint of step {self.step} was saved with "
                f"{self.config.seed}: restore it, or start a new run"
            )
        if corpus.sha256 != self.corpus.sha256 and not restart.other_data:
            problems.append(
                f"the training data differ from the checkpoint's: {corpus.bytes:,} bytes (sha256 {corpus.sha256[:12]}) "
                f"in {corpus.source}, {self.corpus.bytes:,} ({self.corpus.sha256[:12]}) when saved: give the old data "
                "with --data, or accept the new data with --other-data"
            )
        if platform != self.platform and config.platform is None:
            problems.append(
                f"the run was on {self.devices} × {self.platform}, but jax finds {platform} here: to resume on it, "
                f"add --platform {platform}"
            )
        is_complete = config.steps == self.step and restart.is_again  # it was lost after its last step
        if config.steps is not None and config.steps <= self.step and not is_complete:
            problems.append(f"--steps {config.steps}: {formatting.counted(self.step, 'step')} already done: give more")
        return problems


def edited_settings(written: RunConfig, config: RunConfig, origin: Manifest) -> list[str]:
    """Returns settings in `run.json`'s content `written` that differ from the checkpoint `origin`, one line each.
    `config` also has the changes of `--set`, which are intended and left out."""
    training, requested, before = (msgspec.structs.asdict(found.training) for found in (written, config, origin.config))
    return [
        f"run.json: {key} is {value}, but the checkpoint of step {origin.step} was saved with {before[key]}"
        for key, value in training.items()
        if value != before[key] and value == requested[key]
    ]


def _model(config: RunConfig, other: RunConfig) -> str:
    """Returns the model's name and the fields in which it differs from `other`, such as `nano with layers 3`."""
    name = config.model.reference if isinstance(config.model, UserModel) else config.model_name
    if type(config.model) is not type(other.model):
        return name
    before = msgspec.structs.asdict(other.model) | {"reference": name}
    fields = msgspec.structs.asdict(config.model).items()
    differing = ", ".join(f"{key} {value}" for key, value in fields if value != before[key])
    return f"{name} with {differing}" if differing else name


def _difference(arrays: dict[str, str], before: dict[str, str]) -> str:
    names = [name for name in {**before, **arrays} if arrays.get(name) != before.get(name)]
    changes = [f"{name} is {arrays.get(name, 'removed')}, was {before.get(name, 'absent')}" for name in names]
    return f"the model's arrays differ from the checkpoint's: {formatting.listed(changes, 2, '; ')}"


class _Sealed(Struct):
    sha256: str
    manifest: msgspec.Raw


def write_manifest(manifest: Manifest, checkpoint: epath.Path) -> None:
    """Writes the manifest and its digest into the checkpoint's directory."""
    body = msgspec.json.encode(manifest)
    sealed = _Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
    with (checkpoint / FILE_NAME).open("wb") as file:
        file.write(msgspec.json.encode(sealed))
        file.flush()
        _sync(file)


def read_manifest(checkpoint: epath.Path) -> Manifest:
    """Reads the manifest. Raises Damaged if it is missing or damaged; Unreadable if it cannot be read, or was written
    by another version."""
    try:
        manifest = msgspec.json.decode(_sealed(checkpoint).manifest, type=Manifest)
    except UNDECODABLE as error:
        raise _of_another_version(str(error)) from error
    if manifest.schema != SCHEMA:
        raise _of_another_version(f"schema {manifest.schema}, known is {SCHEMA}")
    return manifest


def _of_another_version(why: str) -> Unreadable:
    return Unreadable(
        f"{FILE_NAME}: intact, but another version of shardtui wrote it ({why}): resume with that version"
    )


def _sealed(checkpoint: epath.Path) -> _Sealed:
    data = read_file(checkpoint, checkpoint / FILE_NAME, BufferedReader.read)
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
    except UNDECODABLE as error:
        raise Damaged(f"{FILE_NAME}: changed since it was written: {error}") from error
    if hashlib.sha256(sealed.manifest).hexdigest() != sealed.sha256:
        raise Damaged(f"{FILE_NAME}: changed since it was written")
    return sealed


def file_digests(checkpoint: epath.Path) -> dict[str, FileDigest]:
    """Syncs every file below `checkpoint` except the manifest to disk, and returns their digests by relative path."""
    return {
        str(path.relative_to(checkpoint)): read_file(checkpoint, path, _file_digest)
        for path, _ in sorted(_files_below(checkpoint))
        if path.name != FILE_NAME
    }


def _files_below(directory: epath.Path) -> Iterator[tuple[epath.Path, int]]:
    """Yields each file with its mode, whose type is that of a regular file in a remote file system."""
    for path in directory.iterdir():
        mode = _mode(path)
        if stat.S_ISDIR(mode):
            yield from _files_below(path)
        else:
            yield path, mode


def check_files(checkpoint: epath.Path, manifest: Manifest) -> None:
    """Reads every file. Raises Damaged with each one that differs from what was written, Unreadable for the first one
    that cannot be read."""
    problems = [
        problem
        for name, written in manifest.files.items()
        if (problem := _problem(checkpoint / name, checkpoint, written))
    ]
    problems += [
        f"{short_name(path)}: not a regular file"
        for path, mode in patiently(checkpoint, lambda: list(_files_below(checkpoint)))
        if str(path.relative_to(checkpoint)) not in manifest.files and not stat.S_ISREG(mode)
    ]
    if problems:
        raise Damaged(*problems)


def _problem(path: epath.Path, checkpoint: epath.Path, written: FileDigest) -> str | None:
    try:
        found = read_file(checkpoint, path, _file_digest)
    except Damaged as error:
        return error.problems[0]
    short = short_name(path)
    if found.bytes != written.bytes:
        return f"{short}: {found.bytes:,} bytes, {written.bytes:,} when written"
    return None if found == written else f"{short}: its content has changed since it was written"


def _file_digest(file: BufferedReader) -> FileDigest:
    digest = hashlib.file_digest(file, "sha256")
    _sync(file)
    return FileDigest(file.tell(), digest.hexdigest())


def _mode(path: epath.Path) -> int:
    """Returns the file's type; a remote file system has only directories and regular files. Raises OSError, unlike
    `is_dir`, which returns False then."""
    if is_local(path):
        return os.stat(path).st_mode  # noqa: PTH116 # epath's looks up the owner, too
    return stat.S_IFDIR if path.is_dir() else stat.S_IFREG


def _sync(file: object) -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.fsync(file.fileno())  # type: ignore[attr-defined]
