"""Reads what `shardtui data prepare` wrote."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from ..base.invalid import Invalid
from ..base.regular_file import read_regular
from ..spec.prepared import FILE_NAME, Prepared
from .corpus import Corpus
from .stored_tokens import Shard, StoredTokens


def read_prepared(data: str) -> Corpus:
    """Returns the tokens of a directory of prepared data. Raises Invalid if a shard is missing or damaged."""
    folder = Path(data).expanduser()
    try:
        content = read_regular(folder / FILE_NAME)
        found = msgspec.json.decode(content, type=Prepared)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"--data {folder / FILE_NAME}: cannot be read: {error}: prepare the data again") from error
    dtype = np.dtype(found.dtype)
    problems = list[str]()
    for shard in found.shards:
        path, size = folder / shard.file, shard.tokens * dtype.itemsize
        there = path.stat().st_size if path.is_file() else None
        if there != size:
            state = "missing" if there is None else f"{there:,} bytes, but was written with {size:,}"
            problems.append(f"--data {path}: {state}: prepare the data again")
    if problems or not found.shards:
        raise Invalid(*problems or [f"--data {data}: it has no tokens: prepare the data again"])
    shards = [Shard(folder / shard.file, 0, shard.tokens) for shard in found.shards]
    tokens = StoredTokens(shards, dtype, written=hashlib.sha256(content).hexdigest())
    return Corpus(data, len(shards), tokens, vocab=found.vocab)
