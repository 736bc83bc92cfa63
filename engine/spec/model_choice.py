"""Resolves `--model` and `--set` to a model config and a training config."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from ..base.directories import expanded
from ..base.output import note
from ..base.user_error import UserError, refuse, suggestion, together
from .config import ModelConfig, RunConfig, Setting, TrainingConfig, UserModel
from .model_config import Rope
from .preset_files import preset_files, read_toml, wrong_value

Model = TypeVar("Model", bound=ModelConfig | UserModel)
HF = "hf:"
LONGEST = 48
"""Characters of the default name of a run."""
DEFAULT_TRAINING = TrainingConfig(batch_size=16, seq_len=128)
"""Training of a user's model, or of one of `transformers`, before `--set` and other options."""


class ModelPreset(Struct, frozen=True, forbid_unknown_fields=True):
    """A model preset: a file of `presets/models/`."""

    summary: str
    """One line about the model."""
    model: ModelConfig
    """The sizes of the model."""
    training: TrainingConfig
    """The training config to start from."""


class ModelChoice(NamedTuple):
    """The model and training that `--model` and `--set` choose."""

    name: str
    model: ModelConfig | UserModel
    training: TrainingConfig
    weights: str | None = None
    """The directory of the initial parameters; None for random ones."""

    @property
    def run_name(self) -> str:
        """The default name of a run, without its number."""
        if isinstance(self.model, ModelConfig) and not self.name.startswith(HF):
            return self.name.lower()[:LONGEST]
        name = self.name.removeprefix(HF) if isinstance(self.model, ModelConfig) else self.model.function
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST] or "model"

    def config(self, run: str, preset: str = "dp", **others: Any) -> RunConfig:
        """Returns the config of a run. `others`: its other fields."""
        return RunConfig(
            run=run,
            model_name=self.name,
            model=self.model,
            training=self.training,
            weights=self.weights,
            preset=preset,
            **others,
        )


def choose_model(name: str, settings: tuple[str, ...] = ()) -> ModelChoice:
    """Returns a model preset, a model of `transformers` (`hf:DIR`), or a user's function, whose name has a colon or is
    a file. Raises UserError."""
    if name.startswith(HF):
        return _hf_model(expanded(name.removeprefix(HF)).absolute(), settings)
    if ":" in name or "/" in name or name.endswith(".py"):
        model, training = user_model(name, settings)
        return ModelChoice(model.name, model, training)
    preset = load_model(name, settings)
    return ModelChoice(name, preset.model, preset.training)


def _hf_model(directory: Path, settings: tuple[str, ...]) -> ModelChoice:
    from .hf_config import architecture_of, names_architecture, read_config  # the first frame does not wait for them
    from .safetensors import has_weights

    dropout = next(
        (setting_value(text) for key, _, text in (each.partition("=") for each in settings) if key == "dropout"), None
    )
    model = read_config(directory, dropout)
    model, training = with_settings(model, DEFAULT_TRAINING, settings, f" on {HF}{directory}")
    architecture = architecture_of(directory)
    if not names_architecture(directory):
        note(f"--model {HF}{directory}: config.json names no architectures: {architecture} has its model_type")
    choice = ModelChoice(f"{HF}{directory.name}", model, training)
    if not has_weights(directory):
        return choice
    try:
        problems = _weight_problems(directory, model, architecture)
    except UserError as error:
        problems = list(error.problems)
    if problems:
        raise UserError(*(f"--model {HF}{directory}: {problem}" for problem in problems))
    return choice._replace(weights=str(directory))


def _weight_problems(directory: Path, model: ModelConfig, architecture: str) -> list[str]:
    from .hf_tensors import tied_tensors, weight_problems
    from .safetensors import are_equal, stored_tensors

    tensors = stored_tensors(directory)
    if problems := weight_problems(tensors, model, architecture):
        return problems
    tied = tied_tensors(model, architecture, set(tensors))
    if tied is None or are_equal(*(tensors[name] for name in tied)):
        return []
    return [
        f"{' and '.join(tied)} differ, but tie_word_embeddings is true: transformers leaves them untied: set it to "
        f"false in config.json to load both, or remove {tied[1]} from the files"
    ]


def user_model(
    reference: str, settings: tuple[str, ...] = (), option: str = "--model"
) -> tuple[UserModel, TrainingConfig]:
    """Returns a user's function as a model, with settings for it and for the training. Raises UserError, naming the
    command-line `option`."""
    place, _, function = reference.rpartition(":")
    is_file = "/" in place or place.endswith(".py")
    problems: list[str] = []
    path = expanded(place or reference).absolute()
    if not place:
        problems.append(f"{option} {reference}: no function is named: write {reference}:FUNCTION")
    elif is_file and path.suffix != ".py":
        problems.append(f"{option} {reference}: {place} is not a Python file: its name must end in .py")
    elif is_file and not os.path.isfile(path):  # noqa: PTH113 # raises nothing
        problems.append(f"{option} {reference}: there is no file {path}")
    elif not is_file and not all(map(str.isidentifier, place.split("."))):
        problems.append(f"{option} {reference}: {place!r} is not a module name: give package.module or path/file.py")
    if place and not function.isidentifier():
        problems.append(f"{option} {reference}: {function!r} is not a function name: write {place}:FUNCTION")
    directory = str(path.parent if is_file else Path.cwd())
    model = UserModel(reference=f"{path if is_file else place}:{function}", directory=directory)
    with together(problems):
        return with_settings(model, DEFAULT_TRAINING, settings)


def load_model(name: str, settings: tuple[str, ...] = ()) -> ModelPreset:
    """Reads a model preset and applies settings to it. Raises UserError."""
    files = preset_files("models")
    if name not in files:
        raise UserError(
            f"--model {name}: no such model: {suggestion(name, files)}choose from {', '.join(files)}, or name a "
            "function that builds your own model: package.module:function or path/file.py:function"
        )
    preset = model_preset(read_toml(files[name]), str(files[name]))
    model, training = with_settings(preset.model, preset.training, settings, f" on {name}")
    return msgspec.structs.replace(preset, model=model, training=training)


def model_preset(tables: dict[str, Any], where: str) -> ModelPreset:
    """Returns the model preset of a file. Raises UserError, naming `where`."""
    try:
        return msgspec.convert(tables, ModelPreset)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {wrong_value(error, ModelConfig, Rope, TrainingConfig)}") from error


def with_settings(
    model: Model, training: TrainingConfig, settings: tuple[str, ...], of: str = ""
) -> tuple[Model, TrainingConfig]:
    """Applies `KEY=VALUE` settings: keys that are not fields of the training become fields of the model, or arguments
    of a user's. Raises UserError; `of`: what it says after the settings if a value is wrong."""
    tables = {"model": msgspec.to_builtins(model), "training": msgspec.to_builtins(training)}
    refuse([problem for setting in settings if (problem := _override(tables, setting, isinstance(model, UserModel)))])
    try:
        return msgspec.convert(tables["model"], type(model)), msgspec.convert(tables["training"], TrainingConfig)
    except msgspec.ValidationError as error:
        problem = wrong_value(error, ModelConfig, Rope, TrainingConfig)
        raise UserError(f"--set {' '.join(settings)}{of}: {problem}") from error


def _override(tables: dict[str, Any], setting: str, is_users: bool) -> str | None:
    """Puts one KEY=VALUE into the table that has the key. Returns the problem if none has it."""
    key, equals, text = setting.partition("=")
    value = setting_value(text)
    if not equals or (is_users and not key.isidentifier()):
        return f"--set {setting}: not KEY=VALUE, such as batch_size=8"
    if key in TrainingConfig.__struct_fields__:
        tables["training"][key] = value
    elif is_users and not _is_argument(value):
        return f"--set {setting}: a value must be a number, true, false, text or a list of these"
    elif is_users:
        tables["model"]["arguments"][key] = value
    elif key in ModelConfig.__struct_fields__:
        tables["model"][key] = value
    else:
        known = (*ModelConfig.__struct_fields__, *TrainingConfig.__struct_fields__)
        return f"--set {setting}: unknown key {key!r}: {suggestion(key, known)}the keys are {', '.join(known)}"
    return None


def _is_argument(value: object) -> bool:
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=Setting) == value
    except (msgspec.MsgspecError, OverflowError):
        return False


def setting_value(text: str) -> Any:
    """Parses a value as TOML does; what is not one valid value there is text."""
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except (ValueError, RecursionError):
        return text
    return value
