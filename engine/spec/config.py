"""The config of a run: its model, its training and where it runs. No jax here: the UI process reads this too."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from ..base import formatting
from .attempt import Attempt
from .model_config import ModelConfig

SIMULATED_DEVICES = 8
"""CPU devices without an accelerator and without `--devices`."""
KEEP_PROGRAMS = 2_000_000_000
"""Bytes of host memory for compiled programs by default: enough for about fifty of nano's."""
MARGIN = 0.05
STOP_SECONDS = 60.0
MOST_PROFILED = 1000
"""Steps in one trace at most: a trace is kept in memory until it is written."""

Setting = bool | int | float | str | list[bool | int | float | str]


class UserModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="user"):
    """A function of the user that builds a Flax NNX module. Only the engine imports and calls it."""

    reference: str
    """`package.module:function`, or `/path/to/file.py:function`."""
    directory: str
    """The directory to import from: the file's, or the working directory for a module."""
    arguments: dict[str, Setting] = {}
    """Arguments of the function, and of the optional functions next to it in the same module."""

    @property
    def place(self) -> str:
        return self.reference.rpartition(":")[0]

    @property
    def function(self) -> str:
        return self.reference.rpartition(":")[2]

    @property
    def name(self) -> str:
        return f"{Path(self.place).name}:{self.function}"


Schedule = Literal["constant", "cosine", "linear", "warmup-stable-decay"]
OptimizerName = Literal["adamw", "adafactor", "lion", "muon"]


class TrainingConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """By default AdamW with linear warm-up to a constant learning rate, on batches of `batch_size` × `seq_len` tokens.

    A user's model may bring its own optimizer and batches; only `batch_size` and `accumulate_steps` then apply.
    """

    batch_size: int
    """Sequences in the global batch of a step."""
    seq_len: int
    """Tokens in a sequence."""
    learning_rate: float = 1e-3
    """The highest rate, after the warm-up. Adafactor multiplies it by each parameter's root mean square."""
    warmup_steps: int = 20
    """Steps over which the learning rate rises linearly from 0."""
    schedule: Schedule = "constant"
    """The learning rate after the warm-up. All but `constant` take `decay_steps` to fall to `final_share` of it, where
    it stays; `warmup-stable-decay` falls linearly, after `stable_steps` at the highest rate."""
    decay_steps: int = 0
    """Steps over which the learning rate falls; every schedule but `constant` needs it."""
    stable_steps: int = 0
    """Steps between warm-up and decay, with `warmup-stable-decay`."""
    final_share: float = 0.0
    """The learning rate after the decay, relative to `learning_rate`."""
    optimizer: OptimizerName = "adamw"
    """An optimizer of optax. `muon` updates the matrices inside of blocks, with the root mean square of AdamW's
    updates, and leaves all other parameters to AdamW."""
    weight_decay: float = 0.1
    """Decoupled weight decay: each step subtracts it × learning rate × parameter."""
    decay_mask: Literal["all", "matrices"] = "all"
    """The parameters that decay; `matrices` leaves out biases and the scales of norms."""
    moment_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The dtype of the first moment; `auto`: the parameter's, which second moments always have. `adafactor` has
    no first moment."""
    grad_clip: float = 1.0
    """The global norm that gradients are clipped to."""
    z_loss: float = 0.0
    """Weight of the mean square of log-sum-exp of the logits, added to what is minimised (Chowdhery et al. 2022,
    "PaLM", section 5, use 1e-4). The reported loss is without it."""
    accumulate_steps: int = 1
    """Micro-batches of a step: gradients are summed over them before one update, so that a device holds the activations
    of one. Losses equal the whole batch's up to rounding."""

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len


class ScheduledSwitch(Struct, frozen=True):
    """A switch to `preset` once `step` steps are done."""

    step: int
    """Steps done before the switch."""
    preset: str
    """The preset's name or file."""


class CheckpointConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When and where checkpoints are saved, and how many are kept."""

    every_steps: int | None = None
    """Steps between checkpoints; None for no checkpoints by step."""
    every_minutes: float | None = 10.0
    """Minutes between checkpoints; None for no checkpoints by time."""
    keep: int = 3
    """Checkpoints to keep: the newest ones. The best one is kept in addition: that of the
    lowest held-out loss, or without one the lowest training loss."""
    directory: str | None = None
    """Where the run's checkpoint folder is created, also `gs://…`; None for the run directory."""
    at_end: bool = True
    """Save the state when the run ends."""


class EvaluationConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Held-out data, in `data` or `share`, and how often their loss is computed."""

    data: str | None = None
    """Held-out data, in the forms of the training data."""
    share: float | None = None
    """The fraction of the training data, at its end, that is held out."""
    every_steps: int = 100
    """Steps between evaluations."""
    batches: int = 8
    """Batches in an evaluation, of the size of a training batch; fewer if there is not enough data."""


class AnomalyConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run is watched for what goes wrong, and what happens then."""

    on_nonfinite: Literal["pause", "skip", "stop"] = "pause"
    """`skip`: the step changes nothing but the number of steps, for which each step reads the state once more."""
    on_spike: Literal["log", "pause", "stop"] = "log"
    """`log`: the spike is only an event, and a mark in the chart."""
    numbers_every: int | None = None
    """Steps between measurements of all arrays; 0 for none. None: 100, or more to stay below 1 % of the time."""


MOST_SAMPLED = 1024
MOST_PROMPTED = 4096


class Sampling(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How text is sampled from the model. Tokens are bytes."""

    prompt: Annotated[str, Meta(max_length=MOST_PROMPTED)] = ""
    """The text to continue; a line break if it is empty."""
    tokens: Annotated[int, Meta(ge=1, le=MOST_SAMPLED)] = 64
    """Tokens to sample."""
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    """Divides the logits; 0 takes the most probable token."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Seed of the sample."""
    every_steps: Annotated[int, Meta(ge=1)] | None = None
    """Steps between samples of a run; None for a sample by command."""


DestinationKind = Literal["csv", "tensorboard", "wandb"]


class Destination(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the curves of a run are written while it trains."""

    kind: DestinationKind
    """The form: a CSV file, event files of TensorBoard, or a run of Weights & Biases."""
    place: str
    """Absolute path of the file, or of the directory in which the run gets its own; or the name of the project."""

    @property
    def words(self) -> str:
        return f"{self.kind}:{self.place}"


class RunConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the engine needs to start a run. Stored in the run directory as `run.json`."""

    run: str
    """The run's name."""
    model_name: str
    """The model's name: a model preset, or `file.py:function`."""
    model: ModelConfig | UserModel
    """The built-in decoder's sizes, or a user's function."""
    training: TrainingConfig
    """Batch and optimizer."""
    preset: str
    """The parallelism preset to start with: a name or a file."""
    weights: str | None = None
    """A directory of transformers whose `*.safetensors` are the initial parameters; None for random ones."""
    data: str | None = None
    """A text file or a directory of text files; None for the source code of Python's standard library."""
    seed: int = 0
    """Seed of the parameters, the order of the data and dropout."""
    devices: int | None = None
    """Devices to use, over all processes; None for all that are found."""
    platform: str | None = None
    """The jax platform, such as `cpu`; None lets jax choose."""
    processes: int = 1
    """Processes to start on this machine, to try out a run on several hosts."""
    steps: int | None = None
    """Stop after this many steps; None runs until a stop command."""
    switches: tuple[ScheduledSwitch, ...] = ()
    """Switches to other presets at given steps, `--switch`."""
    preset_files: tuple[str, ...] = ()
    """Files of presets that the run may switch to, in addition to those in the preset directories."""
    evaluation: EvaluationConfig | None = None
    """The held-out data and how often it is evaluated; None for no evaluation."""
    anomalies: AnomalyConfig = AnomalyConfig()
    """How what goes wrong is found, and what follows."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    """When and where checkpoints are saved."""
    check_devices: int | None = None
    """Steps between comparisons of the replicas of all arrays; None for none."""
    low_memory: bool = False
    """A switch saves the state first, then frees each leaf of it as soon as it is moved."""
    keep_programs: int = KEEP_PROGRAMS
    """Bytes of host memory for compiled programs; the least recently used are dropped first."""
    stop_seconds: float | None = STOP_SECONDS
    """Seconds after a stop command until the run ends, even without its last checkpoint; None for no limit."""
    sampling: Sampling | None = None
    """Text to sample every so many steps; None for none."""
    metrics_to: tuple[Destination, ...] = ()
    """Where the curves are written while the run trains, `--to`."""
    device_memory: int | None = None
    """Bytes that a device may use; a preset whose predicted peak is higher is rejected. None for all it has."""
    margin: float = MARGIN
    """The share of a device's memory that `remat = "auto"` leaves free."""

    @property
    def batch(self) -> str:
        """The global batch in words: `64 × 2,048 tokens`, or `64 examples` for a user's model."""
        if isinstance(self.model, UserModel):
            return formatting.counted(self.training.batch_size, "example")
        return f"{self.training.batch_size:,} × {self.training.seq_len:,} tokens"

    @property
    def has_automatic_remat(self) -> bool:
        return isinstance(self.model, ModelConfig) and self.model.remat == "auto"

    def with_remat(self, remat: bool | str) -> "RunConfig":
        """Returns it with another remat. Only for a built-in model."""
        return replace(self, model=replace(self.model, remat=remat))


class Membership(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Discovery of a run's other processes. jax finds what is None by itself, on a TPU pod or under Slurm."""

    coordinator: str | None = None
    """HOST:PORT, which process 0 serves; `unix:/path` if all processes are on this machine."""
    processes: int | None = None
    process: int | None = None
    secret_file: str | None = None
    """File with the processes' shared secret; None for the environment's, or the run's own."""
    insecure: bool = False
    """Use no secret, even if other hosts can reach the coordinator."""


class WatchedRun(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """The `run.json` of a run whose training loop is a user's own program (`watch`). It can be shown, not started."""

    run: str
    """The run's name."""
    model_name: str
    """A name for the model: the program's, unless the caller of `watch` gives one."""
    preset: str
    """A name for its one layout, in place of a preset's."""

    @property
    def refusal(self) -> str:
        return f"run {self.run} is an external loop: only its own program can control it"


class Restart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a new engine resumes a run (from the newest valid checkpoint by default), or starts it."""

    step: int | None = None
    preset: str | None = None
    """None for the checkpoint's."""
    other_data: bool = False
    """Resume even if the checkpoint was trained on another corpus."""
    profile: int | None = None
    """Steps to trace, after the first ones; None for no trace."""
    profile_every: float | None = None
    """Minutes between breakdowns of a step; None for none."""
    config: RunConfig | None = None
    attempt: Attempt | None = None
    fallback: tuple[str, ...] = ()

    @property
    def is_again(self) -> bool:
        """Whether a supervisor starts the run again: the preset may then be too large for the devices."""
        return self.attempt is not None and self.attempt.number > 1
