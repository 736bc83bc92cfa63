"""How errors are reported. The texts are those that the libraries gave when the faults really happened."""

import errno
import os

import pytest
from jax._src.source_info_util import JaxStackTraceBeforeTransformation
from shardtui.engine.base.advice import advice, first_line, problems_in
from shardtui.engine.base.user_error import UserError


@pytest.mark.parametrize(
    ("text", "meaning", "hint"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 4 bytes.", "out of device memory", "--batch-size"),
        ("MemoryError: std::bad_alloc", "out of memory on this machine", "end other programs"),
        ("LLVM ERROR: Unable to allocate section memory!", "out of memory on this machine", "end other programs"),
        ("Thread x creation via pthread_create() failed.", "on this machine (pthread_create() failed)", "end other"),
        ("RESOURCE_EXHAUSTED: write: No space left on device", "the disk is full", "--checkpoint-dir"),
        ("F0000 rendezvous.cc:161] Termination timeout for `all gather Key`", "did not join it", "splits more"),
        ("OSError: [Errno 28] No space left on device: 'x'", "the disk is full", "--checkpoint-dir"),
        ("OSError: [Errno 30] Read-only file system: 'x'", "the directory cannot be written", "make it writable"),
        ("F0000 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_x=1", "XLA_FLAGS", "unset XLA_FLAGS"),
        ("Fatal Python error: Segmentation fault", "native code crashed", "unset XLA_FLAGS"),
        ("The TPU is already in use by process with pid 77", "accelerator (The TPU is already", "end that"),
        ("Unable to initialize backend 'tpu': no libtpu", "cannot be used", "--platform"),
        ("Please install gcsfs to access Google Storage", "a package that is not installed", "pip install gcsfs"),
    ],
)
def test_known_errors_say_what_happened_and_what_to_do(text: str, meaning: str, hint: str) -> None:
    line = advice(f"some words before\n{text}\nand after")
    assert line and meaning in line.split(": ")[0] and hint in line and "\n" not in line


def test_other_errors_are_reported_by_their_first_line_and_a_request_by_all_its_problems() -> None:
    assert advice("ValueError: axes don't match") is None
    assert problems_in(ValueError("axes don't match\nand many more lines")) == ["ValueError: axes don't match"]
    assert problems_in(KeyError()) == ["KeyError: "]
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert problems_in(one) == ["ValueError: other"], "a cycle of causes ends"
    problems = ["--steps 0: at least 1", "--seed -1: from 0"]
    assert problems_in(UserError(*problems)) == problems


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo", "one"),
        ("\n  \n one  and \t a half\ntwo", "one and a half"),
        ("Mismatch details (1 found):\n\n  - a: [3] != [4]\n  - b", "Mismatch details (1 found): - a: [3] != [4]"),
        ("why:\nbecause:\nof this\nand that", "why: because: of this"),
        ("nothing follows:\n", "nothing follows:"),
        ('a: Traceback (most recent call last):\n  File "lm.py"\n    fail()\nKeyError: 7\n', "a: KeyError: 7"),
        ("", ""),
    ],
)
def test_a_line_that_ends_in_a_colon_is_joined_with_the_next(text: str, line: str) -> None:
    assert first_line(text) == line
    assert problems_in(ValueError(text)) == [f"ValueError: {line}"]


def test_the_innermost_of_chained_errors_is_reported() -> None:
    outer = RuntimeError("the write failed")
    outer.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert problems_in(outer)[0].startswith("the disk is full (No space left on device)")
    handling = RuntimeError("the write failed")
    handling.__context__ = LookupError("no such shard")
    assert problems_in(handling) == ["LookupError: no such shard"], "as it is raised where another is handled"
    handling.__suppress_context__ = True
    assert problems_in(handling) == ["RuntimeError: the write failed"], "as it is raised `from None`"
    outer.__cause__ = JaxStackTraceBeforeTransformation("The preceding stack trace is the source of the JAX operation")
    assert problems_in(outer) == ["RuntimeError: the write failed"], "jax chains a remark, which is innermost"
    outer.args = ("out of memory allocating 4 bytes",)
    assert problems_in(outer)[0].startswith("out of device memory")


class Hostile(BaseException):
    """An exception of a user's code that helps nobody."""

    def __str__(self) -> str:
        raise SystemExit

    @property
    def problems(self) -> list[str]:
        raise GeneratorExit


def test_an_error_is_reported_whatever_its_class_does() -> None:
    assert problems_in(Hostile()) == ["Hostile: without a text, as its str() raises SystemExit"]
    error = ValueError("a\ud800b")
    error.problems = "not a list"  # type: ignore[attr-defined]
    assert problems_in(error) == ["ValueError: a\\ud800b"]
    error.problems = ["a\ud800b", 7]  # type: ignore[attr-defined]
    assert problems_in(error) == ["a\\ud800b", "7"]
    error.__cause__ = Hostile()
    assert problems_in(error.__cause__)[0].startswith("Hostile: ")
