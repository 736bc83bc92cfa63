"""Turns text into tokens: a `tokenizer.json` of Hugging Face's `tokenizers`, or bytes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.directories import expanded
from ..base.untrusted import read_bytes, refusing
from ..base.user_error import UserError

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>", "</s>", "<eos>", "[SEP]")
"""Tokens that end a document: of GPT-2, Llama 3, DeepSeek, Llama 2, Gemma and BERT."""
BYTES = 256
"""Byte values. 0, which text does not have, ends a document."""


@dataclass(frozen=True)
class Tokenizer:
    vocab: int
    end_of_text: int
    sha256: str | None
    encode: Callable[[str], np.ndarray]
    """Returns the tokens of a text, without special ones."""
    before: tuple[int, ...] = ()
    """The tokens before a document, by the tokenizer's own template."""
    after: tuple[int, ...] = (0,)
    """The tokens after a document; `end_of_text` is the last one."""

    @property
    def dtype(self) -> str:
        return "uint8" if self.vocab <= BYTES else "uint16" if self.vocab <= 1 << 16 else "uint32"


def load_tokenizer(file: str | None, end_of_text: str | None = None) -> Tokenizer:
    """Loads a `tokenizer.json`; None for bytes. Raises UserError."""
    if file is None:
        return Tokenizer(BYTES, 0, None, lambda text: np.frombuffer(text.encode(), np.uint8))
    content = read_bytes(expanded(file), name=f"--tokenizer {file}")
    found = _parse(file, content)
    end = _end_of_text(file, found, end_of_text)
    sha256 = hashlib.sha256(content).hexdigest()

    def encode(text: str) -> np.ndarray:
        with refusing(f"--tokenizer {file}", "cannot tokenize"):
            return np.asarray(found.encode(text, add_special_tokens=False).ids, np.uint32)

    with refusing(f"--tokenizer {file}", "cannot tokenize"):
        before, after = _template(found)
    after = after if after[-1:] == (end,) else (*after, end)
    return Tokenizer(max(found.get_vocab().values()) + 1, end, sha256, encode, before, after)


def _template(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the tokens that the tokenizer's post-processor puts before and after a text."""
    found = tokenizer.encode("a")
    marks = "".join(map(str, found.special_tokens_mask))
    before, after = len(marks) - len(marks.lstrip("1")), len(marks.rstrip("1"))
    return tuple(found.ids[:before]), tuple(found.ids[max(before, after) :])


def _parse(file: str, content: bytes) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError("--tokenizer: needs the package tokenizers: pip install 'shardtui[tokenizer]'") from error
    with refusing(f"--tokenizer {file}", "not a tokenizer.json"):
        found = tokenizers.Tokenizer.from_str(content.decode())
    if not found.get_vocab():
        raise UserError(f"--tokenizer {file}: its vocabulary is empty: give another one")
    found.no_truncation()
    found.no_padding()
    return found


def _end_of_text(file: str, tokenizer: Any, name: str | None) -> int:
    names = END_OF_TEXT if name is None else (name,)
    found = next((found for each in names if (found := tokenizer.token_to_id(each)) is not None), None)
    if found is None:
        raise UserError(
            f"--tokenizer {file}: it has no token {' or '.join(names)}: name the one that ends a document with "
            "--end-of-text TOKEN"
        )
    return found
