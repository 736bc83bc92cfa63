"""Reads `--data`, whatever its form."""

from dataclasses import replace
from pathlib import Path

from ..base.invalid import Invalid
from ..spec.prepared import FILE_NAME
from .corpus import Corpus
from .prepared import read_prepared
from .text import read_text
from .token_files import SUFFIXES, read_token_files


def read_corpus(data: str | None, option: str = "--data") -> Corpus:
    """Returns the tokens of a path, or of the default text. Raises Invalid; its messages name the `option`."""
    try:
        return replace(_read(data), option=option)
    except Invalid as error:
        raise Invalid(*(problem.replace("--data", option, 1) for problem in error.problems)) from error


def _read(data: str | None) -> Corpus:
    if data is None:
        return read_text(None)
    path = Path(data).expanduser()
    if (path / FILE_NAME).exists():
        return read_prepared(data)
    if path.suffix not in SUFFIXES or path.is_dir():
        return read_text(data)
    if path.exists():
        return read_token_files(data, [path])
    paths = sorted(path.parent.glob(path.name))
    if not paths:
        raise Invalid(f"--data {data}: no such file or directory")
    return read_token_files(data, paths)
