"""Messages about a value of a preset or a setting that has another type than its field."""

import re
from typing import get_args, get_type_hints

import msgspec
from msgspec import Struct

KEY = re.compile(r"\.(\w+)`$")


def wrong_value(error: msgspec.ValidationError, *structs: type[Struct]) -> str:
    """Returns msgspec's message with the key as files and options spell it, and with the values that it may have.

    `structs`: the ones that were read, in which the field is looked up.
    """
    text = str(error).replace(" - at `$", " at `")
    found = KEY.search(text)
    if "Invalid enum value" not in text or found is None:
        return text
    hints = {name: hint for struct in structs for name, hint in get_type_hints(struct).items()}
    return f"{text}: choose from {', '.join(map(str, get_args(hints.get(found[1]))))}"
