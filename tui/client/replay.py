"""A recorded run in place of an engine: its events at the pace at which they were recorded, and no commands."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...engine.base import formatting
from ...engine.base.output import printable
from ...engine.base.user_error import UserError
from ...engine.wire.event_log import LogReader
from ...engine.wire.events import AnyEvent, ClockChanged, EngineStarted
from ...engine.wire.run_directory import RunDirectory
from ..state.playback import Playback
from .engine_client import EngineClient

POLL_SECONDS = 0.05


class Replay(EngineClient):
    """Yields the events of a file. It never connects to an engine, so that commands go nowhere."""

    def __init__(self, path: Path, speed: float) -> None:
        """`path`: an `events.jsonl`. `speed`: how many times as fast as recorded; 0 for everything at once."""
        super().__init__(RunDirectory(path.absolute().parent))
        self.playback = self._clock = Playback(speed)
        self._has_begun = False
        """Whether the clock was set to the first event."""
        self._path = path
        self._reader = LogReader(path)

    @property
    def damage(self) -> str:
        lines = self._reader.unreadable_lines
        return printable(f"{self._path}: left out {formatting.counted(lines, 'unreadable line')}") if lines else ""

    async def events(self) -> AsyncIterator[list[AnyEvent]]:
        """Yields the recorded events, each when it is due. An empty list begins and ends the replay."""
        self.is_behind = not self._clock.speed
        if not self.is_behind:
            yield []
        with suppress(FileNotFoundError, UserError):  # it was removed in the meantime
            for recorded in self._reader.read():
                async for due in self._paced(recorded):
                    yield [*due]
                await asyncio.sleep(0)  # lets the UI handle keys and draw
        self._clock.end()
        self.is_behind = False
        yield []

    async def _paced(self, recorded: Sequence[AnyEvent]) -> AsyncIterator[Sequence[AnyEvent]]:
        begin = 0
        for at, event in enumerate(recorded):
            if not self._has_begun or not self._clock.speed or isinstance(event, EngineStarted | ClockChanged):
                self._clock.jump_to(event.time)  # nothing happened while no engine ran, nor in a jump of the clock
                self._has_begun = True
            while self._clock.is_paused or self._clock.now < event.time:
                if begin < at:
                    yield recorded[begin:at]
                    begin = at
                await asyncio.sleep(POLL_SECONDS)
        yield recorded[begin:]
