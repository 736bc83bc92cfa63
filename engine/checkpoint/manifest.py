"""What a checkpoint says of itself: where it comes from, a digest of every array and of every file. Needs no jax."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import cast

import msgspec
from etils import epath
from msgspec import Struct

from ..base.regular_file import open_regular
from ..distributed.outcomes import Damaged
from ..spec.config import Restart, RunConfig, UserModel
from ..wire.descriptions import CheckpointInfo, CorpusInfo, Digest

FILE_NAME = "checkpoint.json"


class FileDigest(Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stands in the checkpoint as `checkpoint.json`, with a digest of its own around it."""

    schema: int = 1
    step: int
    """Steps done."""
    time: float
    preset: str
    """The one under which it was saved: a name, or the file it was read from."""
    platform: str
    devices: int
    loss: float | None
    """Mean of the last steps' losses."""
    config: RunConfig
    corpus: CorpusInfo
    digest: Digest = "sum32"
    """Checkpoints from before there was another do not name theirs."""
    digests: dict[str, int]
    """By array name."""
    arrays: dict[str, str] = {}
    """By name, `float32 [128, 512]`."""
    files: dict[str, FileDigest]
    """By path inside the checkpoint; all but this one."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def describe(self) -> CheckpointInfo:
        return CheckpointInfo(
            step=self.step,
            time=self.time,
            preset=self.preset,
            devices=self.devices,
            loss=self.loss,
            bytes=self.bytes,
            digest=self.digest,
        )

    def other_model(self, config: RunConfig) -> tuple[str, str] | None:
        """What the model of `config` is and that of the checkpoint, where they are not the same."""
        if config.model == self.config.model:
            return None
        return _model(config, self.config), _model(self.config, config)

    def problems_with(
        self, config: RunConfig, arrays: dict[str, str], corpus: CorpusInfo, platform: str, restart: Restart
    ) -> list[str]:
        """Why a run of `config`, whose state has these arrays, cannot go on from here."""
        problems: list[str] = []
        if models := self.other_model(config):
            problems.append(
                f"the model is not the one of the checkpoint: {models[0]}, {models[1]} then: begin a new run with it"
            )
        elif arrays != self.arrays:
            problems.append(f"{_difference(arrays, self.arrays)}: begin a new run with it, or take its code back")
        if config.seed != self.config.seed:
            problems.append(
                f"run.json: seed is {config.seed}, the checkpoint of step {self.step} was saved with "
                f"{self.config.seed}: put that back, or begin a new run"
            )
        if corpus.sha256 != self.corpus.sha256 and not restart.other_data:
            problems.append(
                f"the data are not those of the checkpoint: {corpus.bytes:,} bytes (sha256 {corpus.sha256[:12]}) in "
                f"{corpus.source}, {self.corpus.bytes:,} ({self.corpus.sha256[:12]}) then: give the old one with "
                "--data, or go on with this one by --other-data"
            )
        if platform != self.platform and config.platform is None:
            problems.append(
                f"the run was on {self.devices} × {self.platform}, jax finds {platform} here: if that is meant, "
                f"add --platform {platform}"
            )
        if config.steps is not None and config.steps <= self.step:
            problems.append(f"--steps {config.steps}: {self.step} steps are done: give more")
        return problems


def edits(written: RunConfig, config: RunConfig, origin: Manifest) -> list[str]:
    """What `run.json` as it is `written` has otherwise than the checkpoint, of the training and by nobody's `--set`:
    `config` is what a run goes on with."""
    training, asked, before = (msgspec.structs.asdict(found.training) for found in (written, config, origin.config))
    return [
        f"run.json: {key} is {value}, the checkpoint of step {origin.step} was saved with {before[key]}"
        for key, value in training.items()
        if value != before[key] and value == asked[key]
    ]


def _model(config: RunConfig, other: RunConfig) -> str:
    """`nano with layers 3`: what it is called, and what the other has otherwise."""
    name = config.model.reference if isinstance(config.model, UserModel) else config.model_name
    if type(config.model) is not type(other.model):
        return name
    before = msgspec.structs.asdict(other.model) | {"reference": name}
    fields = msgspec.structs.asdict(config.model).items()
    differing = ", ".join(f"{key} {value}" for key, value in fields if value != before[key])
    return f"{name} with {differing}" if differing else name


def _difference(arrays: dict[str, str], before: dict[str, str]) -> str:
    names = [name for name in {**before, **arrays} if arrays.get(name) != before.get(name)]
    told = [f"{name} is {arrays.get(name, 'gone')}, was {before.get(name, 'not there')}" for name in names[:2]]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"the model has other arrays than the checkpoint: {'; '.join(told)}{more}"


class _Sealed(Struct, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


def write_manifest(manifest: Manifest, checkpoint: epath.Path) -> None:
    body = msgspec.json.encode(manifest)
    sealed = _Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
    with (checkpoint / FILE_NAME).open("wb") as file:
        file.write(msgspec.json.encode(sealed))
        file.flush()
        _to_disk(file)


def read_manifest(checkpoint: epath.Path, expected: str | None = None) -> Manifest:
    """Raises Damaged where it is missing, not as it was written, or not the one of digest `expected`."""
    sealed = _sealed(checkpoint)
    if expected not in (None, sealed.sha256):
        raise Damaged(f"{FILE_NAME}: another one than process 0 reads there: all hosts have to share the directory")
    try:
        return msgspec.json.decode(sealed.manifest, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{FILE_NAME}: not as it was written: {error}") from error


def manifest_digest(checkpoint: epath.Path) -> str:
    """SHA-256 of the manifest. Raises Damaged."""
    return _sealed(checkpoint).sha256


def _sealed(checkpoint: epath.Path) -> _Sealed:
    try:
        with _opened(checkpoint / FILE_NAME) as file:
            sealed = msgspec.json.decode(file.read(), type=_Sealed)
        if hashlib.sha256(sealed.manifest).hexdigest() != sealed.sha256:
            raise Damaged(f"{FILE_NAME}: not as it was written")
        return sealed
    except OSError as error:
        raise Damaged(f"{FILE_NAME}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{FILE_NAME}: not as it was written: {error}") from error


def file_digests(checkpoint: epath.Path) -> dict[str, FileDigest]:
    """Of every file below `checkpoint` but the manifest. What is digested is on the disk when this returns."""
    return {
        str(path.relative_to(checkpoint)): _file_digest(path)
        for path in sorted(_files_below(checkpoint))
        if path.name != FILE_NAME
    }


def _files_below(directory: epath.Path) -> Iterator[epath.Path]:
    for path in directory.iterdir():
        if path.is_dir():
            yield from _files_below(path)
        else:
            yield path


def check_files(checkpoint: epath.Path, manifest: Manifest) -> None:
    """Reads every file. Raises Damaged with each one that is not as it was written, or that nobody could read."""
    problems = [
        problem for name, written in manifest.files.items() if (problem := _problem(checkpoint / name, written))
    ]
    problems += [
        f"{_short(path)}: not a regular file"
        for path in _files_below(checkpoint)
        if str(path.relative_to(checkpoint)) not in manifest.files and not _is_regular(path)
    ]
    if problems:
        raise Damaged(*problems)


def _problem(path: epath.Path, written: FileDigest) -> str | None:
    name = _short(path)
    try:
        found = _file_digest(path)
    except OSError as error:
        return f"{name}: {error.strerror or error}"
    if found.bytes != written.bytes:
        return f"{name}: {found.bytes:,} bytes, {written.bytes:,} were written"
    return None if found == written else f"{name}: its bytes are not those that were written"


def _short(path: epath.Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _file_digest(path: epath.Path) -> FileDigest:
    with _opened(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        _to_disk(file)
        return FileDigest(file.tell(), digest.hexdigest())


def _opened(path: epath.Path) -> BufferedReader:
    return open_regular(os.fspath(path)) if _is_local(path) else cast(BufferedReader, path.open("rb"))


def _is_regular(path: epath.Path) -> bool:
    """A remote filesystem has no other files."""
    return not _is_local(path) or Path(path).is_file()


def _is_local(path: epath.Path) -> bool:
    return "://" not in os.fspath(path)


def _to_disk(file: object) -> None:
    """Where `file` is one of this machine; a remote filesystem has it when it is closed."""
    with contextlib.suppress(AttributeError, OSError):
        os.fsync(file.fileno())  # type: ignore[attr-defined]
