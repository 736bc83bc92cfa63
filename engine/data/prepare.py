"""Tokenizes documents with all cores and writes shards of tokens; a killed preparation can go on."""

import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import numpy as np

from ..base.atomic_write import write_atomically, writing
from ..base.directories import cache_directory, expanded
from ..base.encoding import encode_json
from ..base.formatting import count, listed
from ..base.output import note
from ..base.untrusted import read_bytes, read_struct, read_text, refusing
from ..base.user_error import UserError
from ..spec.prepared import FILE_NAME, TOKENIZER, PrepareAnswer, Prepared, PreparedShard, PrepareRequest
from .documents import MOST_NAMED, NO_TEXT, Part, Sources, pieces, sources_of
from .tokenizer import Tokenizer, load_tokenizer

PLAN = "plan"
PROGRESS_SECONDS = 2.0
MOST_WITHOUT_TEXT = 1000
"""Records of a shard without text, if none has one: the field is wrong."""


def prepare(request: PrepareRequest) -> PrepareAnswer:
    """Writes the shards, then `data.json`. Raises UserError; finished shards stay, and the same request goes on."""
    tokenizer = load_tokenizer(request.tokenizer, request.end_of_text)
    with refusing(request.source):
        sources = sources_of(request.source, request.text_field)
        parts, plan = sources.parts, _plan(request, tokenizer, sources)
    if sources.others:
        note(f"no documents: {listed(sources.others, MOST_NAMED)}")
    out = Path(request.out or cache_directory() / "data" / plan / Path(request.source).name)
    if request.out is None and (out / FILE_NAME).exists():
        return PrepareAnswer(directory=str(out), data=read_struct(out / FILE_NAME, Prepared, advice=f"remove {out}"))
    done = _begin(out, plan, len(parts))
    shards = [shard for shard in _shards(request, parts, out, done) if shard.tokens or shard.skipped]
    if not any(shard.tokens for shard in shards):
        problems = [problem for shard in shards for problem in shard.problems]
        raise UserError(*problems[:MOST_NAMED] or [f"{request.source}: {NO_TEXT}"])
    found = Prepared(
        vocab=tokenizer.vocab,
        dtype=tokenizer.dtype,  # type: ignore[arg-type]
        tokens=sum(shard.tokens for shard in shards),
        documents=sum(shard.documents for shard in shards),
        end_of_text=tokenizer.end_of_text,
        begin_of_text=list(tokenizer.before),
        tokenizer_sha256=tokenizer.sha256,
        shards=shards,
        skipped_files=[f"{path}: {why}" for path, why in sources.skipped.items()],
        skipped_share=_skipped_share(sources, shards),
    )
    with writing(str(out)):
        if request.tokenizer:
            write_atomically(out / TOKENIZER, read_bytes(expanded(request.tokenizer)))
        write_atomically(out / FILE_NAME, encode_json(found))
    for path in (out / PLAN, *(_note(out, number) for number in range(len(parts)))):
        path.unlink(missing_ok=True)
    return PrepareAnswer(directory=str(out), data=found)


def _skipped_share(sources: Sources, shards: list[PreparedShard]) -> float:
    skipped = sum(shard.skipped for shard in shards)
    records = skipped + sum(shard.documents for shard in shards)
    return max(skipped / max(1, records), sources.skipped_size / max(1, sources.size))


def _plan(request: PrepareRequest, tokenizer: Tokenizer, sources: Sources) -> str:
    """Returns a digest of the request, the tokenizer, and the names, sizes and modification times of the sources."""
    paths = dict.fromkeys(Path(span.path) for part in sources.parts for span in part)
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    how = (request.text_field, tokenizer.end_of_text, tokenizer.sha256, sources, states)
    return hashlib.sha256(encode_json(how)).hexdigest()


def _begin(out: Path, plan: str, parts: int) -> set[int]:
    """Creates the directory, or finds the same preparation in it. Returns the numbers of finished shards."""
    with writing(str(out)):
        out.mkdir(parents=True, exist_ok=True)
        if not any(out.iterdir()):
            write_atomically(out / PLAN, plan.encode())
        found = read_text(out / PLAN) if (out / PLAN).exists() else ""
    if found != plan:
        what = "another preparation, or one of other files" if found else "other files"
        raise UserError(f"{out}: has {what}: name a new directory, or remove it")
    return {number for number in range(parts) if _note(out, number).exists()}


def _shards(request: PrepareRequest, parts: list[Part], out: Path, done: set[int]) -> Iterator[PreparedShard]:
    if done:
        note(f"{len(done)} of {len(parts)} shards are done already")
    began = reported = time.monotonic()
    tokens = new = 0
    workers = min(len(parts), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker) as pool:
        try:
            for number, shard in enumerate(pool.map(partial(_write, request, out), range(len(parts)), parts)):
                yield shard
                tokens += shard.tokens
                new += 0 if number in done else shard.tokens
                if time.monotonic() - reported > PROGRESS_SECONDS:
                    reported = time.monotonic()
                    rate = f"{count(int(new / (reported - began)))} tokens/s"
                    note(f"{number + 1} of {len(parts)} shards: {count(tokens)} tokens, {rate}")
        except BrokenProcessPool as error:
            raise UserError(
                f"{out}: a process that tokenized was killed, perhaps for lack of memory: run the same command again"
            ) from error
        except UserError:
            pool.shutdown(cancel_futures=True)
            raise


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exits if the parent is killed: a worker would wait for its next part for ever."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _write(request: PrepareRequest, out: Path, number: int, part: Part) -> PreparedShard:
    """Tokenizes a part and writes its shard, then its note; returns the note if there is one."""
    note, path = _note(out, number), out / f"shard-{number:05}.bin"
    if note.exists():
        return read_struct(note, PreparedShard, advice="remove it")
    tokenizer, arrays, documents = load_tokenizer(request.tokenizer, request.end_of_text), list[np.ndarray](), 0
    dtype, skipped, problems = np.dtype(tokenizer.dtype), 0, list[str]()
    before, after = np.array(tokenizer.before, dtype), np.array(tokenizer.after, dtype)
    for span in part:
        for piece in pieces(span, request.text_field):
            if isinstance(piece, UserError):
                skipped += 1
                problems += piece.problems if skipped <= MOST_NAMED else ()
                if skipped > MOST_WITHOUT_TEXT and not documents:
                    raise UserError(*problems)
                continue
            arrays += [before] if piece.begins else []
            arrays.append(tokenizer.encode(piece.text).astype(dtype))
            arrays += [after] if piece.ends else []
            documents += piece.ends
    tokens = np.concatenate(arrays) if arrays else np.empty(0, dtype)
    content = tokens.tobytes()
    shard = PreparedShard(
        file=path.name,
        tokens=tokens.size,
        documents=documents,
        sha256=hashlib.sha256(content).hexdigest(),
        skipped=skipped,
        problems=problems,
    )
    with writing(str(path)):
        write_atomically(path, content)
        write_atomically(note, encode_json(shard))
    return shard


def _note(out: Path, number: int) -> Path:
    return out / f"shard-{number:05}.json"


def prepare_until_interrupted(request: PrepareRequest) -> PrepareAnswer:
    """Prepares data. Ctrl-C ends it at once: what is written stays."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return prepare(request)
