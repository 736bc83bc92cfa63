"""Changes files as downloads, other programs and full disks do: byte by byte, by structure, or in kind."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

RAW = {
    "@@deep": "[" * 100_000,
    "@@nested": "[" * 400 + "]" * 400,
    "@@object": '{"a":' * 100_000,
    "@@digits": "9" * 5000,
    "@@integer": "9" * 4000,
    "@@infinite": "1e999",
    "@@nan": "NaN",
    "@@surrogate": '"\\ud800"',
}
"""What `json.dumps` does not write; each stands for itself until then."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, -0.0, 2**31, 2**63, -(2**63), 2**64, 10**30, 1e308, *RAW),
    *("", "\0", "a\0b", "x" * 5000, "../../../etc/passwd", "/dev/zero", "\x1b[31m", "\u202e", "nan", "9" * 5000),
    *([], {}, [[]], [None], [0] * 2000, {"": None}, [{}], ["x"], {"a": {"b": {"c": {}}}}),
)
"""In place of any value of a JSON document."""
TOML = (
    *(
        "0",
        "-1",
        "-7",
        "1_000",
        "9" * 30,
        "9" * 5000,
        "0x" + "f" * 400,
        "inf",
        "nan",
        "1e400",
        "true",
        '""',
        "[]",
        "{}",
    ),
    *('"data"', "'x'", "1979-05-27", "[[]]", '[["data"], []]', "[" * 2000, "{a = {a = {}}}", '"\\u202e"', '"[/]"'),
)
"""In place of any value of a TOML document."""


def bytewise(chance: random.Random, content: bytes) -> bytes:
    """Returns the content with a few bytes changed, removed, repeated or added."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(8):
            case 0:
                found[at : at + 1] = chance.randbytes(1)
            case 1:
                found[at : at + chance.randrange(1, 9)] = b"\0" * 8
            case 2:
                del found[at:]
            case 3:
                del found[at : at + chance.randrange(1, 40)]
            case 4:
                found[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 5:
                found += found[at : at + 2000]
            case 6:
                found[at : at + 8] = struct.pack("<q", chance.choice((-1, 0, 1, 2**31, 2**62, 2**63 - 1)))
            case _:
                found[at : at + 1] = bytes([chance.choice(b"\0\xff\x80\n\"'{}[]:,0-9")])
    return bytes(found)


def structured(chance: random.Random, content: bytes) -> bytes:
    """Returns a JSON document, or one line of several, with another value, name or order somewhere."""
    lines = content.split(b"\n")
    at = chance.choice([number for number, line in enumerate(lines) if line.strip()])
    try:
        table = json.loads(lines[at] if len(lines) > 2 else content)
    except ValueError:
        at, table = 0, json.loads(content)
        lines = [content]
    for _ in range(chance.choice((1, 1, 1, 3))):
        table = _changed(chance, table)
    text = json.dumps(table)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    if chance.randrange(10) == 0:
        text = text.replace("{", '{"x": 1, "x": [], ', 1)
    if len(lines) > 2:
        return b"\n".join([*lines[:at], text.encode(), *lines[at + 1 :]])
    return text.encode()


def _changed(chance: random.Random, table: Any) -> Any:
    """Changes one place, the deeper the more often."""
    if isinstance(table, dict) and table and chance.randrange(12):
        key = chance.choice(list(table))
        match chance.randrange(10):
            case 0:
                del table[key]
            case 1:
                table[str(chance.choice(VALUES))[:100]] = table[key]
            case 2:
                table[key] = table[chance.choice(list(table))]
            case _:
                table[key] = _changed(chance, table[key])
        return table
    if isinstance(table, list) and table and chance.randrange(4):
        at = chance.randrange(len(table))
        match chance.randrange(5):
            case 0:
                table.insert(at, table[at])
            case 1:
                del table[at]
            case _:
                table[at] = _changed(chance, table[at])
        return table
    return chance.choice(VALUES)


def textual(chance: random.Random, content: bytes) -> bytes:
    """Returns a text of lines, as TOML, after a few random edits."""
    text = content.decode()
    for _ in range(chance.randrange(1, 6)):
        at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        to = min(to, at + 40)
        match chance.randrange(6):
            case 0:
                text = text[:at] + text[to:]
            case 1:
                text = text[:to] + text[at:]
            case 2:
                text = text[:at] + chance.choice("\"'[]{}=.,#\n\x00\x1b\u202e\ud800é0-_") + text[at:]
            case 3:
                text = _with_value(chance, text)
            case 4:
                lines = text.splitlines(keepends=True)
                chance.shuffle(lines)
                text = "".join(lines)
            case _:
                text = text[:at] + "".join(chr(chance.randrange(1, 0x3000)) for _ in range(5)) + text[to:]
    return text.encode(errors="surrogatepass")


def _with_value(chance: random.Random, text: str) -> str:
    """Returns the text with another value after one of its `=`."""
    lines = text.splitlines()
    places = [number for number, line in enumerate(lines) if "=" in line]
    if places:
        number = chance.choice(places)
        lines[number] = f"{lines[number].partition('=')[0]}= {chance.choice(TOML)}"
    return "\n".join(lines)


def replaced(chance: random.Random, path: Path) -> None:
    """Puts something else than a regular file in the place of a file."""
    path.unlink()
    link = path.symlink_to
    ways = (partial(os.mkfifo, path), path.mkdir, *(partial(link, to) for to in ("nowhere", path.name, "/dev/zero")))
    chance.choice(ways)()


def restored(folder: Path, files: dict[str, bytes]) -> None:
    """Empties the folder and writes the files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


Mutation = Callable[[random.Random, bytes], bytes]
