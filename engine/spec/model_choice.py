"""From a model's name and settings to its sizes and its training."""

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from ..base.invalid import Invalid
from .config import ModelConfig, Setting, TrainingConfig, UserModel
from .preset_files import preset_files, read_toml

USUAL_TRAINING = TrainingConfig(batch_size=16, seq_len=128)
"""Of a user's model, where nothing else is set."""


class ModelPreset(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of `presets/models/`."""

    summary: str
    model: ModelConfig
    training: TrainingConfig


class ModelChoice(NamedTuple):
    """What `--model` and `--set` name."""

    name: str
    model: ModelConfig | UserModel
    training: TrainingConfig

    @property
    def run_name(self) -> str:
        """For runs that have no name of their own."""
        if isinstance(self.model, ModelConfig):
            return self.name
        return re.sub(r"[^a-z0-9]+", "-", self.model.function.lower()).strip("-")[:48] or "model"


def choose_model(name: str, settings: tuple[str, ...] = ()) -> ModelChoice:
    """A model preset or, where `name` has a colon or is a file's, a function of the user's. Raises Invalid."""
    if ":" in name or "/" in name or name.endswith(".py"):
        model, training = user_model(name, settings)
        return ModelChoice(model.name, model, training)
    preset = load_model(name, settings)
    return ModelChoice(name, preset.model, preset.training)


def user_model(reference: str, settings: tuple[str, ...] = ()) -> tuple[UserModel, TrainingConfig]:
    """A function of the user's, with `KEY=VALUE` settings for the training and for it. Raises Invalid."""
    place, _, function = reference.rpartition(":")
    is_file = "/" in place or place.endswith(".py")
    problems: list[str] = []
    path = Path(place or reference).expanduser().absolute()
    if not place:
        problems.append(f"--model {reference}: which function of it? name one: {reference}:FUNCTION")
    elif is_file and path.suffix != ".py":
        problems.append(f"--model {reference}: {place} is no Python file: its name has to end in .py")
    elif is_file and not path.is_file():
        problems.append(f"--model {reference}: there is no file {path}")
    elif not is_file and not all(map(str.isidentifier, place.split("."))):
        problems.append(f"--model {reference}: {place!r} is no name of a module: give package.module or path/file.py")
    if place and not function.isidentifier():
        problems.append(f"--model {reference}: {function!r} is no name of a function: write {place}:FUNCTION")
    directory = str(path.parent if is_file else Path.cwd())
    model = UserModel(reference=f"{path if is_file else place}:{function}", directory=directory)
    try:
        model, training = with_user_settings(model, USUAL_TRAINING, settings)
    except Invalid as error:
        raise Invalid(*problems, *error.problems) from error
    if problems:
        raise Invalid(*problems)
    return model, training


def with_user_settings(
    model: UserModel, training: TrainingConfig, settings: tuple[str, ...]
) -> tuple[UserModel, TrainingConfig]:
    """With `KEY=VALUE` settings: what is none of the training is an argument. Raises Invalid."""
    arguments, tables = dict(model.arguments), msgspec.to_builtins(training)
    problems: list[str] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.isidentifier():
            problems.append(f"--set {setting}: not KEY=VALUE")
        elif key in TrainingConfig.__struct_fields__:
            tables[key] = _value(text)
        elif (argument := _argument(_value(text))) is None:
            problems.append(f"--set {setting}: a number, true or false, text, or a list of these")
        else:
            arguments[key] = argument
    if problems:
        raise Invalid(*problems)
    try:
        training = msgspec.convert(tables, TrainingConfig)
    except msgspec.ValidationError as error:
        raise Invalid(f"--set {' '.join(settings)}: {error}") from error
    return msgspec.structs.replace(model, arguments=arguments), training


def _argument(value: object) -> Setting | None:
    """None where it would not come out of `run.json` as it went in."""
    try:
        kept = msgspec.json.decode(msgspec.json.encode(value), type=Setting)
    except (msgspec.MsgspecError, OverflowError):
        return None
    return kept if kept == value else None


def load_model(name: str, settings: tuple[str, ...] = ()) -> ModelPreset:
    """The model preset `name`, with `KEY=VALUE` settings put over its tables. Raises Invalid."""
    files = preset_files("models")
    if name not in files:
        raise Invalid(
            f"--model {name}: no such model: choose from {', '.join(files)}, or name a function that makes one of "
            "yours: package.module:function or path/file.py:function"
        )
    where = f"--set {' '.join(settings)} on {name}" if settings else str(files[name])
    return with_settings(read_toml(files[name]), settings, where)


def with_settings(tables: dict[str, Any], settings: tuple[str, ...], where: str) -> ModelPreset:
    """The tables of a model preset with `KEY=VALUE` settings put over them. Raises Invalid, naming `where`."""
    problems = [problem for setting in settings if (problem := _override(tables, setting))]
    if problems:
        raise Invalid(*problems)
    try:
        return msgspec.convert(tables, ModelPreset)
    except msgspec.ValidationError as error:
        raise Invalid(f"{where}: {error}") from error


def _override(tables: dict[str, Any], setting: str) -> str | None:
    """Puts one KEY=VALUE into the table that knows the key; says what is wrong if none does."""
    key, equals, text = setting.partition("=")
    structs = {"model": ModelConfig, "training": TrainingConfig}
    table = next((name for name, struct in structs.items() if key in struct.__struct_fields__), None)
    if not equals or table is None:
        known = ", ".join(field for struct in structs.values() for field in struct.__struct_fields__)
        return f"--set {setting}: not KEY=VALUE with a known key: {known}"
    tables.setdefault(table, {})[key] = _value(text)
    return None


def _value(text: str) -> Any:
    """As TOML has it; what is none there is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
