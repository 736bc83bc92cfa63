"""What a run is made of: the model, the training and where it runs. No jax here: the UI process reads this too."""

import math
from pathlib import Path
from typing import Literal

from msgspec import Struct

SIMULATED_DEVICES = 8
"""CPU devices where there is no accelerator and no other number is asked for."""

KEEP_PROGRAMS = 2_000_000_000
"""Bytes of host memory for compiled programs, unless told otherwise: some fifty of nano's."""

STOP_SECONDS = 60.0
"""From being told to stop to the end of a run, unless told otherwise."""

MOST_PROFILED = 1000
"""Steps in one trace, which stands in memory until it is written."""


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
