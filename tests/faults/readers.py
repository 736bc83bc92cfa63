"""Changed files for every reader: each must be read, or refused by an error that users see, in time and memory."""

import asyncio
import bz2
import contextlib
import faulthandler
import gzip
import hashlib
import io
import json
import logging
import lzma
import random
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pyarrow
import pyarrow.parquet
from etils import epath
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.checkpoint.directory import CheckpointDirectory
from shardtui.engine.checkpoint.manifest import Manifest, file_digests, read_manifest, write_manifest
from shardtui.engine.checkpoint.orbax_checkpoint import describe_checkpoints
from shardtui.engine.data.documents import pieces, sources_of
from shardtui.engine.data.source import read_corpus
from shardtui.engine.data.tokenizer import load_tokenizer
from shardtui.engine.distributed.outcomes import UNSUCCESSFUL
from shardtui.engine.explain.explanation import Explanation
from shardtui.engine.hlo import program_text
from shardtui.engine.hlo.execution_counts import runs
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.work import Works
from shardtui.engine.models.task import Task
from shardtui.engine.profiling.breakdown import read_breakdown
from shardtui.engine.program.placement import place
from shardtui.engine.program.weights import mapped
from shardtui.engine.spec.hf_config import read_config
from shardtui.engine.spec.maxtext_rules import read_maxtext
from shardtui.engine.spec.model_choice import choose_model, model_preset
from shardtui.engine.spec.preset_files import PRESETS, read_toml
from shardtui.engine.spec.preset_reader import read_preset
from shardtui.engine.spec.safetensors import SIZES, stored_tensors
from shardtui.engine.wire.descriptions import CorpusInfo
from shardtui.engine.wire.event_log import LogReader, deciding_events, last_seq
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.cli.explain import _saved
from shardtui.tui.cli.inspect import _inspect_hlo
from shardtui.tui.state.explanation_diff import changes
from tokenizers import Tokenizer, models

from ..conftest import tiny_config
from ..data.test_prepare import TEXTS, example, packed, write_records
from ..oracle.files import write_file, write_files
from ..oracle.tiny import CONFIGS
from ..profiling.test_planes import GPU_TEXT, gpu, tpu
from ..recorded import recorded_run
from ..suite import own_directories
from .mutation import Mutation, bytewise, replaced, restored, structured, textual
from .row import Row

SECONDS = 5.0
BYTES = 2**30
INPUTS = 20
"""Inputs of each reader in the short form."""
YAML = (
    *("!!int ''", "!!float x", "!!bool x", "!!timestamp 9999-99-99", "!!binary é", "&a [*a]", "*b", "? [a]"),
    *("!!python/object:x.y {}", "[" * 2000, "9" * 5000, "0x" + "f" * 5000, "{a: b}", "[[a]]", "null", "1.5"),
)
NASTY = (
    "[mesh]\n" + "".join(f"a{n} = 1\n" for n in range(100)) + "b = -1\n",
    "[mesh]\ndata = -1\n[rules]\nbatch = [" + '"data",' * 1000 + "]\n",
    '[mesh]\ndata = -1\n[overrides]\n"[" = []\n"*" = [' + "[]," * 200 + "]\n",
    '[mesh]\ndata = -1\n[overrides]\n"*" = { spec = ["data"], min_size = ' + "9" * 40 + " }\n",
    '[mesh]\ndata = -1\n[overrides]\n"' + "*a" * 40 + '" = ["data"]\n',
    "[mesh]\ndata = 9223372036854775807\nmodel = 9223372036854775807\n",
    "[mesh]\ndata = -1\nmodel = 0x" + "f" * 4000 + "\n",
    "[mesh]\ndata = -1\n" + "[rules.a" + ".a" * 3000 + "]\n",
    "x = " + "[" * 100_000,
    "[mesh]\n" + "\n".join(f'"{chr(code)}" = 2' for code in (0x202E, 0x1F4A9, 0x200B)),
    "#" * (2**20 + 1),
    "\ufeff[mesh]\ndata = -1\n",
)
"""Invalid presets that mutation does not make."""
DIGITS = b"9" * 5000
NAMES = (b"", b"\0", b"/device:TPU:" + DIGITS, b"/device:GPU:0", b"/host:CPU", b"jit_step(" + DIGITS + b")", DIGITS)
HLO = Path(__file__).parents[1] / "hlo"


class TooLong(BaseException):
    """No reader takes it for an error of its file."""


@dataclass(frozen=True)
class Reader:
    """Something that reads files which others write."""

    name: str
    seeds: list[dict[str, bytes]]
    """Valid files by name, which are changed."""
    read: Callable[[Path], object]
    """Reads a folder with such files."""
    mutations: tuple[Mutation, ...] = (bytewise, structured)
    invalid: tuple[str, ...] = ()
    """Contents of such a file that no mutation makes."""


def run(times: int) -> Iterator[Row]:
    """Tries `times` as many inputs of each reader as the short form."""
    chance = random.Random(times)
    with own_directories() as home, contextlib.ExitStack() as afterwards:
        logging.disable()
        afterwards.callback(logging.disable, logging.NOTSET)
        for reader in chain.from_iterable(make(home / "seeds") for make in MAKERS):
            yield _tried(reader, home / "tried", chance, INPUTS * times)


def _tried(reader: Reader, folder: Path, chance: random.Random, times: int) -> Row:
    outcomes, wrong = Counter[str](), list[str]()
    for seed in reader.seeds:
        restored(folder, seed)
        _read(reader, folder)
    for text in (*reader.invalid, *[None] * times):
        if text is None:
            changed(reader, folder, chance)
        else:
            restored(folder, dict.fromkeys(reader.seeds[0], text.encode()))
        try:
            outcomes[_read(reader, folder)] += 1
        except BaseException as error:
            what = "" if text is None else f" of {text[:80]!r}"
            wrong.append(f"{type(error).__name__}{what}: {' '.join(str(error).split())[:200]}")
            if isinstance(error, KeyboardInterrupt):
                raise
    times += len(reader.invalid)
    note = f"{outcomes['read']:,} read, {outcomes['refused']:,} refused"
    return Row(reader.name, times, times - len(wrong), "; ".join([note, *dict.fromkeys(wrong)]))


def changed(reader: Reader, folder: Path, chance: random.Random) -> None:
    """Writes files of a seed, one of them changed."""
    files = chance.choice(reader.seeds)
    restored(folder, files)
    name = chance.choice(list(files))
    if chance.randrange(40) == 0:
        replaced(chance, folder / name)
        return
    try:
        content = chance.choice(reader.mutations)(chance, files[name])
    except (ValueError, LookupError):  # not the kind of file that this mutation changes
        content = bytewise(chance, files[name])
    (folder / name).write_bytes(content)


def _read(reader: Reader, folder: Path) -> str:
    """Returns `read` or `refused`. Raises what no user should see: any other error, too much time or memory."""
    before, began = _peak(), time.monotonic()
    faulthandler.dump_traceback_later(60, exit=True)
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    outcome = "read"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            reader.read(folder)
    except UNSUCCESSFUL as error:
        outcome = "refused"
        assert str(error).strip(), "an empty message"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    assert time.monotonic() - began < SECONDS, "too long"
    assert _peak() - before < BYTES, "too much memory"
    return outcome


def _too_long(*_: object) -> None:
    raise TooLong(f"more than {SECONDS:g} s")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _made(folder: Path, write: Callable[[Path], object]) -> dict[str, bytes]:
    """Returns the files that `write` writes."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        write(Path(made))
        paths = [path for path in Path(made).rglob("*") if path.is_file()]
        return {str(path.relative_to(made)): path.read_bytes() for path in paths}


def _models(folder: Path) -> Iterator[Reader]:
    tensors = {f"layer.{n}": np.ones((2, n), np.float32) for n in range(1, 4)}
    one = _made(folder, lambda made: write_file(made / "model.safetensors", tensors))
    several = _made(folder, lambda made: write_files(made, tensors))

    def weights(made: Path) -> None:
        for tensor in stored_tensors(made).values():
            if tensor.dtype in SIZES and 0 not in tensor.shape:
                mapped(tensor)

    yield Reader("safetensors", [one], weights, (bytewise, _header))
    yield Reader("safetensors and their index", [several], weights, (bytewise, structured, _header))
    configs = [
        {"config.json": json.dumps(config | {"architectures": [name]}).encode()} for name, config in CONFIGS.items()
    ]
    yield Reader("config.json", configs, read_config, (bytewise, structured, structured, structured))
    yield Reader("config.json of a run", configs, lambda made: choose_model(f"hf:{made}"), (structured,))
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "</s>": 3}, merges=[("a", "b")]))
    seed = {"tokenizer.json": tokenizer.to_str().encode()}
    yield Reader("tokenizer.json", [seed], lambda made: load_tokenizer(str(made / "tokenizer.json")).encode("abab"))


def _header(chance: random.Random, content: bytes) -> bytes:
    """Changes the header of a safetensors file, and its length with it."""
    length = int.from_bytes(content[:8], "little")
    header = structured(chance, content[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _presets(_: Path) -> Iterator[Reader]:
    presets = [{"a.toml": path.read_bytes()} for path in (PRESETS / "parallelism").glob("*.toml")]
    task = Task(tiny_config(), "cpu")
    placed = lambda made: place(task, read_preset(made / "a.toml"), jax.devices())  # noqa: E731
    yield Reader("presets (TOML)", presets, placed, (bytewise, textual, textual), NASTY)
    found = [{"a.toml": path.read_bytes()} for path in (PRESETS / "models").glob("*.toml")]
    model = lambda made: model_preset(read_toml(made / "a.toml"), "a.toml")  # noqa: E731
    yield Reader("models (TOML)", found, model, (bytewise, textual, textual))
    rules = b"mesh_axes: [data]\nlogical_axis_rules: [[embed, [data]], [mlp, data]]\nici_data_parallelism: -1\n"
    read = lambda made: read_maxtext(made / "a.yml", "a", {})  # noqa: E731
    yield Reader("MaxText's rules (YAML)", [{"a.yml": rules}], read, (bytewise, textual, _yaml))


def _yaml(chance: random.Random, content: bytes) -> bytes:
    """Puts a value of YAML's own somewhere."""
    lines = content.decode().splitlines()
    at = chance.randrange(len(lines))
    lines[at] = f"{lines[at].partition(':')[0]}: {chance.choice(YAML)}"
    return "\n".join(lines).encode()


def _data(folder: Path) -> Iterator[Reader]:
    texts = TEXTS[:20]

    def documents(made: Path) -> None:
        for part in sources_of(str(made), "text").parts:
            for span in part:
                for _ in pieces(span, "text"):
                    pass

    lines = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()
    array = b"[" + b",".join(lines.splitlines()) + b"]"
    yield Reader("documents (JSON)", [{"a.jsonl": lines}, {"a.json": array}, {"a.json": lines}], documents)
    zipped = [{"a.jsonl": pack(lines)} for pack in (gzip.compress, bz2.compress, lzma.compress, packed)]
    yield Reader("documents (compressed)", zipped, documents, (bytewise,))
    table = pyarrow.table({"n": range(20), "text": texts})
    parquet = _made(folder, lambda made: pyarrow.parquet.write_table(table, made / "a.parquet", row_group_size=7))
    yield Reader("documents (Parquet)", [parquet], documents, (bytewise,))
    records = _made(folder, lambda made: write_records(made / "a.array_record", [text.encode() for text in texts]))
    examples = _made(folder, lambda made: write_records(made / "a.array_record", list(map(example, texts))))
    yield Reader("documents (ArrayRecord)", [records, examples], documents, (bytewise,))
    yield Reader("documents (text)", [{"a.txt": "\n".join(texts).encode()}], documents, (bytewise,))

    def corpus(made: Path) -> None:
        path = next((path for path in made.iterdir() if path.suffix in (".bin", ".npy")), made)
        found = read_corpus(str(made if (made / "data.json").exists() else path))
        found.check_samples(2**16)
        found.read(0, min(100, found.size))
        found.describe()

    tokens = np.arange(100, dtype=np.uint16)
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    array = _made(folder, lambda made: np.save(made / "a.npy", tokens))
    plain, headed = {"a.bin": tokens.tobytes()}, {"a.bin": header.tobytes() + tokens.tobytes()}
    yield Reader("files of tokens", [array, plain, headed], corpus, (bytewise,))
    shard = {"file": "shard-00000.bin", "tokens": 100, "documents": 3, "sha256": "ab" * 32}
    about: dict[str, Any] = {"vocab": 256, "dtype": "uint16", "tokens": 100, "documents": 3, "end_of_text": 0}
    prepared = json.dumps(about | {"tokenizer_sha256": None, "shards": [shard]}).encode()
    yield Reader("prepared data", [{"data.json": prepared, "shard-00000.bin": tokens.tobytes()}], corpus)


def _programs(folder: Path) -> Iterator[Reader]:
    texts = [{"a.hlo": path.read_bytes()} for path in HLO.glob("*.hlo") if path.stat().st_size < 20_000]

    def program(made: Path) -> None:
        _inspect_hlo(str(made / "a.hlo"), {"data": 4, "model": 2}, True, None)
        text = (made / "a.hlo").read_text()
        program_text.read(text, {"data": 4, "model": 2}, [], {"": 1.0})
        module = parse(text)
        works = Works(module, runs(module))
        with contextlib.suppress(ValueError):  # as the reader of a trace has it
            for where, each in module.instructions():
                works.of(where, each)

    yield Reader("compiled programs (HLO)", texts, program, (bytewise, textual, textual))
    trace = lambda made: read_breakdown(made / "host.xplane.pb", {"data": 2})  # noqa: E731
    yield Reader("traces of a TPU", [_made(folder, lambda made: tpu().write(made))], trace, (bytewise, _trace))
    trace = lambda made: read_breakdown(made / "host.xplane.pb", {"model": 2}, GPU_TEXT)  # noqa: E731
    yield Reader("traces of a GPU", [_made(folder, lambda made: gpu().write(made))], trace, (bytewise, _trace))
    found = encode_json(Explanation(program="a.py:f", mesh={"data": 2}, values=[], collectives=[]))

    def explanation(made: Path) -> None:
        saved = _saved(str(made / "a.json"))
        changes(saved, saved)

    yield Reader("saved explanations", [{"a.json": found}], explanation)


def _trace(chance: random.Random, content: bytes) -> bytes:
    """Changes one field of a message, whatever is in it."""
    space = tpu().message
    space.ParseFromString(content)
    message, fields = space, [*space.ListFields()]
    inner: list[Any] = []
    while fields:
        field, value = chance.choice(fields)
        inner = [value] if hasattr(value, "ListFields") else [*value] if hasattr(value, "add") else []
        if not inner or chance.randrange(6) == 0:
            break
        message = chance.choice(inner)
        fields = [*message.ListFields()]
    if not fields or inner:
        message.Clear()
    elif isinstance(value, bytes):
        setattr(message, field.name, chance.choice((*NAMES, bytewise(chance, value), value * 100)))
    else:
        setattr(message, field.name, chance.choice((0, 1, 7, 2**31, 2**62)))
    return space.SerializeToString()


def _runs(folder: Path) -> Iterator[Reader]:
    directory = recorded_run("seed")
    files = {name: (directory.path / name).read_bytes() for name in ("run.json", "events.jsonl")}
    yield Reader("run.json", [{"run.json": files["run.json"]}], lambda made: RunDirectory(made).about)

    def history(made: Path) -> None:
        path = made / "events.jsonl"
        with contextlib.suppress(FileNotFoundError):  # a run that has recorded nothing yet
            list(LogReader(path).read())
            deciding_events(path)
        last_seq(path)

    yield Reader("events.jsonl", [{"events.jsonl": files["events.jsonl"]}], history)
    saved = _made(folder, _checkpoint)
    manifest = {"checkpoint.json": saved["7/checkpoint.json"]}
    yield Reader("manifests", [manifest], lambda made: read_manifest(epath.Path(made)), (bytewise, structured, _sealed))
    found = lambda made: CheckpointDirectory(epath.Path(made)).checked(7)  # noqa: E731
    yield Reader("checkpoint folders", [saved], found, (bytewise, structured, _sealed))
    described = lambda made: [encode_json(each) for each in describe_checkpoints(str(made))]  # noqa: E731
    plain, stored = ocp.PyTreeCheckpointer(use_ocdbt=False, use_zarr3=True), ocp.PyTreeCheckpointer()
    in_files = _made(folder, lambda root: plain.save(root / "20", ARRAYS))
    in_store = _made(folder, lambda root: stored.save(root / "20", ARRAYS))
    msgpack = ocp.aggregate_handlers.MsgpackHandler()
    aggregate = _made(
        folder, lambda root: asyncio.run(msgpack.serialize(epath.Path(root) / "checkpoint", ARRAYS)).result()
    )
    yield Reader("Orbax in files", [in_files, aggregate], described)
    yield Reader("Orbax in OCDBT", [in_store], described)


ARRAYS = {"params": {"a": np.ones((4, 2), np.float32), "b": [np.ones(300), np.int32(7)]}, "name": "x", "none": None}


def _checkpoint(root: Path) -> None:
    folder = epath.Path(root) / "7"
    (folder / "arrays").mkdir(parents=True)
    for name in ("a", "b"):
        (folder / "arrays" / name).write_bytes(name.encode() * 500)
    manifest = Manifest(
        step=7,
        time=0.0,
        preset="dp",
        platform="cpu",
        devices=8,
        loss=None,
        config=tiny_config(),
        corpus=CorpusInfo("text", 1, 1, "ab" * 32),
        digests={"params.a": 1},
        arrays={"params.a": "float32 [2]"},
        files=file_digests(folder),
    )
    write_manifest(manifest, folder)


def _sealed(chance: random.Random, content: bytes) -> bytes:
    """Changes a manifest, and its digest with it."""
    changed = structured(chance, json.dumps(json.loads(content)["manifest"]).encode())
    digest = hashlib.sha256(changed).hexdigest()
    return b'{"sha256":"' + digest.encode() + b'","manifest":' + changed + b"}"


MAKERS = (_models, _presets, _data, _programs, _runs)
