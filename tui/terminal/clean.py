"""Makes text from files, models and logs fit for a terminal, once, where it enters the UI process.

Markup is left as it is: widgets get `Content` and `Text` objects, and tables go to a console that does not interpret
it.
"""

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from ...engine.base.encoding import encode_json, with_texts
from ...engine.base.output import printable
from ...engine.wire.events import AnyEvent, StepsDone

NOT_ASCII = re.compile(r"[^\x20-\x7e]")

S = TypeVar("S", bound=msgspec.Struct)


def clean(message: S) -> S:
    return msgspec.convert(with_texts(msgspec.to_builtins(message), printable), type(message))


def clean_events(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Cleans all but reports of steps, which are most of a history."""
    return [event if isinstance(event, StepsDone) else clean(event) for event in events]


def json_line(message: msgspec.Struct) -> str:
    """Returns the message as a line of ASCII JSON: escapes lose nothing, are harmless, and suit every locale."""
    return NOT_ASCII.sub(lambda found: _json_escape(found.group()), encode_json(message).decode())


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
