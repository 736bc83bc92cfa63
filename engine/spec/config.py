"""What a run is made of: the model, the training and where it runs. No jax here: the UI process reads this too."""

import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from ..base.regular_file import open_regular

SIMULATED_DEVICES = 8
"""CPU devices where there is no accelerator and no other number is asked for."""

PRESETS = Path(__file__).parents[2] / "presets"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a preset or a model may be called."""
LARGEST_FILE = 2**20
"""Bytes of a preset or a model."""
KEEP_PROGRAMS = 2_000_000_000
"""Bytes of host memory for compiled programs, unless told otherwise: some fifty of nano's."""
STOP_SECONDS = 60.0
"""From being told to stop to the end of a run, unless told otherwise."""
MOST_PROFILED = 1000
"""Steps in one trace, which stands in memory until it is written."""


class Invalid(Exception):
    """The user asked for something that cannot be. `problems`: one line each, what is wrong, then a way out."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="gpt"):
    """A GPT-2 style decoder. Sizes are counts of elements along the dim of that name."""

    layers: int
    embed: int
    heads: int
    mlp: int
    vocab: int
    vocab_rows: int
    """Rows of the token table, `vocab` or more. Padding rows make the table divide; their logits are masked."""
    context: int
    """Rows of the position table: the longest sequence that the model can read."""
    dropout: float = 0.1
    remat: bool = False
    """Recompute each block's activations in the backward pass instead of keeping them."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the computation; parameters are float32. `auto`: bfloat16 on accelerators, float32 on CPU."""
    experts: int = 0
    """MLPs of each block, of which a token passes through some; 0: one, through which all do."""
    experts_per_token: int = 1
    capacity_factor: float = 1.25
    """Tokens of a sequence that an expert takes, over those that it would get were all experts preferred alike."""

    @property
    def head_dim(self) -> int:
        return self.embed // self.heads

    def capacity(self, seq_len: int) -> int:
        """Tokens that an expert takes of a sequence (Fedus et al. 2021, "Switch Transformers", equation 3)."""
        return min(seq_len, math.ceil(seq_len * self.experts_per_token * self.capacity_factor / self.experts))


Setting = bool | int | float | str | list[bool | int | float | str]
"""A value of `--set` that is meant for a user's function."""


class UserModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="user"):
    """A function of the user's that makes a Flax NNX module. Only the engine runs it: here no more is known of it."""

    reference: str
    """`package.module:function`, or `/path/to/file.py:function`."""
    directory: str
    """Where its module is found, and those that it imports: the one the command was started in, or that of the file."""
    arguments: dict[str, Setting] = {}
    """Of the function, and of those that may stand beside it."""

    @property
    def place(self) -> str:
        """The module, or the file."""
        return self.reference.rpartition(":")[0]

    @property
    def function(self) -> str:
        return self.reference.rpartition(":")[2]

    @property
    def name(self) -> str:
        """Without the directories."""
        return f"{Path(self.place).name}:{self.function}"


class TrainingConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """AdamW with linear warm-up to a constant rate, on batches of `batch_size` × `seq_len` tokens. A user's model may
    bring an optimizer and batches of its own: of these `batch_size` holds."""

    batch_size: int
    seq_len: int
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    weight_decay: float = 0.1
    grad_clip: float = 1.0

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len


USUAL_TRAINING = TrainingConfig(batch_size=16, seq_len=128)
"""Of a user's model, where nothing else is set."""


class ScheduledSwitch(Struct, frozen=True):
    """Go on under `preset` once `step` steps are done."""

    step: int
    preset: str


class CheckpointConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When the state is saved, and where."""

    every_steps: int | None = None
    every_minutes: float | None = 10.0
    keep: int = 3
    """The last ones; the one with the least loss is kept besides."""
    directory: str | None = None
    """A folder of this name is made for the run in it; also `gs://…`. None: in the run directory."""
    at_end: bool = True
    """The state is saved when the run ends."""


class RunConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that the engine needs to start; stands in the run directory as `run.json`."""

    run: str
    model_name: str
    model: ModelConfig | UserModel
    training: TrainingConfig
    preset: str
    data: str | None = None
    """A text file or a directory of them; None for the standard library's sources."""
    seed: int = 0
    devices: int | None = None
    """Of all processes together."""
    platform: str | None = None
    processes: int = 1
    """That are started on this machine, to try out what runs on several hosts."""
    steps: int | None = None
    """Stop after this many; None runs until it is told to."""
    switches: tuple[ScheduledSwitch, ...] = ()
    preset_files: tuple[str, ...] = ()
    """Presets that the run may switch to, besides those of the known directories."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    low_memory: bool = False
    """A switch frees what it has moved, leaf by leaf, once the state is saved."""
    keep_programs: int = KEEP_PROGRAMS
    """Bytes of host memory for compiled programs; the least recently used go."""
    stop_seconds: float | None = STOP_SECONDS
    """A run that was told to stop ends after so long without its last save; None: it may take as long as it does."""
    device_memory: int | None = None
    """Bytes that a device may use, less than it has: a preset whose predicted peak is above is refused."""

    @property
    def batch(self) -> str:
        """`64 × 2,048 tokens`: what a step takes."""
        training = self.training
        if isinstance(self.model, UserModel):
            return f"{training.batch_size:,} examples"
        return f"{training.batch_size:,} × {training.seq_len:,} tokens"


class Membership(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a process of a run finds the others. What is None jax finds out by itself, on a TPU pod or under Slurm."""

    coordinator: str | None = None
    """HOST:PORT, which process 0 serves; `unix:/path` where all are on this machine."""
    processes: int | None = None
    process: int | None = None
    secret_file: str | None = None
    """With the secret by which processes of the run know each other; None: of the environment, or the run's own."""
    insecure: bool = False
    """No secret, although other hosts may reach the coordinator."""


class WatchedRun(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """The `run.json` of a run that trains in a loop of its own (`watch`): we show it, and could not start it."""

    run: str
    model_name: str
    """What stands in the place of a model's name: that of the program, unless the caller has another."""
    preset: str
    """What its one layout is called."""

    @property
    def refusal(self) -> str:
        """The answer to whatever would change it."""
        return f"run {self.run} is only watched: its own program starts it, saves it and ends it"


class Restart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run goes on in a new engine, or begins."""

    step: int | None = None
    """Of the checkpoint to go on from; None: the newest that is good, the beginning where there is none."""
    preset: str | None = None
    """None: the one it was saved under."""
    other_data: bool = False
    """Also where the corpus is not the one of the checkpoint."""
    profile: int | None = None
    """Steps to trace once the first ones are done."""
    config: RunConfig | None = None
    """In the place of the run's own from now on; None leaves that as it is."""


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


def user_presets() -> Path:
    """The directory of the user's own presets, `$XDG_CONFIG_HOME/shardtui/presets`."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "shardtui" / "presets"


def preset_files(kind: Literal["models", "parallelism"]) -> dict[str, Path]:
    """Name to file, by name and the pitfalls last; a file of the user's with a built-in name takes its place.

    `misnamed_files` are left out.
    """
    paths = [path for path in _toml_files(kind) if FILE_NAME.fullmatch(path.stem)]
    return {path.stem: path for path in sorted(paths, key=lambda path: (is_pitfall(path.stem), path.stem))}


def is_pitfall(preset: str) -> bool:
    """One that is there to learn from."""
    return preset.startswith("pitfall")


def misnamed_files(kind: Literal["models", "parallelism"]) -> list[Path]:
    return [path for path in _toml_files(kind) if not FILE_NAME.fullmatch(path.stem)]


def _toml_files(kind: str) -> list[Path]:
    folders = (PRESETS / kind, user_presets() / kind)
    return [path for folder in folders for path in folder.glob("*.toml") if not path.is_dir()]


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises Invalid with the file's name and place."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_FILE:
                raise Invalid(f"{path}: {size} bytes: at most {LARGEST_FILE}")
            text = file.read().decode()
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{path}: not UTF-8 text (byte {error.start})") from error
    return parse_toml(path, text)


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """The tables of `text`, which stands in the file or will. Raises Invalid with the file's name and place."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, so is a number of 5,000 digits
        raise Invalid(f"{path}: not valid TOML: {error}") from error


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


def problems_of(config: RunConfig) -> list[str]:
    """What is wrong with the numbers of `config`, one line each with a way out. Needs no device."""
    model, training, memory = config.model, config.training, config.device_memory
    every, minutes = config.checkpoints.every_steps, config.checkpoints.every_minutes
    checks = _model_checks(model, training) if isinstance(model, ModelConfig) else []
    checks += [
        (training.batch_size >= 1, f"--batch-size {training.batch_size}: at least 1"),
        (training.seq_len >= 1, f"--seq-len {training.seq_len}: at least 1"),
        (training.learning_rate > 0, f"learning_rate {training.learning_rate}: above 0"),
        (training.warmup_steps >= 0, f"warmup_steps {training.warmup_steps}: 0 or more"),
        (training.grad_clip > 0, f"grad_clip {training.grad_clip}: above 0"),
        (0 <= config.seed < 2**32, f"--seed {config.seed}: from 0 to {2**32 - 1}"),
        (config.devices is None or config.devices >= 1, f"--devices {config.devices}: at least 1"),
        (config.processes >= 1, f"--processes {config.processes}: at least 1"),
        (config.steps is None or config.steps >= 1, f"--steps {config.steps}: at least 1"),
        (every is None or every >= 1, f"--checkpoint-every {every}: at least 1"),
        (minutes is None or minutes > 0, f"--checkpoint-minutes {minutes}: above 0, or 0 for never"),
        (config.checkpoints.keep >= 1, f"--keep {config.checkpoints.keep}: at least 1"),
        (memory is None or memory >= 1, f"--device-memory {memory}: at least 1 byte"),
        (config.keep_programs >= 0, f"--keep-programs {config.keep_programs}: 0 or more bytes"),
        (
            config.stop_seconds is None or config.stop_seconds > 0,
            f"--stop-timeout {config.stop_seconds}: above 0, or 0 for no limit",
        ),
    ]
    problems = [text for holds, text in checks if not holds]
    steps = [switch.step for switch in config.switches]
    for switch in config.switches:
        if steps.count(switch.step) > 1:
            problems.append(f"--switch {switch.step}:{switch.preset}: another switch falls on that step: choose one")
        if problem := _switch_problem(switch.step, config.steps):
            problems.append(f"--switch {switch.step}:{switch.preset}: {problem}")
    return problems


def _switch_problem(step: int, steps: int | None) -> str | None:
    """Why a run of so many steps has no switch there."""
    if step < 1:
        return "a switch falls after the first step or later: give 1 or more"
    if steps is None or step < steps:
        return None
    earlier = f", or switch after step {'1' if steps == 2 else f'1 to {steps - 1}'}" if steps > 1 else ""
    return f"step {step} is not before the last one, {steps}: give --steps {step + 1} or more{earlier}"


def _model_checks(model: ModelConfig, training: TrainingConfig) -> list[tuple[bool, str]]:
    """What has to hold, and what to say where it does not."""
    return [
        (model.layers >= 1, f"layers {model.layers}: at least 1"),
        (model.heads >= 1, f"heads {model.heads}: at least 1"),
        (model.embed >= 1, f"embed {model.embed}: at least 1"),
        (model.mlp >= 1, f"mlp {model.mlp}: at least 1"),
        (model.vocab >= 256, f"vocab {model.vocab}: the tokens are bytes: at least 256"),
        (model.vocab_rows >= model.vocab, f"vocab_rows {model.vocab_rows}: at least vocab, {model.vocab}"),
        (0 <= model.dropout < 1, f"dropout {model.dropout}: from 0 to below 1"),
        (model.experts >= 0, f"experts {model.experts}: 1 or more, or 0 for a dense MLP"),
        (
            model.experts < 1 or 1 <= model.experts_per_token <= model.experts,
            f"experts_per_token {model.experts_per_token}: from 1 to experts, {model.experts}",
        ),
        (0 < model.capacity_factor < math.inf, f"capacity_factor {model.capacity_factor}: above 0"),
        (
            model.heads < 1 or model.embed % model.heads == 0,
            f"embed {model.embed} does not divide by heads {model.heads}: set one of them",
        ),
        (
            training.seq_len <= model.context,
            f"--seq-len {training.seq_len} is longer than the model's context of {model.context}: "
            f"add --set context={training.seq_len}",
        ),
    ]
