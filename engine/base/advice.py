"""Known failures: their meaning, and what to do about them.

Failures are recognised by their text: libraries raise the same failure in many types, and an engine that died leaves
only its log.
"""

import re
from collections.abc import Iterable

from .encoding import encodable
from .processes import last_line

KNOWN = (  # order matters: TensorStore calls a full disk RESOURCE_EXHAUSTED, too, so the system's messages come first
    (
        r"std::bad_alloc|MemoryError|Cannot allocate memory|LLVM ERROR: [^\n]*allocate[^\n]*|LLVM ERROR: out of memory"
        r"|pthread_create\(\) failed|can't start new thread",
        "out of memory on this machine",
        "choose a smaller model or --batch-size, or end other programs",
    ),
    (
        r"No space left on device|ENOSPC|[Dd]isk quota exceeded|File too large",
        "the disk is full",
        "free some space, or keep checkpoints elsewhere with --checkpoint-dir",
    ),
    (
        r"Read-only file system|Permission denied|Not a directory|PERMISSION_DENIED",
        "the directory cannot be written",
        "make it writable, or keep checkpoints elsewhere with --checkpoint-dir",
    ),
    (
        r"RESOURCE_EXHAUSTED|Out of memory allocating|out of memory",
        "out of device memory",
        "choose a preset that splits more, such as fsdp, a smaller --batch-size, or --set remat=auto",
    ),
    (
        r"Termination timeout for `[\w -]+",
        "a collective timed out because a device did not join it",
        "the device may have run out of memory: resume with a preset that splits more, such as fsdp, "
        "or end other programs",
    ),
    (
        r"Unknown flags? in XLA_FLAGS:?[^\n]*",
        "XLA_FLAGS contains a flag that this jaxlib does not know",
        "correct it or unset XLA_FLAGS",
    ),
    (
        r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction|Floating.point exception)",
        "native code crashed",
        "try again; if it crashes again, unset XLA_FLAGS if it is set, and report the stack that was printed",
    ),
    (
        r"already in use by process with pid \d+|The TPU is already in use[^\n]*",
        "another process is using the accelerator",
        "end that process, or choose --platform cpu",
    ),
    (
        r"Unable to initialize backend '\w+'[^\n]*",
        "the requested accelerator cannot be used",
        "install its plugin with the extra `tpu` or `gpu`, or choose another --platform",
    ),
    (
        r"Please install gcsfs[^\n]*",
        "this path needs a package that is not installed",
        "pip install gcsfs, or give a directory on this machine",
    ),
)
"""Known failures: (pattern of the text, what it means, what to do). The first pattern that matches wins."""
TRACEBACK = "Traceback (most recent call last):"
REMARKS = ("JaxStackTraceBeforeTransformation", "UnfilteredStackTrace", "SimplifiedTraceback")
"""Classes that jax chains to an error to show another traceback: they are no cause."""
MAX_TEXT, MAX_LINE = 100_000, 400
"""Characters of an error that are read, and of a line that are shown: compilers quote whole programs."""


def advice(text: str) -> str | None:
    """Returns `meaning (the matching words): what to do`; None for an unknown failure."""
    for pattern, meaning, hint in KNOWN:
        if found := re.search(pattern, text):
            return f"{meaning} ({found.group().strip()}): {hint}"
    return None


def last_words(printed: Iterable[str]) -> str:
    """Returns what the lines of a process that crashed say: what its failure means and what to do, if it is known."""
    line = last_line(printed)
    return advice(line) or line[:MAX_LINE]


def problems_in(error: BaseException) -> list[str]:
    """Returns one line per problem of an error, whatever its class does. The innermost of chained errors counts."""
    try:
        problems = getattr(error, "problems", None)
        if isinstance(problems, list | tuple) and problems:  # UserError and the like bring their own lines
            return [encodable(str(problem)) for problem in problems]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        chain = _chain(error)
    except BaseException:  # it is an attribute of a user's class
        chain = [error]
    known = filter(None, (advice(f"{type(link).__name__}: {text_of(link)}") for link in reversed(chain)))
    return [next(known, None) or error_line(chain[-1])]


def _chain(error: BaseException) -> list[BaseException]:
    """Returns the error and its causes as a traceback shows them, the innermost last: none `from None`."""
    chain = [error]
    while (inner := _cause(chain[-1])) is not None and inner not in chain:
        chain.append(inner)
    return [error, *(link for link in chain[1:] if type(link).__name__ not in REMARKS)]


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ if error.__suppress_context__ else error.__context__


def error_line(error: BaseException) -> str:
    """Returns `ValueError: message`, on one line."""
    return f"{type(error).__name__}: {first_line(text_of(error))}"


def text_of(error: BaseException) -> str:
    """Returns `str(error)` as far as a user's class provides it, in characters that can be encoded."""
    try:
        return encodable(str(error)[:MAX_TEXT])
    except BaseException as other:
        return f"without a text, as its str() raises {type(other).__name__}"


def first_line(text: str) -> str:
    """Returns the first line of `text`, joined with the next while the result ends in a colon. A traceback in it is
    replaced by its last line, the error."""
    head, traceback, rest = text.partition(TRACEBACK)
    joined = ""
    for line in (head + (rest.strip().rpartition("\n")[2] if traceback else "")).splitlines():
        joined = " ".join(f"{joined} {line}".split())
        if joined and not joined.endswith(":"):
            break
    return joined
