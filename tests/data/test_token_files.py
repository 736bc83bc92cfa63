"""Token files: the forms of nanoGPT, llm.c and NumPy, of any size; damage is named with file and token."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.corpus import Shard, StoredTokens
from shardtui.engine.data.source import read_corpus
from shardtui.engine.training.inputs import text_inputs

from ..conftest import tiny_config, tiny_model

TOKENS = np.random.default_rng(0).integers(0, 300, 5_000, np.uint16)


def llm_c(tokens: np.ndarray, magic: int, version: int) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    return header.tobytes() + tokens.tobytes()


WRITERS: dict[str, Callable[[Path], object]] = {
    "nanogpt.bin": lambda path: TOKENS.tofile(path),
    "gpt2.bin": lambda path: path.write_bytes(llm_c(TOKENS, 20240520, 1)),
    "llama3.bin": lambda path: path.write_bytes(llm_c(TOKENS.astype(np.uint32), 20240801, 7)),
    "uint32.npy": lambda path: np.save(path, TOKENS.astype(np.uint32)),
    "int64.npy": lambda path: np.save(path, TOKENS.astype(np.int64)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_form_has_the_same_batches(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    corpus = read_corpus(str(tmp_path / name))
    assert corpus.describe().tokens == len(TOKENS)
    np.testing.assert_array_equal(corpus.read(0, len(TOKENS)), TOKENS)
    batches = Batches(corpus, 4, 16, 0, vocab=300)
    inputs, targets = batches[7]
    assert inputs.dtype == np.int32
    (start,) = [n for n in range(0, 5_000 - 16, 16) if (TOKENS[n : n + 16] == inputs[0]).all()]
    np.testing.assert_array_equal(targets[0], TOKENS[start + 1 : start + 17])
    np.testing.assert_array_equal(batches.rows(7, range(1, 3))[0], inputs[1:3])


def test_the_files_of_a_pattern_follow_one_another(tmp_path: Path) -> None:
    for number, part in enumerate(np.split(TOKENS, [2_000, 2_001])):
        part.tofile(tmp_path / f"train_{number}.bin")
    (tmp_path / "val.bin").write_bytes(b"??")
    corpus = read_corpus(str(tmp_path / "train_*.bin"))
    assert (corpus.files, corpus.size) == (3, 5_000)
    for begin, end in ((0, 5_000), (1_990, 2_010), (2_000, 2_001), (4_990, 6_000)):
        np.testing.assert_array_equal(corpus.read(begin, end), TOKENS[begin:end])


def test_large_text_is_read_as_if_it_were_joined_in_memory(tmp_path: Path) -> None:
    parts = [b"one", b"two two", b"", b"3"]
    for number, part in enumerate(parts):
        (tmp_path / str(number)).write_bytes(part)
    shards = [Shard(tmp_path / str(number), 0, len(part)) for number, part in enumerate(parts)]
    stored, joined = StoredTokens(shards, np.dtype(np.uint8), b"\n"), b"\n".join(parts)
    assert stored.sha256() == hashlib.sha256(joined).hexdigest()
    for begin in range(len(joined)):
        for end in range(begin, len(joined) + 2):
            assert stored[begin:end].tobytes() == joined[begin:end]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the tokens."""
    TOKENS.tofile(tmp_path / "a.bin")
    return tmp_path / "a.bin"


def test_a_held_out_share_is_split_off_and_the_identity_detects_sizes_order_and_sampled_blocks(path: Path) -> None:
    train, held_out = read_corpus(str(path)).split(0.2)
    assert (train.size, held_out.size) == (4_000, 1_000)
    np.testing.assert_array_equal(held_out.read(0, 1_000), TOKENS[4_000:])

    def identity(tokens: np.ndarray) -> str:
        tokens.tofile(path)
        return read_corpus(str(path)).describe().sha256

    changed = [TOKENS.copy() for _ in range(3)]
    for tokens, index in zip(changed, (0, 2_500, 4_999), strict=True):  # all blocks of a small file are sampled
        tokens[index] ^= 1
    same = [train.describe().sha256, held_out.describe().sha256, identity(TOKENS), *map(identity, changed)]
    assert len({*same, identity(TOKENS[:-1])}) == 7
    assert identity(TOKENS) == same[2]


DAMAGED = {
    "odd.bin": (b"123", "3 bytes are not a number of uint16 tokens: the file is damaged"),
    "empty.bin": (b"", "has no tokens: remove it, or write it again"),
    "header.bin": (llm_c(TOKENS, 20240520, 1)[:1024], "its header says 5,000 tokens, 10,000 bytes, but 0 bytes"),
    "short.bin": (llm_c(TOKENS, 20240520, 1)[:-2], "its header says 5,000 tokens, 10,000 bytes, but 9,998 bytes"),
    "text.npy": (b"no numpy at all", "not a .npy file"),
    "none.bin": (None, "no such file or directory"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named_at_once(tmp_path: Path, name: str) -> None:
    content, says = DAMAGED[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_corpus(str(tmp_path / name), "--eval-data")
    (problem,) = raised.value.problems
    assert problem.startswith(f"--eval-data {tmp_path / name}: ")
    assert says in problem


def test_arrays_that_are_not_tokens_and_files_of_different_types_are_refused(tmp_path: Path, path: Path) -> None:
    for array in (np.zeros(4, np.float32), np.zeros((2, 2), np.uint16), np.zeros(4, ">u2")):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(UserError, match="tokens are one dim of uint16, uint32, int32 or int64"):
            read_corpus(str(tmp_path / "a.npy"))
    (tmp_path / "b.bin").write_bytes(llm_c(TOKENS.astype(np.uint32), 20240801, 7))
    with pytest.raises(UserError, match=r"a\.bin has uint16, b\.bin has uint32: give files of one type"):
        read_corpus(str(tmp_path / "*.bin"))


@pytest.mark.slow
def test_a_token_past_the_vocabulary_is_named_before_the_first_step_or_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    tokens = np.zeros(3_000_000, np.uint16)
    tokens[1_995_000] = 999
    tokens.tofile(path)
    config = tiny_config(data=str(path), model=tiny_model(vocab=300, vocab_rows=300))
    says = f"--data {path}: token 1,995,000 is 999, but the model has a vocabulary of 300: set vocab"
    batches = text_inputs(config).batches  # it is in no sample
    with pytest.raises(UserError, match=says):
        for number in range(3_000_000 // (8 * 16)):
            batches[number]
    with pytest.raises(UserError, match="token 0 is 999"):
        tokens[0] = 999
        tokens.tofile(path)
        text_inputs(config)
    larger = msgspec.structs.replace(config, model=tiny_model(vocab=1_000, vocab_rows=1_000))
    assert text_inputs(larger).batches[0]


def test_a_file_that_is_truncated_while_it_is_used_is_named(path: Path) -> None:
    corpus = read_corpus(str(path), "--eval-data")
    os.truncate(path, 5_000)
    with pytest.raises(UserError, match=r"a\.bin: ends before token 4,000, but had 5,000 when the run started"):
        corpus.read(3_000, 4_000)


HUGE = """
import resource, sys
from msgspec.structs import replace
from shardtui.engine.training.inputs import text_inputs
from shardtui.engine.spec.config import *
from shardtui.engine.spec.model_choice import load_model
preset = load_model("nano")
config = RunConfig(run="a", model_name="nano", model=preset.model, training=preset.training, preset="dp",
    evaluation=EvaluationConfig(share=0.01))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    inputs = text_inputs(replace(config, data=path))
    for number in range(200):
        inputs.batches[number * 10_000], inputs.held_out[number]
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, inputs.batches.full_batches)
"""


@pytest.mark.core
def test_a_hundred_gigabytes_cost_little_memory(tmp_path: Path) -> None:
    tokens, text = tmp_path / "a.bin", tmp_path / "a.txt"
    tokens.write_bytes(b"\1\0")
    text.write_bytes(b"a" * (1 << 16))  # a file with a NUL byte there is not text
    for path in (tokens, text):
        os.truncate(path, 100 * 10**9)
    command = [sys.executable, "-c", HUGE, str(tokens), str(text)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    for line in run.stdout.splitlines():
        grown, batches = map(int, line.split())
        assert grown < 50_000_000
        assert batches > 20_000_000
    assert len(run.stdout.splitlines()) == 2
