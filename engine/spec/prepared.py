"""The request of `shardtui data prepare`, and `data.json`, which describes the prepared data. No numpy here."""

from pathlib import PurePath
from typing import Literal

from msgspec import Struct

FILE_NAME = "data.json"
"""Describes prepared data. It is written last: without it, the preparation is not complete."""
TOKENIZER = "tokenizer.json"
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
FORMS = {
    ".json": "json",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrayrecord": "array_record",
    ".array_record": "array_record",
}


MOST_SKIPPED = 0.01
"""The share of the documents that may be skipped."""


def form_of(name: str) -> str | None:
    """Returns the form of a file with documents, as `c4.array_record-00000-of-00032` or `a.jsonl.gz`; None for text."""
    path = PurePath(name)
    suffix = PurePath(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
    return FORMS.get(suffix.partition("-")[0])


def is_document(path: PurePath) -> bool:
    """Whether a file of a directory may have documents, by its path inside: READMEs and hidden files have none."""
    return path.name.partition(".")[0].upper() != "README" and not any(part.startswith(".") for part in path.parts)


def rows_of(vocab: int) -> int:
    """Returns the number of rows to suggest for the token embedding: the next multiple of 128."""
    return -(-vocab // 128) * 128


class PrepareRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: str
    out: str | None = None
    """The directory to write; None for one in the cache, named by a digest of the request: a complete one is used."""
    tokenizer: str | None = None
    text_field: str = "text"
    end_of_text: str | None = None
    """The token that ends a document; None for the tokenizer's own, of a known name."""


class PreparedShard(Struct, frozen=True, kw_only=True):
    """A file of tokens."""

    file: str
    """Its name."""
    tokens: int
    """Number of tokens in it."""
    documents: int
    """Number of documents that end in it."""
    sha256: str
    """SHA-256 of its bytes, in hexadecimal."""
    skipped: int = 0
    """Number of records without text that were skipped."""
    problems: list[str] = []
    """The first of them: file, line or record, and why there is no text."""


class Prepared(Struct, frozen=True, kw_only=True):
    """Prepared data, which `--data` takes."""

    schema: int = 1
    """Schema version; increases when a field changes its meaning or is removed."""
    vocab: int
    """Size of the tokenizer's vocabulary; 256 for bytes."""
    dtype: Literal["uint8", "uint16", "uint32"]
    """Type of the tokens in the files, little-endian."""
    tokens: int
    """Number of tokens, those that end documents included."""
    documents: int
    """Number of documents."""
    end_of_text: int
    """The token after each document."""
    begin_of_text: list[int] = []
    """The tokens before each document: those of the tokenizer's own template."""
    tokenizer_sha256: str | None
    """SHA-256 of `tokenizer.json`; null for bytes."""
    shards: list[PreparedShard]
    """The files, in order."""
    skipped_files: list[str] = []
    """The files without text that were skipped, each with the reason."""
    skipped_share: float = 0.0
    """The share of the records, or of the bytes of the sources, that was skipped: the larger one."""

    @property
    def vocab_rows(self) -> int:
        """Rows of a token embedding that covers the vocabulary, as a multiple that most meshes divide."""
        return rows_of(self.vocab)


class PrepareAnswer(Struct, frozen=True, kw_only=True):
    directory: str
    data: Prepared
