"""Frames and the event log: malformed input is refused, and what is not damaged is read."""

import asyncio
import json
import os
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.wire.commands import Command, SwitchPreset
from shardtui.engine.wire.event import VERSION
from shardtui.engine.wire.event_log import EventLog, LogReader, last_seq
from shardtui.engine.wire.events import ClockChanged, Event, Failed, Paused
from shardtui.engine.wire.framing import BadFrame, frame, read_command
from shardtui.engine.wire.run_directory import RunDirectory

from ..recorded import events_in, record, steps


def command_from(data: bytes) -> Command:
    async def read() -> Command:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_command(reader)

    return asyncio.run(read())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_command_or_a_bad_frame(body: bytes) -> None:
    try:
        command_from(struct.pack(">I", len(body)) + body)
    except BadFrame as error:
        assert f"not a message of protocol {VERSION}" in str(error)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack(">I", 2**31), "a frame of 2147483648 bytes: the limit is 65536"),
        (struct.pack(">I", 4) + b"\x81\xa1a\x01", "not a message"),
        (struct.pack(">I", 60_000) + b"\x91" * 60_000, "not a message"),
        (frame(SwitchPreset("../dp")), "matching regex"),
        (frame(SwitchPreset("dp\n")), "matching regex"),
    ],
    ids=["oversized", "another map", "deeply nested", "a path", "a line end"],
)
def test_bad_frames(data: bytes, says: str) -> None:
    with pytest.raises(BadFrame, match=says):
        command_from(data)


def test_the_log_numbers_events_and_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk, which refuses every write as /dev/full does, loses lines only; once is enough to say so."""
    path, sent = tmp_path / "events.jsonl", list[Event]()
    log = EventLog(path, sent.append)
    log.append(steps(1, 2.0))
    log.append(steps(2, None, nonfinite=["losses"]))
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), log.descriptor)
    for step in (3, 4):
        log.append(steps(step, 2.0))
    assert [event.seq for event in sent] == [1, 2, 3, 4]
    assert capsys.readouterr().err.splitlines() == ["shardtui: event 3 not written: [Errno 28] No space left on device"]
    first, last = map(json.loads, path.read_text().splitlines())
    assert (first["seq"], last["seq"], last["type"]) == (1, 2, "StepsDone")
    assert (last["losses"], last["nonfinite"]) == ([None], ["losses"])


def test_the_log_says_that_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, ahead = tmp_path / "events.jsonl", time.time, [0.0]
    log = EventLog(path, lambda event: None)
    monkeypatch.setattr(time, "time", lambda: real() + ahead[-1])
    for seconds in (0.5, 3600.0, 3600.0, -7200.0):
        ahead.append(seconds)
        log.append(steps(1, 2.0))
    found = [round(event.seconds, 1) if isinstance(event, ClockChanged) else 0 for event in events_in(path)]
    assert found == pytest.approx([0, 3600, 0, 0, -10800, 0], abs=1)


@pytest.mark.parametrize("torn", [b"", b"\n", b'{"type":"Paused","seq":9', b"\0" * 40, b"not json\n"])
def test_a_restarted_engine_continues_the_numbers(tmp_path: Path, torn: bytes) -> None:
    """Also after a truncated line: only that line is lost."""
    path = tmp_path / "events.jsonl"
    for first in (1, 3):
        log = EventLog(path, lambda event: None)
        assert last_seq(path) == first - 1
        for step in (first, first + 1):
            log.append(steps(step, 2.0))
        with path.open("ab") as file:
            file.write(torn)
    found = events_in(path)
    assert [(event.seq, event.step) for event in found] == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_line_whose_last_byte_the_disk_does_not_take_is_ended_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, lambda event: None)
    file = log._file
    for lost in (9, 1):
        with monkeypatch.context() as on_a_full_disk:
            taken = SimpleNamespace(write=lambda line, lost=lost: file.write(line[:-lost]))
            on_a_full_disk.setattr(log, "_file", taken)
            log.append(Paused(step=lost))
    log.append(Paused(step=0))
    assert [event.step for event in events_in(path) if isinstance(event, Paused)] == [1, 0]


def test_a_reader_waits_for_the_end_of_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path, lambda event: None).append(steps(1, 2.0))
    reader, whole = LogReader(path), path.read_bytes()
    path.write_bytes(whole + b'{"type":"Pau')
    assert [event.seq for events in reader.read() for event in events] == [1]
    path.write_bytes(whole + msgspec.json.encode(Paused(step=1, seq=2)) + b"\nnot json\n")
    assert [event for events in reader.read(after=1) for event in events] == [Paused(step=1, seq=2)]
    assert list(reader.read(after=2)) == []


def test_a_long_history_comes_in_chunks_and_damaged_lines_do_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardtui.engine.wire.event_log.CHUNK_BYTES", 1000)
    directory = RunDirectory(tmp_path)
    record(directory, Failed(problems=["x" * 5000], refused=False), *(steps(step, 2.0) for step in range(1, 101)))
    path = directory.events
    path.write_bytes(path.read_bytes().replace(b'"step":3,', b'"step":"3,'))
    chunks = list(LogReader(path).read())
    assert len(chunks) > 5
    assert [event.seq for events in chunks for event in events] == [1, 2, 3, *range(5, 102)]
    assert [event.seq for events in LogReader(path).read(after=10) for event in events] == [*range(11, 102)]
