import os
import subprocess
from pathlib import Path

import pytest

from ..command import answered
from ..conftest import SHARDTUI

WORD_BREAKS = " \t\n\"'><=;|&(:"


def completed(line: str) -> list[str]:
    """As a shell asks for it: the answer comes on descriptor 8."""
    read, write = os.pipe()
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    subprocess.run(
        ["bash", "-c", f'exec 8>&{write}; exec "$@"', "bash", *SHARDTUI],
        env=os.environ | asked | {"_ARGCOMPLETE_COMP_WORDBREAKS": WORD_BREAKS},
        pass_fds=[write],
        check=False,
    )
    os.close(write)
    with os.fdopen(read) as answer:
        return answer.read().split("\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shardtui tr", ["train "]),
        ("shardtui train --preset fsdp-t", ["fsdp-tp2", "fsdp-tp2-explicit", "fsdp-tp4", "fsdp-tp8"]),
        ("shardtui train --model nano-", ["nano-moe "]),
        ("shardtui compare pitfall-f", ["pitfall-first-dim "]),
        ("shardtui train --set lay", ["layers="]),
        ("shardtui completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_a_shell_gets_completions(line: str, words: list[str]) -> None:
    assert completed(line) == words


def test_runs_are_completed(home: Path) -> None:
    run = home / "state" / "shardtui" / "runs" / "early-bird"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert completed("shardtui attach ea") == ["early-bird "]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str) -> None:
    result = answered("completion", shell)
    assert (result.returncode, "shardtui" in result.stdout) == (0, True)
