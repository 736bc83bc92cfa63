"""What known failures mean and what to do about them. Told by text: libraries raise the same in many types, and of an
engine that died its log is all there is."""

import re

KNOWN = (  # TensorStore calls a full disk RESOURCE_EXHAUSTED, too: what the system says comes before
    (
        r"std::bad_alloc|MemoryError|Cannot allocate memory|LLVM ERROR: [^\n]*allocate[^\n]*|LLVM ERROR: out of memory",
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
        "choose a preset that splits more, such as fsdp, a smaller --batch-size, or --set remat=true",
    ),
    (
        r"Termination timeout for `[\w -]+",
        "devices waited for each other in vain",
        "one may have run out of memory: go on under a preset that splits more, such as fsdp, or end other programs",
    ),
    (
        r"Unknown flags? in XLA_FLAGS:?[^\n]*",
        "XLA_FLAGS holds a flag that this jaxlib does not know",
        "correct it or unset XLA_FLAGS",
    ),
    (
        r"already in use by process with pid \d+|The TPU is already in use[^\n]*",
        "another process holds the accelerator",
        "end that process, or choose --platform cpu",
    ),
    (
        r"Unable to initialize backend '\w+'[^\n]*",
        "the accelerator asked for cannot be used",
        "install its plugin with the extra tpu or gpu, or choose another --platform",
    ),
    (
        r"Please install gcsfs[^\n]*",
        "this path needs a package that is not installed",
        "pip install gcsfs, or give a directory of this machine",
    ),
)

TRACEBACK = "Traceback (most recent call last):"


def advice(text: str) -> str | None:
    """`what it is (the words that say so): what to do`; None where nothing of it is known."""
    for pattern, what, way_out in KNOWN:
        if found := re.search(pattern, text):
            return f"{what} ({found.group().strip()}): {way_out}"
    return None


def problems_in(error: BaseException) -> list[str]:
    """One line each. Of an error that wraps others, the innermost says what happened."""
    if problems := getattr(error, "problems", ()):  # of an error of ours
        return list(problems)
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)
    told = next((told for link in reversed(chain) if (told := advice(f"{type(link).__name__}: {link}"))), None)
    return [told or named(chain[-1])]


def named(error: BaseException) -> str:
    """`ValueError: what it says`, as one line."""
    return f"{type(error).__name__}: {in_a_line(str(error))}"


def in_a_line(text: str) -> str:
    """The first line, and those after it for as long as nothing is said but that something follows. Of a traceback
    only the last line, the error."""
    head, traceback, rest = text.partition(TRACEBACK)
    said = ""
    for line in (head + (rest.strip().rpartition("\n")[2] if traceback else "")).splitlines():
        said = " ".join(f"{said} {line}".split())
        if said and not said.endswith(":"):
            break
    return said
