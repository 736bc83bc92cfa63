"""`shardtui data prepare`, and what commands that train prepare first: documents, and text with `--tokenizer`."""

import argparse
from pathlib import Path

import msgspec

from ...engine.base import formatting
from ...engine.base.output import show
from ...engine.base.user_error import UserError
from ...engine.spec.config import RunConfig
from ...engine.spec.prepared import PrepareAnswer, PrepareRequest, form_of
from ..terminal import FINE
from ..terminal.clean import json_line
from .options import add_json_option, add_text_options


def data_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=["prepare"], help="tokenize documents; a preparation that was killed goes on")
    add("source", metavar="SRC", help="a file or a directory of text, .jsonl or .parquet files")
    add("out", metavar="OUT", help="the directory to write, which --data takes")
    add("--tokenizer", metavar="FILE", help="a tokenizer.json; default: bytes")
    add_text_options(parser)
    add_json_option(parser)


def data_command(options: argparse.Namespace) -> int:
    """Prepares data and prints what was written. Raises SystemExit if it fails."""
    found = _prepared(options, options.source, str(Path(options.out).expanduser().absolute())).data
    if options.json:
        show(json_line(found))
        return FINE
    tokens, documents = formatting.count(found.tokens), formatting.count(found.documents)
    show(f"{tokens} tokens of {documents} documents in {len(found.shards)} shards, vocabulary {found.vocab:,}")
    vocab = f" --set vocab={found.vocab} --set vocab_rows={found.vocab_rows}" if found.vocab > 256 else ""
    show(f"train on them: shardtui train --steps 100 --data {options.out}{vocab}")
    return FINE


def tokenized(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    """Returns the config with prepared data in place of `--data` and `--eval-data`, where they have to be prepared.

    Raises UserError if there is a `--tokenizer` but nothing to tokenize, and SystemExit if that fails.
    """
    evaluation, changes = config.evaluation, dict[str, object]()
    given = getattr(options, "tokenizer", None)
    if options.data and (given or _has_documents(options.data)):
        changes["data"] = _prepared(options, options.data).directory
    held_out = getattr(options, "eval_data", None)
    if evaluation and held_out and (given or _has_documents(held_out)):
        data = _prepared(options, held_out).directory
        changes["evaluation"] = msgspec.structs.replace(evaluation, data=data)
    if given and not changes:
        raise UserError(f"--tokenizer {given}: there is nothing to tokenize: add --data PATH")
    return msgspec.structs.replace(config, **changes)


def _has_documents(data: str) -> bool:
    """Whether it is a file of documents, or a directory with files of Parquet or ArrayRecord, or JSON lines alone."""
    path = Path(data).expanduser()
    if path.is_file():
        return form_of(path.name) is not None
    forms = {form_of(file.name) for file in path.rglob("*") if file.is_file()}
    return bool(forms & {"parquet", "array_record"}) or forms == {"json_lines"}


def _prepared(options: argparse.Namespace, source: str, out: str | None = None) -> PrepareAnswer:
    from ..client.engine_client import ask_engine

    request = PrepareRequest(
        source=str(Path(source).expanduser().absolute()),
        out=out,
        tokenizer=options.tokenizer and str(Path(options.tokenizer).expanduser().absolute()),
        text_field=options.text_field,
        end_of_text=options.end_of_text,
    )
    return msgspec.json.decode(ask_engine("prepare", request), type=PrepareAnswer)
