import os
import subprocess
from pathlib import Path

import pytest
from shardtui.engine.wire import run_directory

from ..command import answered
from ..conftest import SHARDTUI, tiny_config

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
        ("shardtui attach ea", ["early-bird "]),
        ("shardtui rm ea", ["early-bird "]),
        ("shardtui profile ea", ["early-bird "]),
        ("shardtui profile tiny-1 --diff ea", ["early-bird "]),
        ("shardtui completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_a_shell_gets_completions(home: Path, line: str, words: list[str]) -> None:
    run_directory.create(tiny_config(run="early-bird"))
    assert completed(line) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str) -> None:
    result = answered("completion", shell)
    assert (result.returncode, "shardtui" in result.stdout) == (0, True)
