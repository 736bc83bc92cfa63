"""TPU compilers for tests: real processes load one that fails, hangs, dies or is not installed."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from .processes import awaited, is_alive

ABORTS = "import os; os.abort()"
FAILS = "import sys; print('noise', file=sys.stderr); sys.exit('no such luck')"
HANGS = "import time; time.sleep(600)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


class Compilers:
    """Replaces `libtpu` in this process and in those that it starts."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        folder.mkdir()
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.delenv("TPU_LIBRARY_PATH", raising=False)  # jax sets it in this process if libtpu is installed

    def install(self, behaviour: str) -> None:
        """Installs a compiler. `behaviour`: Python code that runs when a compilation loads it."""
        (self.folder / "libtpu").mkdir()
        started = f"open({str(self.folder / 'started')!r}, 'a').write(f'{{__import__(\"os\").getpid()}}\\n')"
        lines = ["import sys", "if sys.argv[1:2] != ['compile']:", "    raise ImportError", started, behaviour]
        (self.folder / "libtpu" / "__init__.py").write_text("\n".join(lines))
        self._patch.syspath_prepend(str(self.folder))

    def remove(self) -> None:
        """Hides the compiler, even one that is really installed."""
        (self.folder / "sitecustomize.py").write_text("import sys; sys.modules['libtpu'] = None")
        self._patch.setitem(__import__("sys").modules, "libtpu", None)

    @property
    def started(self) -> list[int]:
        file = self.folder / "started"
        return list(map(int, file.read_text().split())) if file.exists() else []

    def wait_for(self, count: int) -> None:
        awaited(lambda: len(self.started) >= count, f"compilation {count}")

    def all_gone(self, within: float = 5.0) -> bool:
        with suppress(TimeoutError):
            return awaited(lambda: not any(map(is_alive, self.started)), seconds=within)
        return False
