"""Documents in ArrayRecord files: a record is UTF-8 text, or a `tf.train.Example` with the text as a feature.

array_record comes with grain. `tf.train.Example`: tensorflow/core/example/{example,feature}.proto.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ..base.invalid import Invalid
from ..base.protobuf import message_class
from ..base.regular_file import open_regular

READ_AT_ONCE = 256
"""Records."""
EXAMPLE = {
    "BytesList": ("bytes* value 1",),
    "Feature": ("BytesList bytes_list 1",),
    "Entry": ("bytes key 1", "Feature value 2"),
    "Features": ("Entry* feature 1",),
    "Example": ("Features features 1",),
}


def record_count(path: Path) -> int:
    """Returns the number of records. Raises Invalid if the file is none of ArrayRecord's, or not whole."""
    reader = _open(path)
    try:
        return reader.num_records()
    finally:
        reader.close()


def records(path: str, begin: int, end: int, text_field: str) -> Iterator[str]:
    """Yields the texts of records `[begin:end]`. Raises Invalid; it names the record."""
    reader = _open(Path(path))
    try:
        for first in range(begin, end, READ_AT_ONCE):
            for number, record in enumerate(_read(reader, path, first, min(end, first + READ_AT_ONCE)), first):
                yield _text(f"{path}: record {number:,}", record, text_field)
    finally:
        reader.close()


def _open(path: Path) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        open_regular(path).close()
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}") from error
    reader = ArrayRecordReader(str(path))
    if not reader.ok():
        raise Invalid(f"{path}: not an ArrayRecord file, or truncated: write it again, or remove it")
    return reader


def _read(reader: Any, path: str, begin: int, end: int) -> list[bytes]:
    """Reads records `[begin:end]`; if one is damaged, one by one, to name it."""
    try:
        return reader.read(begin, end)
    except RuntimeError as error:
        if end == begin + 1:
            raise Invalid(f"{path}: record {begin:,}: damaged: write the file again, or remove it") from error
        return [record for number in range(begin, end) for record in _read(reader, path, number, number + 1)]


def _text(where: str, record: bytes, text_field: str) -> str:
    features = _features(record)
    if features is not None and text_field not in features:
        raise Invalid(f"{where}: no text in {text_field}: its features are {', '.join(features)}: set --text-field")
    try:
        return (record if features is None else features[text_field]).decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{where}: byte {error.start:,}: not UTF-8: convert the file, or remove it") from error


def _features(record: bytes) -> dict[str, bytes] | None:
    """Returns the features of bytes in a `tf.train.Example`, joined; None if the record is none."""
    example = _example()()
    try:
        example.ParseFromString(record)
    except DecodeError:
        return None
    features = example.features.feature
    return {each.key.decode(errors="replace"): b"".join(each.value.bytes_list.value) for each in features} or None


@cache
def _example() -> type[Any]:
    return message_class("shardtui.example", EXAMPLE, "Example")
