"""Reads `--data`: text, prepared data, or files of tokens: `.bin` as nanoGPT and llm.c write them, and `.npy`."""

import hashlib
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..base.formatting import listed
from ..base.formatting import size as size_text
from ..base.output import note
from ..base.regular_file import NotRegular, open_regular
from ..base.untrusted import decode, read_bytes, refusing
from ..base.user_error import UserError
from ..spec.prepared import FILE_NAME, Prepared, is_document
from .corpus import HASHED_BYTES, Corpus, Shard, StoredTokens
from .documents import MOST_NAMED, SNIFFED_BYTES

STANDARD_LIBRARY = "the Python standard library's sources"
EXCLUDED_DIRECTORIES = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
LARGE_CORPUS_BYTES = 100_000_000
"""Bytes of text above which it stays in its files; the log announces that it is being hashed."""
SUFFIXES = (".bin", ".npy")
HEADER_WORDS = 256
"""int32 words of llm.c's header: a magic number, the version, the number of tokens, zeros."""
HEADERS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
"""Magic number and version of llm.c's files of GPT-2's and Llama 3's tokens (its `dev/data/data_common.py`)."""


def read_corpus(data: str | None, option: str = "--data") -> Corpus:
    """Returns the tokens of a path, or of the default text. Raises UserError, naming the `option`."""
    try:
        with refusing(f"--data {data}"):
            return replace(_read(data), option=option)
    except UserError as error:
        raise UserError(*(problem.replace("--data", option, 1) for problem in error.problems)) from error


def _read(data: str | None) -> Corpus:
    if data is None:
        return read_text(None)
    path = Path(data).expanduser()
    if (path / FILE_NAME).exists():
        return _read_prepared(data)
    if path.suffix not in SUFFIXES or path.is_dir():
        return read_text(data)
    if path.exists():
        return _read_token_files(data, [path])
    paths = sorted(path.parent.glob(path.name))
    if not paths:
        raise UserError(f"--data {data}: no such file or directory")
    return _read_token_files(data, paths)


def _read_prepared(data: str) -> Corpus:
    folder = Path(data).expanduser()
    name, advice = f"--data {folder / FILE_NAME}", "prepare the data again"
    content = read_bytes(folder / FILE_NAME, name=name)
    found = decode(content, Prepared, name, advice)
    dtype = np.dtype(found.dtype)
    problems = list[str]()
    for shard in found.shards:
        path, size = folder / shard.file, shard.tokens * dtype.itemsize
        there = path.stat().st_size if path.is_file() else None
        if there != size:
            state = "missing" if there is None else f"{there:,} bytes, but was written with {size:,}"
            problems.append(f"--data {path}: {state}: {advice}")
    if problems or not found.shards:
        raise UserError(*problems or [f"--data {data}: it has no tokens: {advice}"])
    shards = [Shard(folder / shard.file, 0, shard.tokens) for shard in found.shards]
    tokens = StoredTokens(shards, dtype, written=hashlib.sha256(content).hexdigest())
    return Corpus(data, len(shards), tokens, vocab=found.vocab)


def _read_token_files(source: str, paths: Sequence[Path]) -> Corpus:
    """Returns the tokens of files in this order. Only their headers are read. Raises UserError."""
    found = [_shard(path) for path in paths]
    kinds = {dtype.str: path for path, (_, dtype) in zip(paths, found, strict=True)}
    if len(kinds) > 1:
        named = ", ".join(f"{path.name} has {np.dtype(kind).name}" for kind, path in kinds.items())
        raise UserError(f"--data {source}: the files have tokens of different types: {named}: give files of one type")
    return Corpus(source, len(paths), StoredTokens([shard for shard, _ in found], found[0][1]))


def _shard(path: Path) -> tuple[Shard, np.dtype]:
    with refusing(f"--data {path}"):
        shard, dtype = _npy(path) if path.suffix == ".npy" else _bin(path)
    if not shard.size:
        raise UserError(f"--data {path}: has no tokens: remove it, or write it again")
    return shard, dtype


def _bin(path: Path) -> tuple[Shard, np.dtype]:
    """Reads llm.c's header; a file without one is nanoGPT's, uint16 from its start on."""
    with open_regular(path) as file:
        header = np.frombuffer(file.read(4 * HEADER_WORDS), np.uint8)
        size = file.seek(0, 2)
    if len(header) < 4 * HEADER_WORDS:
        header = np.zeros(4 * HEADER_WORDS, np.uint8)
    magic, version, tokens = map(int, header.view("<i4")[:3])
    dtype = HEADERS.get((magic, version))
    if dtype is None:
        if size % 2:
            raise UserError(f"--data {path}: {size:,} bytes are not a number of uint16 tokens: the file is damaged")
        return Shard(path, 0, size // 2), np.dtype("<u2")
    _require_size(path, size - 4 * HEADER_WORDS, tokens, dtype)
    return Shard(path, 4 * HEADER_WORDS, tokens), dtype


def _npy(path: Path) -> tuple[Shard, np.dtype]:
    with open_regular(path) as file, refusing(f"--data {path}", "not a .npy file"):
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        offset = file.tell()
        size = file.seek(0, 2)
    if dtype.kind not in "ui" or dtype.itemsize == 1 or dtype.byteorder == ">" or len(shape) != 1:
        raise UserError(
            f"--data {path}: {dtype.name} {list(shape)}: tokens are one dim of uint16, uint32, int32 or int64: "
            "convert it with NumPy"
        )
    _require_size(path, size - offset, shape[0], dtype)
    return Shard(path, offset, shape[0]), dtype


def _require_size(path: Path, found: int, tokens: int, dtype: np.dtype) -> None:
    if found != tokens * dtype.itemsize:
        raise UserError(
            f"--data {path}: its header says {tokens:,} tokens, {tokens * dtype.itemsize:,} bytes, but {found:,} bytes "
            "follow: the file is damaged: write it again"
        )


def read_text(data: str | None) -> Corpus:
    """Reads a text file, a directory's text files by name, or by default the standard library. Raises UserError if
    there is no text."""
    if data is None:
        root = Path(sysconfig.get_path("stdlib"))
        paths = [
            path for path in sorted(root.rglob("*.py")) if not EXCLUDED_DIRECTORIES & set(path.relative_to(root).parts)
        ]
        return _join(STANDARD_LIBRARY, [_sniff(path) for path in paths])
    path = Path(data).expanduser()
    if path.is_dir():
        files = [found for found in sorted(path.rglob("*")) if not found.is_dir()]
        sniffed = [_sniff(file) for file in files if is_document(file.relative_to(path))]
        texts = [text for text in sniffed if text.is_text]
        if not texts:
            raise UserError(f"--data {data}: no text file in that directory: give a directory with at least one")
        taken = {text.path for text in sniffed if text.is_text or not (text.size or text.kind)}
        if others := [str(file.relative_to(path)) for file in files if file not in taken]:
            note(f"--data {data}: no text, or hidden, or a README: {listed(others, MOST_NAMED)}")
        return _join(data, texts)
    if not path.exists():
        raise UserError(f"--data {data}: no such file or directory")
    text = _sniff(path)
    if text.kind:
        raise UserError(f"--data {data}: {text.kind}, not a file: give a text file or a directory of text files")
    if not text.size:
        raise UserError(f"--data {data}: the file is empty: give one with text")
    if not text.is_text:
        raise UserError(
            f"--data {data}: the file is not text (a NUL byte in its first {SNIFFED_BYTES:,}): give a text file, or "
            "name it .parquet or .arrayrecord if it is one"
        )
    return _join(data, [text])


@dataclass(frozen=True)
class _Sniffed:
    path: Path
    size: int
    """Bytes to read, even if the file grows."""
    is_text: bool
    """Whether it has content without a NUL byte at its start."""
    kind: str | None = None


def _sniff(path: Path) -> _Sniffed:
    try:
        with open_regular(path) as file:
            first = file.read(SNIFFED_BYTES) or b""  # None if a file of /proc has no data yet
            size = max(len(first), os.fstat(file.fileno()).st_size)
            return _Sniffed(path, size, bool(first) and b"\0" not in first)
    except NotRegular as error:
        return _Sniffed(path, 0, False, error.kind)
    except OSError as error:
        raise UserError(f"--data {path}: cannot be read: {error.strerror}") from error


def _join(source: str, texts: list[_Sniffed]) -> Corpus:
    """Returns the texts joined by newlines: in memory, or left in their files if they are large."""
    total = sum(text.size for text in texts) + max(0, len(texts) - 1)
    if total <= LARGE_CORPUS_BYTES:
        tokens = b"\n".join(read_bytes(text.path, name=f"--data {text.path}")[: text.size] for text in texts)
        return Corpus(source, len(texts), np.frombuffer(tokens, np.uint8))
    if total <= HASHED_BYTES:
        note(f"reading {size_text(total)} of text from {source}")
    shards = [Shard(text.path, 0, text.size) for text in texts]
    return Corpus(source, len(texts), StoredTokens(shards, np.dtype(np.uint8), b"\n"))
