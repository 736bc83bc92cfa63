"""Runs `shardtui` on a pty: the real process, the bytes that it writes, and the screen that they draw."""

import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyte

from .conftest import LEAST, SHARDTUI

BECOME = "os.execv(sys.argv[1], sys.argv[1:])"
ON_ITS_TERMINAL = f"import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {BECOME}"
"""Starts with stdin as the controlling terminal, so that a hang-up sends SIGHUP."""
WITHOUT_HANG_UP = f"import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); {BECOME}"
"""Starts without any signal on hang-up: the terminal is not the controlling one, and SIGHUP is ignored."""

NEW_RUN = ("run", "--run=tiny", *LEAST)
RESTORED = b"\x1b[?1049l"
"""The escape sequence that leaves the alternate screen."""


class Terminal:
    def __init__(
        self,
        *arguments: str,
        size: tuple[int, int] = (80, 24),
        start: str = ON_ITS_TERMINAL,
        without: Sequence[str] = (),
        folder: Path | None = None,
        **environment: str,
    ) -> None:
        """`without`: environment variables to remove. `folder`: the working directory."""
        self.master, terminal = os.openpty()
        termios.tcsetwinsize(terminal, size[::-1])
        self.attributes = termios.tcgetattr(terminal)
        wanted = {**os.environ, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, *SHARDTUI, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={name: value for name, value in wanted.items() if name not in without},
            cwd=folder,
            start_new_session=True,
        )
        os.close(terminal)
        self.output = b""
        self.screen = pyte.Screen(*size)
        self.stream = pyte.ByteStream(self.screen)

    def read(self, seconds: float = 0.1, draw: bool = True) -> bool:
        """Reads what has been written and draws it on the screen. Returns False once the other end is closed."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.output += data
        if draw:
            self.stream.feed(data)
        return True

    def until(self, holds: Callable[[str], object], why: str) -> None:
        """Reads until the screen's text satisfies `holds`; fails after four minutes."""
        end = time.monotonic() + 240
        while time.monotonic() < end:
            self.read()
            if holds("\n".join(self.screen.display)):
                return
        raise AssertionError(f"no sign of {why}:\n" + "\n".join(self.screen.display))

    def press(self, keys: str, *awaited: str, gone: Sequence[str] = ()) -> None:
        self.send(keys)
        self.until(
            lambda text: all(each in text for each in awaited) and not any(each in text for each in gone),
            f"{awaited} after {keys!r}",
        )

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self.master, (rows, columns))
        self.screen.resize(rows, columns)
        self.process.send_signal(signal.SIGWINCH)

    def exit_code(self, seconds: float = 20, draw: bool = True) -> int:
        """Reads to the end and returns the exit code; kills the process if it does not end in time."""
        end = time.monotonic() + seconds
        while self.read(draw=draw):
            if time.monotonic() > end:
                self.process.kill()
        return self.process.wait(timeout=20)

    def is_restored(self) -> bool:
        return RESTORED in self.output and termios.tcgetattr(self.master) == self.attributes

    def hang_up(self) -> None:
        os.close(self.master)


def training(text: str) -> bool:
    return "● training" in text and "step " in text
