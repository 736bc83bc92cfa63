"""What the commands print and what a run records, held against the schemas that describe it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

SCHEMAS = Path(__file__).parent.parent / "schemas"


def checked(name: str, text: str) -> Any:
    """`text` as JSON, in which nothing is otherwise than `schemas/NAME.json` says, too much, or missing."""
    document = json.loads(text)
    wrong = best_match(_strict(name).iter_errors(document))
    assert wrong is None, f"{name}: {wrong.json_path}: {wrong.message[:500]}"
    return document


def checked_lines(name: str, text: str) -> list[Any]:
    """One for each line; the last is left out where it is half written."""
    return [checked(name, line) for line in text.rpartition("\n")[0].splitlines()]


def schema(name: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def structs(whole: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in (whole, *whole.get("$defs", {}).values()) if "properties" in part]


@cache
def _strict(name: str) -> Draft202012Validator:
    """What this version prints has every field, and no other."""
    whole = schema(name)
    for part in structs(whole):
        part |= {"additionalProperties": False, "required": list(part["properties"])}
    return Draft202012Validator(whole)
