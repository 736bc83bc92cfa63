"""Opens files as they are or decompressed, by the bytes with which they begin: downloads often have a wrong suffix."""

import bz2
import gzip
import lzma
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from ..base.regular_file import open_regular
from ..base.untrusted import refusing
from ..base.user_error import UserError

LONGEST_START = 10


def _open_zstd(file: BufferedReader) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError("compressed by Zstandard: pip install 'shardtui[parquet]', or decompress it") from error
    return BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))


OPENERS: dict[re.Pattern[bytes], Callable[[BufferedReader], Any]] = {
    re.compile(rb"\x1f\x8b"): gzip.open,
    re.compile(rb"BZh[1-9]1AY&SY"): bz2.open,
    re.compile(rb"\xfd7zXZ\0"): lzma.open,
    re.compile(rb"\x28\xb5\x2f\xfd"): _open_zstd,
}
REFUSED = {
    re.compile(rb"PK\x03\x04"): "a ZIP archive: unpack it",
    re.compile(rb"7z\xbc\xaf\x27\x1c"): "a 7z archive: unpack it",
    re.compile(rb"Rar!\x1a\x07"): "a RAR archive: unpack it",
    re.compile(rb"\x04\x22\x4d\x18"): "compressed by LZ4: decompress it",
    re.compile(rb"\x1f\x9d"): "compressed by compress: decompress it",
}


def is_compressed(path: Path | str) -> bool:
    with refusing(str(path)), open_regular(path) as file:
        return _opener(path, file) is not None


@contextmanager
def opened(path: Path | str) -> Generator[BinaryIO]:
    """Opens a file, decompressed if it is compressed. Raises UserError, also for errors while it is read."""
    with refusing(str(path)), open_regular(path) as file:
        opener = _opener(path, file)
        with opener(file) if opener else file as content:
            yield content


def _opener(path: Path | str, file: BufferedReader) -> Callable[[BufferedReader], Any] | None:
    start = file.peek(LONGEST_START)
    if why := next((why for pattern, why in REFUSED.items() if pattern.match(start)), None):
        raise UserError(f"{path}: {why}, or remove it")
    return next((opener for pattern, opener in OPENERS.items() if pattern.match(start)), None)
