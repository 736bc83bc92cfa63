"""TPU compilers for tests: real processes that ask for one, and get one that fails, hangs, dies or is not there."""

import os
import time
from pathlib import Path

import pytest

ABORTS = "import os; os.abort()"
FAILS = "import sys; print('noise', file=sys.stderr); sys.exit('no such luck')"
HANGS = "import time; time.sleep(600)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


class Compilers:
    """What stands in the place of `libtpu`, for this process and those that it starts."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        folder.mkdir()
        patch.setenv("PYTHONPATH", str(folder))
        patch.delenv("TPU_LIBRARY_PATH", raising=False)  # jax sets it in this process, where there is one

    def install(self, behaviour: str) -> None:
        """Python code that runs where a compilation loads the compiler."""
        (self.folder / "libtpu").mkdir()
        started = f"open({str(self.folder / 'started')!r}, 'a').write(f'{{__import__(\"os\").getpid()}}\\n')"
        lines = ["import sys", "if sys.argv[1:2] != ['compile']:", "    raise ImportError", started, behaviour]
        (self.folder / "libtpu" / "__init__.py").write_text("\n".join(lines))
        self._patch.syspath_prepend(str(self.folder))

    def remove(self) -> None:
        """Also one that is really installed."""
        (self.folder / "sitecustomize.py").write_text("import sys; sys.modules['libtpu'] = None")
        self._patch.setitem(__import__("sys").modules, "libtpu", None)

    @property
    def started(self) -> list[int]:
        """Process ids of the compilations so far."""
        file = self.folder / "started"
        return list(map(int, file.read_text().split())) if file.exists() else []

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 240
        while len(self.started) < count:
            assert time.monotonic() < deadline, f"waited in vain for compilation {count}"
            time.sleep(0.05)

    def all_gone(self, within: float = 5.0) -> bool:
        deadline = time.monotonic() + within
        while any(map(_lives, self.started)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")
