"""`data prepare`: the tokens of documents, in order, however many processes; what is skipped is counted and named."""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from shardtui.engine.base.formatting import count, counted
from shardtui.engine.base.processes import children
from shardtui.engine.base.user_error import UserError
from shardtui.engine.data import documents, prepare, record_files
from shardtui.engine.data.source import read_corpus
from shardtui.engine.spec.prepared import Prepared, PrepareRequest
from shardtui.engine.training.inputs import text_inputs
from shardtui.engine.wire.engine_command import engine_command
from shardtui.tui.cli.main import _parser, main
from shardtui.tui.cli.run_config import new_config
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from ..conftest import SHARDTUI, tiny_config, tiny_model
from ..processes import awaited, is_alive
from ..schemas import checked

TEXTS = [f"Text {n}: what is split\ncomes together, élan {n * n}.\n" for n in range(400)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-pair tokenizer of 400 tokens, trained on the texts."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    found.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    found.save(str(path))
    return path


def write(folder: Path, form: str) -> Path:
    path = folder / f"source.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS))
    elif form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"n": range(400), "text": TEXTS}), path, row_group_size=150)
    elif form == "array_record":
        write_records(path, [text.encode() for text in TEXTS])
    elif form == "examples":
        path = folder / "source.array_record-00000-of-00001"
        write_records(path, [example(text) for text in TEXTS])
    else:
        path.mkdir()
        for number, text in enumerate(TEXTS):
            (path / f"{number:03}.txt").write_text(text)
    return path


def write_records(path: Path, records: list[bytes]) -> None:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def example(text: str) -> bytes:
    """A `tf.train.Example` with two features."""
    found = record_files._example()()
    for name, value in (("id", b"1"), ("text", text.encode())):
        found.features.feature.add(key=name.encode()).value.bytes_list.value.append(value)
    return found.SerializeToString()


def request(source: Path, out: Path, **changes: object) -> PrepareRequest:
    return PrepareRequest(source=str(source), out=str(out), **changes)  # type: ignore[arg-type]


def prepared(source: Path, out: Path, **changes: object) -> Prepared:
    return prepare.prepare(request(source, out, **changes)).data


def tokens_in(out: Path) -> np.ndarray:
    corpus = read_corpus(str(out))
    return corpus.read(0, corpus.size)


@pytest.mark.parametrize("form", ["directory", "jsonl", "parquet", "array_record", "examples"])
def test_every_form_has_the_tokens_of_its_documents_in_order(
    tmp_path: Path, tokenizer: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PART_BYTES", 7_001)
    out = tmp_path / "out"
    found = prepared(write(tmp_path, form), out, tokenizer=str(tokenizer))
    encoder = Tokenizer.from_file(str(tokenizer))
    expected = [token for text in TEXTS for token in [*encoder.encode(text).ids, found.end_of_text]]
    assert tokens_in(out).tolist() == expected
    assert (found.vocab, found.dtype, found.documents, found.tokens) == (400, "uint16", 400, len(expected))
    assert len(found.shards) > 1
    names = ["data.json", *(shard.file for shard in found.shards), "tokenizer.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "tokenizer.json").read_bytes() == tokenizer.read_bytes()


def test_one_text_is_one_document_however_it_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PART_BYTES", 1_000)
    monkeypatch.setattr(documents, "PIECE_BYTES", 300)
    (tmp_path / "text.txt").write_text("".join(TEXTS))
    spans = [span for part in documents.sources_of(str(tmp_path / "text.txt"), "text").parts for span in part]
    read = [piece for span in spans for piece in documents.pieces(span, "text") if isinstance(piece, documents.Piece)]
    assert "".join(piece.text for piece in read) == "".join(TEXTS)
    ends = [(piece.begins, piece.ends) for piece in read]
    assert (len(spans) > 10, ends) == (True, [(True, False), *[(False, False)] * (len(read) - 2), (False, True)])
    found = prepared(tmp_path / "text.txt", tmp_path / "out")
    assert (found.documents, found.dtype, found.end_of_text) == (1, "uint8", 0)
    assert tokens_in(tmp_path / "out").tobytes() == "".join(TEXTS).encode() + b"\0"


def test_a_killed_preparation_ends_the_same(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One shard is lost, as if the processes had been killed before it was written."""
    monkeypatch.setattr(documents, "PART_BYTES", 7_001)
    source, out, more = write(tmp_path, "jsonl"), tmp_path / "out", {"tokenizer": str(tokenizer)}
    asked = request(source, out, **more)
    out.mkdir()
    sources = documents.sources_of(asked.source, "text")
    plan, parts = prepare._plan(asked, prepare.load_tokenizer(asked.tokenizer), sources), sources.parts
    assert prepare._begin(out, plan, len(parts)) == set()
    first = prepare._write(asked, out, 0, parts[0])
    assert prepare._begin(out, plan, len(parts)) == {0}
    written = (out / first.file).stat().st_mtime_ns
    monkeypatch.setattr(prepare, "PROGRESS_SECONDS", 0.0)
    found = prepared(source, out, **more)
    assert f"1 of {len(parts)} shards: {count(first.tokens)} tokens, 0 tokens/s" in capsys.readouterr().err
    assert found.shards[0] == first
    assert (out / first.file).stat().st_mtime_ns == written
    assert prepared(source, tmp_path / "again", **more) == found
    with pytest.raises(UserError, match="out: has other files: name a new directory, or remove it"):
        prepared(source, out, **more)


def test_the_processes_of_a_killed_preparation_end(tmp_path: Path) -> None:
    source = tmp_path / "source.txt"
    with source.open("wb") as file:
        for _ in range(170):
            file.write((b"x" * 79 + b"\n") * 10_000)
    command = engine_command("prepare", request(source, tmp_path / "out"))
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as engine:
        awaited(lambda: len(children(engine.pid)) > 1, is_over=lambda: engine.poll() is not None)
        started = children(engine.pid)
        engine.send_signal(signal.SIGKILL)
    awaited(lambda: not any(map(is_alive, started)))
    assert prepared(source, tmp_path / "out").tokens == 170 * 800_000 + 1


def packed(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


LINES = b'{"text": "one"}\n{"text": "two"}\n'


CONTENT: list[tuple[str, bytes, list[str]]] = [
    ("jsonl.gz", gzip.compress(LINES, mtime=0) + gzip.compress(LINES, mtime=0), ["one", "two"] * 2),
    ("jsonl", gzip.compress(LINES, mtime=0), ["one", "two"]),
    ("jsonl.gz", LINES, ["one", "two"]),
    ("json.bz2", bz2.compress(LINES), ["one", "two"]),
    ("jsonl.xz", lzma.compress(LINES), ["one", "two"]),
    ("jsonl.zst", packed(LINES) * 2, ["one", "two"] * 2),
    ("txt.gz", gzip.compress(b"one\n" * 3, mtime=0), ["one\n" * 3]),
    ("json", LINES, ["one", "two"]),
    ("json", b'[{"text": "one"}, {"text": "two"}]', ["one", "two"]),
    ("json", b'{\n  "text": "one"\n}\n', ["one"]),
    ("csv", b'\xef\xbb\xbfid,text\r\n1,"one, ""1""\ntwo"\r\n\r\n2,\r\n', ['one, "1"\ntwo', ""]),
    ("tsv.gz", gzip.compress(b"text\tid\none, two\t1\n", mtime=0), ["one, two"]),
    ("json.gz", gzip.compress(b'[\n{"text": "one"}]', mtime=0), ["one"]),
    ("jsonl", b'\xef\xbb\xbf{"text": "one"}\r\n\r\n{"text": ""}\r\n', ["one", ""]),
    ("txt", b"\xef\xbb\xbfone", ["one"]),
]


def test_files_are_read_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, (form, content, _) in enumerate(CONTENT):
        (tmp_path / f"in/{number:02}.{form}").write_bytes(content)
    found = prepared(tmp_path / "in", tmp_path / "out")
    expected = [text for *_, texts in CONTENT for text in texts]
    assert tokens_in(tmp_path / "out").tobytes().decode().split("\0")[:-1] == expected
    assert (found.documents, found.skipped_share, found.skipped_files) == (len(expected), 0.0, [])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"[1]\n", "a.jsonl: line 1: no text in text: it is no object"),
        ("a.jsonl", b'{"body": "b"}\n' * 5000, "a.jsonl: line 1: no text in text: its fields are body"),
        ("a.json", b'{"rows": [{"text": "a"}]}', "a.json: line 1: no text in text: its fields are rows"),
        ("a.json", b'[{"text": "a"},\n', "a.json: cannot be read: Input data was truncated"),
        ("a.jsonl", '{"text": "a"}'.encode("utf-16"), "a.jsonl: not UTF-8 text, it has a NUL byte"),
        ("a.csv", b"id,body\n1,one\n", "a.csv: it has no column text: choose --text-field from id, body"),
        ("a.csv", b"id,text\n1\n", "a.csv: line 2: 1 columns instead of 2"),
        ("a.csv", b'text\none\n"two\n', "a.csv: line 3: not CSV: unexpected end of data"),
        ("a.txt", b"good\n" * 10 + b"\xff\n", "a.txt: byte 50: not UTF-8"),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)[:-9], "a.jsonl.gz: cannot be read: Compressed file ended before"),
        ("a.jsonl.zst", packed(LINES)[:-5], "a.jsonl.zst: cannot be read: Truncated compressed stream"),
        ("a.tar.gz", gzip.compress(b"a.txt\0\0", mtime=0), "a.tar.gz: not UTF-8 text, it has a NUL byte"),
        ("a.zip", b"PK\3\4", "a.zip: a ZIP archive: unpack it"),
        ("a.jsonl.lz4", b"\x04\x22\x4d\x18", "a.jsonl.lz4: compressed by LZ4: decompress it"),
        ("a.parquet", b"PAR1 and no more", "a.parquet: not a Parquet file, or damaged"),
        ("a.arrayrecord", b"no record", "a.arrayrecord: not an ArrayRecord file, or truncated"),
        ("a.bin", b"\0\0", "there is no text in it"),
    ],
)
def test_what_has_no_text_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        prepared(tmp_path / name, tmp_path / "out")
    assert says in raised.value.problems[0]
    assert not (tmp_path / "out" / "data.json").exists()


def test_skipped_records_and_files_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PART_BYTES", 40)
    (folder := tmp_path / "in").mkdir()
    (folder / "a.jsonl").write_bytes(LINES + b'{"text": null}\n\n{"text": \n{"text": "caf\xe9"}\n{"text": "\\ud83d"}\n')
    (folder / "image.png").write_bytes(b"\x89PNG\0\0")
    (folder / "README.md").write_text("# Card")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core]")
    dictionary = pyarrow.array(["one", None, "one"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": dictionary}), folder / "b.parquet")
    found = prepared(folder, tmp_path / "out")
    problems = [problem.removeprefix(f"{folder}/") for shard in found.shards for problem in shard.problems]
    assert [problem.rpartition(": correct")[0] for problem in problems[:4]] == [
        "a.jsonl: line 3: text is null",
        "a.jsonl: line 5: not JSON: Input data was truncated",
        "a.jsonl: line 6: not JSON: 'utf-8' codec can't decode byte 0xe9 in position 3: unexpected end of data",
        "a.jsonl: line 7: not JSON: Input data was truncated",
    ]
    assert problems[4:] == ["b.parquet: row 1 of row group 0: text is null"]
    assert (found.documents, sum(shard.skipped for shard in found.shards), found.skipped_share) == (4, 5, 5 / 9)
    assert found.skipped_files == [f"{folder}/image.png: not text, it has a NUL byte"]
    assert capsys.readouterr().err.startswith("no documents: .git/config, README.md\n"), "a slow one says how far it is"


def test_skipped_files_and_records_are_named_whatever_their_name(tmp_path: Path) -> None:
    (folder := tmp_path / "in").mkdir()
    (folder / "caf\udce9.jsonl").write_bytes(LINES + b"{}\n")
    (folder / "caf\udce9.png").write_bytes(b"\x89PNG\0\0")
    prepared(folder, tmp_path / "out")
    written = msgspec.json.decode((tmp_path / "out" / "data.json").read_bytes(), type=Prepared)
    assert written.skipped_files == [f"{folder}/caf\\udce9.png: not text, it has a NUL byte"]
    assert written.shards[0].problems[0].startswith(f"{folder}/caf\\udce9.jsonl: line 3: ")


@pytest.mark.parametrize(("skipped", "status"), [(1, 0), (3, 1)])
def test_a_share_of_skipped_records_above_1_percent_is_a_failure(
    tmp_path: Path, skipped: int, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (source := tmp_path / "a.jsonl").write_bytes(LINES * 100 + b"{}\n" * skipped)
    assert main(["data", "prepare", str(source), str(tmp_path / "out")]) == status
    says = capsys.readouterr().err
    without = f"skipped {counted(skipped, 'record')} and 0 files without text"
    assert f"{without}, {skipped / (2 + skipped / 100):.2g} % of" in says
    assert f"{source}: line 201: no text in text: its fields are" in says
    options = _parser("train").parse_args(["train", "--steps=1", f"--data={source}"])
    with pytest.raises(SystemExit) if status else contextlib.nullcontext():
        assert new_config(options).data


def test_the_template_of_the_tokenizer_is_applied_to_each_document(tmp_path: Path, tokenizer: Path) -> None:
    found = Tokenizer.from_file(str(tokenizer))
    found.add_special_tokens(["<bos>", "<sep>"])
    source = write(tmp_path, "jsonl")
    for template, after in (("<bos> $A", []), ("<bos> $A <sep>", [401]), ("<bos> $A <|endoftext|>", [])):
        special = [(name, found.token_to_id(name)) for name in ("<bos>", "<sep>", "<|endoftext|>")]
        found.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
        found.save(str(tmp_path / "tokenizer.json"))
        out = tmp_path / template
        data = prepared(source, out, tokenizer=str(tmp_path / "tokenizer.json"))
        texts = [found.encode(text, add_special_tokens=False).ids for text in TEXTS]
        expected = [token for text in texts for token in [400, *text, *after, data.end_of_text]]
        assert (data.begin_of_text, tokens_in(out).tolist()) == ([400], expected)


def test_a_column_that_lacks_and_a_damaged_record_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, "parquet")
    with pytest.raises(UserError, match=r"it has no column body: choose --text-field from n, text"):
        prepared(source, tmp_path / "out", text_field="body")
    with pytest.raises(UserError, match="column n has int64, not text"):
        prepared(source, tmp_path / "out", text_field="n")
    assert not (tmp_path / "out").exists()
    source = write(tmp_path, "array_record")
    content = bytearray(source.read_bytes())
    at = content.index(TEXTS[123].encode()[:20])
    content[at] ^= 1
    source.write_bytes(content)
    found = prepared(source, tmp_path / "out")
    assert (found.documents, found.skipped_share) == (399, 1 / 400)
    assert "source.array_record: record 123: damaged" in found.shards[0].problems[0]
    (tmp_path / "examples").mkdir()
    with pytest.raises(UserError, match=r"record 0: no text in body: its features are id, text: set --text-field"):
        prepared(write(tmp_path / "examples", "examples"), tmp_path / "other", text_field="body")


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    source = write(tmp_path, "jsonl")
    (tmp_path / "not.json").write_text("{}")
    for file, end, says in (
        (tmp_path / "not.json", None, "not a tokenizer.json"),
        (tmp_path / "none.json", None, "cannot be read: No such file"),
        (tokenizer, "<end>", "it has no token <end>: name the one that ends a document with --end-of-text"),
    ):
        with pytest.raises(UserError, match=says):
            prepared(source, tmp_path / "out", tokenizer=str(file), end_of_text=end)
    assert not (tmp_path / "out").exists()


def test_a_run_trains_on_prepared_data_of_a_vocabulary_that_fits(tmp_path: Path, tokenizer: Path) -> None:
    command = [*SHARDTUI, "data", "prepare", str(write(tmp_path, "jsonl")), str(tmp_path / "out")]
    run = subprocess.run([*command, f"--tokenizer={tokenizer}", "--json"], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    found = msgspec.convert(checked("prepare", run.stdout), Prepared)
    config = tiny_config(data=str(tmp_path / "out"), model=tiny_model(vocab=400, vocab_rows=512))
    assert 256 < int(np.max(text_inputs(config).batches[0])) < 400
    small = msgspec.structs.replace(config, model=tiny_model())
    says = "its tokenizer has 400 tokens, but the model has a vocabulary of 256: add --set vocab=400 --set vocab_rows"
    with pytest.raises(UserError, match=says):
        text_inputs(small)
    shard = tmp_path / "out" / found.shards[0].file
    os.truncate(shard, 100)
    with pytest.raises(UserError, match=r"shard-00000\.bin: 100 bytes, but was written with"):
        text_inputs(config)
    shard.unlink()
    with pytest.raises(UserError, match=r"shard-00000\.bin: missing"):
        text_inputs(config)


def test_the_data_of_a_run_are_tokenized_once(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = write(tmp_path, "jsonl")
    given = ["train", "--steps=1", f"--data={source}", f"--eval-data={source}", f"--tokenizer={tokenizer}"]
    options = _parser("train").parse_args([*given, "--set=vocab=400", "--set=vocab_rows=512"])
    config = new_config(options)
    assert config.data and config.evaluation and config.evaluation.data == config.data
    assert Path(config.data).name == source.name, "the UI says the name"
    written = (Path(config.data) / "data.json").stat().st_mtime_ns
    assert new_config(options).data == config.data
    assert (Path(config.data) / "data.json").stat().st_mtime_ns == written
    assert text_inputs(config).held_out
    source.write_text(source.read_text() * 2)
    assert new_config(options).data != config.data
    options.tokenizer = None
    assert (Path(new_config(options).data or "") / "tokenizer.json").exists() is False
    assert text_inputs(msgspec.structs.replace(new_config(options), model=tiny_model())).batches[0][0].max() < 256
    options.tokenizer, options.data, options.eval_data = str(tokenizer), None, None
    with pytest.raises(UserError, match="there is nothing to tokenize: add --data PATH"):
        new_config(options)


@pytest.mark.parametrize("command", [["inspect"], ["lint"], ["why", "mlp"], ["presets"]])
def test_commands_that_do_not_train_prepare_no_data(tmp_path: Path, command: list[str]) -> None:
    source = write(tmp_path, "jsonl")
    assert new_config(_parser(command[0]).parse_args([*command, f"--data={source}"])).data == str(source)
