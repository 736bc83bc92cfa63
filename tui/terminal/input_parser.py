"""Textual's parser of what is typed, changed so that no input ends its thread, and the UI with it.

This replaces private names of Textual (seen in 8.2.8), until its parser drops what it cannot read.
"""

from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.events import Key, Resize
from textual.message import Message

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


def install() -> None:
    """Has Textual's driver use this parser, and replace bytes that are not UTF-8."""
    for name, ours in (("XTermParser", InputParser), ("getincrementaldecoder", _lenient_decoder)):
        setattr(linux_driver, name, ours)


def _lenient_decoder(encoding: str) -> Callable[[], IncrementalDecoder]:
    return partial(getincrementaldecoder(encoding), errors="replace")
