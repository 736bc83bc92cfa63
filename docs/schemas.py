"""Writes `schemas/` from the structs that they describe: `python docs/schemas.py`.

What a field means is taken from the docstring below it. With `--check` nothing is written: it names the files that are
not as it would write them, and exits with 1 if there are any.
"""

import argparse
import ast
import functools
import inspect
import itertools
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from shardtui.engine.explain.explanation import Explanation
from shardtui.engine.spec.config import ModelConfig, TrainingConfig
from shardtui.engine.spec.hf_export import Exported
from shardtui.engine.spec.model_choice import ModelPreset
from shardtui.engine.spec.prepared import Prepared
from shardtui.engine.spec.preset_reader import PresetFile
from shardtui.engine.wire.checkpoints import StoredCheckpoint, Verification
from shardtui.engine.wire.checkup import Checkup
from shardtui.engine.wire.descriptions import PresetListing
from shardtui.engine.wire.events import AnyEvent, Sampled
from shardtui.tui.cli.compare import CompareReport
from shardtui.tui.cli.explain import ExplanationDiff, WhyReport
from shardtui.tui.cli.inspect_checkpoint import CheckpointDiff
from shardtui.tui.cli.inspect_report import DiffReport, HloReport, InspectReport, LintReport
from shardtui.tui.cli.numbers import NumbersReport
from shardtui.tui.cli.plan_report import PlanReport
from shardtui.tui.cli.profile_report import ProfileDiff, ProfileReport
from shardtui.tui.cli.run_file import SETTINGS, known_options
from shardtui.tui.cli.train import RunEnded, StepDone
from shardtui.tui.state.run_listing import RunListing

ROOT = Path(__file__).parent.parent

LINES = AnyEvent | StepDone | RunEnded
PRINTED = {
    "inspect": ("shardtui inspect --json", InspectReport),
    "inspect-diff": ("shardtui inspect --diff OTHER --json", DiffReport),
    "inspect-hlo": ("shardtui inspect --hlo FILE --mesh data=4,model=2 --json", HloReport),
    "inspect-checkpoint": ("shardtui inspect --checkpoint DIR --json", StoredCheckpoint),
    "inspect-checkpoint-diff": ("shardtui inspect --checkpoint DIR --diff OTHER --json", CheckpointDiff),
    "lint": ("shardtui lint --json", LintReport),
    "explain": ("shardtui explain --json", Explanation),
    "explain-diff": ("shardtui explain --diff FILE --json", ExplanationDiff),
    "why": ("shardtui why --json", WhyReport),
    "plan": ("shardtui plan --json", PlanReport),
    "compare": ("shardtui compare --json", CompareReport),
    "profile": ("shardtui profile RUN --json", ProfileReport),
    "profile-diff": ("shardtui profile RUN --diff OTHER --json", ProfileDiff),
    "numbers": ("shardtui numbers RUN --json", NumbersReport),
    "presets": ("shardtui presets --json", PresetListing),
    "sample": ("shardtui sample RUN --json", Sampled),
    "ls": ("shardtui ls --json", RunListing),
    "doctor": ("shardtui doctor --json", Checkup),
    "verify": ("shardtui verify --json", Verification),
    "export": ("shardtui export RUN DIR --json", Exported),
    "prepare": ("shardtui data prepare --json", Prepared),
    "events": ("a line of events.jsonl, or of shardtui train --json", LINES),
}
READ = {"preset-file": ("a parallelism preset", PresetFile), "model-file": ("a model preset", ModelPreset)}

Schema = dict[str, Any]


def printed(title: str, kind: Any) -> Schema:
    """Open, as new fields may come. A report, which carries the number of its schema, has all its fields; what older
    versions wrote into `events.jsonl` lacks fields that have a default."""
    schema = _schema(title, kind)
    is_report = "schema" in schema.get("properties", {})
    for struct in _structs(schema):
        struct.pop("additionalProperties", None)
        if is_report:
            _require_all(struct)
    return schema


def _require_all(struct: Schema) -> None:
    struct["required"] = list(struct["properties"])
    for name, value in struct["properties"].items():
        default = value.pop("default", None)
        if name == "schema":
            del value["type"]
            value["const"] = default


def read(title: str, kind: Any) -> Schema:
    """Closed, as the reader is. TOML has no null, and a file does not say its `kind`."""
    schema = _schema(title, kind)
    for struct in _structs(schema):
        for name, value in struct["properties"].items():
            if value.get("default", 0) is None:
                (given,) = (part for part in value.pop("anyOf") if part != {"type": "null"})
                del value["default"]
                value |= given
            if name == "kind":
                struct["required"].remove(name)
    return schema


def run_file() -> Schema:
    """Closed, as the reader is. Takes the types of options from the parser, and what they mean from its help."""
    properties = {name: _option(action) for name, action in sorted(known_options().items())}
    model, training = (_schema("", struct)["properties"] for struct in (ModelConfig, TrainingConfig))
    settings = {name: {"description": value["description"]} for name, value in (model | training).items()}
    properties[SETTINGS] = {
        "type": "object",
        "description": "What `--set` changes: values of the model and the training, or arguments of your own function.",
        "properties": settings,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "title": "a run file",
        "description": "The options of `shardtui run` and `train`, without their dashes.",
        "properties": properties,
        "additionalProperties": False,
    }


def _option(action: argparse.Action) -> Schema:
    one: Schema = {"type": "boolean" if action.nargs == 0 else ["string", "number"]}
    if action.type is int:
        one["type"] = "integer"
    if action.choices:
        one = {"enum": list(action.choices)}
    is_repeatable = isinstance(action, argparse._AppendAction)  # pyright: ignore[reportPrivateUsage] # no other name
    kinds: Schema = {"anyOf": [one, {"type": "array", "items": one}]} if is_repeatable else one
    return {"description": (action.help or "").replace("%%", "%"), **kinds}


def _schema(title: str, kind: Any) -> Schema:
    """That of the whole at the top, those of its parts below `$defs`."""
    (root,), parts = msgspec.json.schema_components([kind])
    for struct in _classes(msgspec.inspect.type_info(kind)):
        parts[struct.__name__] = _described(parts[struct.__name__], struct)
    top = parts.pop(kind.__name__) if isinstance(kind, type) else root
    top.pop("discriminator", None)  # a word of OpenAPI's
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "title": title}
    return head | ({"$defs": parts} if parts else {})


def _structs(schema: Schema) -> list[Schema]:
    return [part for part in (schema, *schema.get("$defs", {}).values()) if "properties" in part]


def _classes(node: Any, found: dict[type, None] | None = None) -> list[type[Struct]]:
    """Of all structs in a type, as msgspec tells of it."""
    found = {} if found is None else found
    if isinstance(node, msgspec.inspect.StructType):
        if node.cls in found:
            return list(found)
        found[node.cls] = None
    parts = node if isinstance(node, tuple) else [getattr(node, name) for name in node.__struct_fields__]
    for part in parts:
        if isinstance(part, tuple | msgspec.inspect.Type | msgspec.inspect.Field):
            _classes(part, found)
    return list(found)


def _described(schema: Schema, struct: type[Struct]) -> Schema:
    """With the first paragraph of its docstring, and what stands below each field."""
    known = {name: text for base in reversed(struct.__mro__) for name, text in _below_fields(base)}
    known[struct.__struct_config__.tag_field or ""] = "Says which of several objects this is."
    if missing := [name for name in schema["properties"] if name not in known]:
        raise SystemExit(f"{struct.__name__}: no docstring below {', '.join(missing)}: say what it is, and its unit")
    properties = {name: {"description": known[name], **value} for name, value in schema["properties"].items()}
    about = inspect.cleandoc(struct.__doc__ or "").split("\n\n")[0]
    return {**schema, "description": " ".join(about.split()), "properties": properties}


@functools.cache
def _below_fields(struct: type) -> list[tuple[str, str]]:
    if struct is Struct or not issubclass(struct, Struct):
        return []
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(definition, ast.ClassDef)
    return [
        (field.target.id, " ".join(below.value.value.split()))
        for field, below in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    ]


def written() -> Iterator[tuple[Path, str]]:
    """Each file, and what it is to hold."""
    schemas = {name: printed(*what) for name, what in PRINTED.items()} | {
        name: read(*what) for name, what in READ.items()
    }
    schemas["run-file"] = run_file()
    for name, schema in schemas.items():
        yield ROOT / "schemas" / f"{name}.json", json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    wrong = [path for path, text in written() if not path.exists() or path.read_text(encoding="utf-8") != text]
    stale = [path for path in (ROOT / "schemas").glob("*.json") if path.stem not in {*PRINTED, *READ, "run-file"}]
    if "--check" in sys.argv:
        for path in (*wrong, *stale):
            name = path.relative_to(ROOT)
            print(f"{name} is not what the structs say: run `python docs/schemas.py`", file=sys.stderr)
        return bool(wrong or stale)
    for path in stale:
        path.unlink()
    for path, text in written():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
