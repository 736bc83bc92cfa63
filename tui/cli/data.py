"""`shardtui data prepare`, and what commands that train prepare first: documents, and text with `--tokenizer`."""

import argparse
from pathlib import Path

import msgspec

from ...engine.base import formatting
from ...engine.base.output import say, show
from ...engine.base.user_error import UserError
from ...engine.spec.config import RunConfig
from ...engine.spec.prepared import (
    COMPRESSED,
    MOST_SKIPPED,
    PrepareAnswer,
    Prepared,
    PrepareRequest,
    form_of,
    is_document,
)
from ..terminal import FAILED, FINE
from ..terminal.clean import json_line
from . import values
from .options import add_json_option, add_text_options

MOST_NAMED = 20


def data_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=["prepare"], help="tokenize documents; a preparation that was killed goes on")
    add("source", metavar="SRC", help="a file or a directory of text, .json, .jsonl, .csv, .parquet or ArrayRecord")
    add("out", metavar="OUT", help="the directory to write, which --data takes")
    add("--tokenizer", type=values.path, metavar="FILE", help="a tokenizer.json; default: bytes")
    add_text_options(parser)
    add_json_option(parser)


def data_command(options: argparse.Namespace) -> int:
    """Prepares data and prints what was written. Raises SystemExit if it fails."""
    found = _prepared(options, values.path(options.source), values.place(options.out, "tokens are")).data
    status = FAILED if found.skipped_share > MOST_SKIPPED else FINE
    if options.json:
        show(json_line(found))
        return status
    tokens, documents = formatting.count(found.tokens), formatting.count(found.documents)
    shards = formatting.counted(len(found.shards), "shard")
    show(f"{tokens} tokens of {documents} documents in {shards}, vocabulary {found.vocab:,}")
    vocab = f" --set vocab={found.vocab} --set vocab_rows={found.vocab_rows}" if found.vocab > 256 else ""
    show(f"train on them: shardtui train --steps 100 --data {options.out}{vocab}")
    return status


def _note_losses(found: Prepared) -> None:
    """Says what was skipped, and whether documents begin with the tokens that a model expects."""
    if found.tokenizer_sha256:
        before = f"tokens {found.begin_of_text}" if found.begin_of_text else "nothing, the tokenizer has no template"
        say(f"before each document: {before}; after it: token {found.end_of_text}")
    records, files = sum(shard.skipped for shard in found.shards), len(found.skipped_files)
    named = [*found.skipped_files, *(problem for shard in found.shards for problem in shard.problems)]
    if named:
        share = f"{100 * found.skipped_share:.2g} % of the data"
        without = f"{formatting.counted(records, 'record')} and {formatting.counted(files, 'file')} without text"
        say(f"skipped {without}, {share}:", *named[:MOST_NAMED])


def tokenized(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    """Returns the config with prepared data in place of `--data` and `--eval-data`, where they have to be prepared.

    Raises UserError if there is a `--tokenizer` but nothing to tokenize, and SystemExit if that fails.
    """
    if not hasattr(options, "tokenizer"):  # the command only accepts --data
        return config
    evaluation, changes, given = config.evaluation, dict[str, object](), options.tokenizer
    if options.data and (given or _has_documents(options.data)):
        changes["data"] = _directory(options, options.data)
    held_out = getattr(options, "eval_data", None)
    if evaluation and held_out and (given or _has_documents(held_out)):
        data = _directory(options, held_out)
        changes["evaluation"] = msgspec.structs.replace(evaluation, data=data)
    if given and not changes:
        raise UserError(f"--tokenizer {given}: there is nothing to tokenize: add --data PATH")
    return msgspec.structs.replace(config, **changes)


def _has_documents(data: str) -> bool:
    """Whether it is a file of documents, or a directory with files of Parquet or ArrayRecord, with compressed files, or
    of JSON and CSV alone."""
    path = Path(data)
    files = [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and is_document(file.relative_to(path))]
    forms = {"compressed" if file.suffix in COMPRESSED else form_of(file.name) for file in files}
    is_alone = bool(forms) and forms <= {"json", "json_lines", "csv"}
    return is_alone or bool(forms & {"parquet", "array_record", "compressed"})


def _directory(options: argparse.Namespace, source: str) -> str:
    """Prepares data of a run. Raises SystemExit if it fails, or skips more than `MOST_SKIPPED` of them."""
    found = _prepared(options, source)
    if found.data.skipped_share > MOST_SKIPPED:
        say(f"{source}: too many to train: correct or remove them, or prepare the rest by shardtui data prepare")
        raise SystemExit(FAILED)
    return found.directory


def _prepared(options: argparse.Namespace, source: str, out: str | None = None) -> PrepareAnswer:
    from ..client.engine_client import ask_engine

    request = PrepareRequest(
        source=source,
        out=out,
        tokenizer=options.tokenizer,
        text_field=options.text_field,
        end_of_text=options.end_of_text,
    )
    (found,) = ask_engine(PrepareAnswer, "prepare", request)
    _note_losses(found.data)
    return found
