"""Textual's driver, changed to erase the splash, to count bytes, and to survive any input; and redraws.

The parser and the decoder of what is typed replace private names of Textual (seen in 8.2.8), until these drop what they
cannot read: an error there would end their thread, and the UI with it.
"""

import time
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import ClassVar

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key, Resize
from textual.message import Message
from textual.timer import Timer

from . import splash

MOST_CELLS = 10_000
"""Columns or rows of the largest terminal that is believed."""


class InputParser(XTermParser):
    """Drops sequences that Textual cannot read, such as `ESC [ 1114112 u`: Unicode has no such character."""

    def feed(self, data: str) -> Iterator[Message]:
        """Yields the events of `data`, each character by itself: what follows a dropped sequence is kept."""
        for character in data:
            yield from self._read(partial(super().feed, character))
        if not data:
            yield from super().feed(data)

    def tick(self) -> Iterator[Message]:
        yield from self._read(super().tick)

    def _read(self, events: Callable[[], Iterable[Message]]) -> Iterator[Message]:
        try:
            yield from filter(self._is_credible, events())
        except Exception:
            super(XTermParser, self).__init__()  # only the sequence under way is forgotten

    def _is_credible(self, event: Message) -> bool:
        if isinstance(event, Resize) and not 0 < min(event.size) <= max(event.size) <= MOST_CELLS:
            self.mouse_pixels = False  # they would be divided by this size
            return False
        return not isinstance(event, Key) or event.character is None or not "\ud800" <= event.character <= "\udfff"


def lenient_decoder(encoding: str) -> Callable[[], IncrementalDecoder]:
    """Returns a decoder that replaces bytes that are not UTF-8."""
    return partial(getincrementaldecoder(encoding), errors="replace")


for name, ours in (("XTermParser", InputParser), ("getincrementaldecoder", lenient_decoder)):
    setattr(linux_driver, name, ours)


class Driver(LinuxDriver):
    written: ClassVar[int] = 0
    """Bytes written to the terminal since the process started."""

    def write(self, data: str) -> None:
        Driver.written += len(data.encode(errors="backslashreplace"))
        super().write(data)

    def start_application_mode(self) -> None:
        splash.erase()
        super().start_application_mode()


MIN_FRAME_SECONDS = 0.5
"""Minimum time between two frames that show nothing new but steps."""
MAX_FRAME_SECONDS = 2.0
"""Maximum time between them, also after a view was opened, which takes ten times the bytes of a frame."""
BYTES_PER_CELL_SECOND = 0.45
"""Average bytes per second for each cell, for frames of mere steps: 80 × 24 cells then need 9,600 baud."""


class Redraws:
    """Draws the view at once, or later if only steps are new."""

    def __init__(self, app: App[None], draw: Callable[[], None]) -> None:
        self._app = app
        self._draw = draw
        self._drawn_at = 0.0
        self._written_before = 0
        """Bytes written before the last frame."""
        self._next: Timer | None = None

    def now(self) -> None:
        """Draws at once, in place of a frame that was scheduled."""
        self._drawn_at, self._written_before = time.monotonic(), Driver.written
        if self._next is not None:
            self._next.stop()
            self._next = None
        self._draw()

    def soon(self) -> None:
        """Draws once the connection has had time for the previous frame."""
        wait = self._drawn_at + self._frame_seconds() - time.monotonic()
        if wait <= 0:
            self.now()
        elif self._next is None:
            self._next = self._app.set_timer(wait, self.now)

    def _frame_seconds(self) -> float:
        written = Driver.written - self._written_before
        seconds = written / (BYTES_PER_CELL_SECOND * max(1, self._app.size.area))
        return min(max(MIN_FRAME_SECONDS, seconds), MAX_FRAME_SECONDS)
