"""`shardtui data prepare`, and `--tokenizer` of the commands that train: tokenizes documents for `--data`."""

import argparse
import subprocess
from pathlib import Path

import msgspec

from ...engine.base import figures
from ...engine.base.invalid import Invalid
from ...engine.spec.config import RunConfig
from ...engine.spec.prepared import PrepareAnswer, PrepareRequest
from ...engine.wire.engine_command import engine_command
from ..terminal.clean import json_line, printable
from ..terminal.exit_codes import FINE


def prepare(options: argparse.Namespace) -> int:
    """Prepares data and prints what was written. Raises SystemExit if it fails."""
    found = _prepared(options, options.source, str(Path(options.out).expanduser().absolute())).data
    if options.json:
        print(json_line(found))
        return FINE
    tokens, documents = figures.count(found.tokens), figures.count(found.documents)
    print(f"{tokens} tokens of {documents} documents in {len(found.shards)} shards, vocabulary {found.vocab:,}")
    vocab = f" --set vocab={found.vocab} --set vocab_rows={found.vocab_rows}" if found.vocab > 256 else ""
    print(printable(f"train on them: shardtui train --steps 100 --data {options.out}{vocab}"))
    return FINE


def tokenized(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    """Returns the config with prepared data in place of `--data` and `--eval-data`, if there is a `--tokenizer`.

    Raises Invalid if there is nothing to tokenize, and SystemExit if that fails.
    """
    if getattr(options, "tokenizer", None) is None:
        return config
    evaluation, changes = config.evaluation, dict[str, object]()
    if options.data:
        changes["data"] = _prepared(options, options.data).directory
    if evaluation and getattr(options, "eval_data", None):
        data = _prepared(options, options.eval_data).directory
        changes["evaluation"] = msgspec.structs.replace(evaluation, data=data)
    if not changes:
        raise Invalid(f"--tokenizer {options.tokenizer}: there is nothing to tokenize: add --data PATH")
    return msgspec.structs.replace(config, **changes)


def _prepared(options: argparse.Namespace, source: str, out: str | None = None) -> PrepareAnswer:
    """Prepares data in a process of its own, whose progress goes to stderr."""
    request = PrepareRequest(
        source=str(Path(source).expanduser().absolute()),
        out=out,
        tokenizer=options.tokenizer and str(Path(options.tokenizer).expanduser().absolute()),
        text_field=options.text_field,
        end_of_text=options.end_of_text,
    )
    command = engine_command("prepare", request)
    run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if run.returncode:
        raise SystemExit(max(run.returncode, 1))
    return msgspec.json.decode(run.stdout, type=PrepareAnswer)
