"""The config of a run: its model, its training and where it runs. No jax here: the UI process reads this too."""

import math
from pathlib import Path
from typing import Literal

from msgspec import Struct

SIMULATED_DEVICES = 8
"""CPU devices to simulate if there is no accelerator and `--devices` is not given."""

KEEP_PROGRAMS = 2_000_000_000
"""Bytes of host memory for compiled programs by default: enough for about fifty of nano's."""

STOP_SECONDS = 60.0
"""Seconds that a run may take to end after a stop command, by default."""

AttentionKernel = Literal[
    "plain", "splash", "splash-interpreted", "cudnn", "ring", "ring-splash", "ring-splash-interpreted"
]
"""How attention is computed: `ring-splash` is a ring whose devices use the TPU's kernel, and `interpreted` means that
this kernel runs on another platform, which is slow."""

SPLASH_BLOCKS = (512, 256, 128)
"""Positions in a block of splash attention: the largest that divides the sequence. MaxText 0.2.5 uses 512."""

CUDNN_HEADS, CUDNN_WIDEST = 8, 128
"""`head_dim` for cuDNN's attention: a multiple of the first, at most the second on all GPUs that have it."""

MOST_PROFILED = 1000
"""Steps in one trace at most: a trace is kept in memory until it is written."""


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="gpt"):
    """A GPT-2 style decoder. Sizes are numbers of elements along the dim of that name."""

    layers: int
    """Blocks."""
    embed: int
    """Width of the residual stream."""
    heads: int
    """Attention heads in a block; `embed` is a multiple of it."""
    mlp: int
    """Hidden width of the MLP, or of each expert."""
    vocab: int
    """Distinct tokens."""
    vocab_rows: int
    """Rows of the token embedding, `vocab` or more. Padding rows make it divisible; their logits are masked."""
    context: int
    """Rows of the position embedding: the longest sequence that the model can read."""
    dropout: float = 0.1
    """Probability that an element is dropped in training."""
    remat: bool = False
    """Recompute each block's activations in the backward pass instead of keeping them."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The dtype of the computation; parameters are float32. `auto`: bfloat16 on accelerators, float32 on CPU."""
    attention: Literal["auto", "plain", "splash", "cudnn", "ring"] = "auto"
    """`plain` holds all attention scores; `splash`, a kernel for TPU, and `cudnn`, one for NVIDIA's GPUs, a block of
    them. `ring` does so for a sequence that is split over devices, and is `auto` for others. `auto`: splash on TPU if
    the sequence is a multiple of 128 tokens, cudnn on a GPU of compute capability 8.0 or more in bfloat16 if `head_dim`
    is a multiple of 8 and at most 128, plain otherwise. If the sequence is split, all but `plain` are ring, except that
    `auto` is plain on CPU; and plain, if the shards have an odd number of tokens."""
    experts: int = 0
    """Expert MLPs in each block, to which tokens are routed; 0 for a dense MLP."""
    experts_per_token: int = 1
    """Experts that each token is routed to."""
    capacity_factor: float = 1.25
    """Tokens that an expert accepts, relative to its share if tokens were routed evenly."""

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.embed // self.heads

    @property
    def fits_cudnn(self) -> bool:
        """Whether cuDNN's attention takes heads of this width."""
        return self.head_dim % CUDNN_HEADS == 0 and self.head_dim <= CUDNN_WIDEST

    def capacity(self, seq_len: int) -> int:
        """Tokens of a sequence that an expert accepts (Fedus et al. 2021, "Switch Transformers", equation 3)."""
        return min(seq_len, math.ceil(seq_len * self.experts_per_token * self.capacity_factor / self.experts))


Setting = bool | int | float | str | list[bool | int | float | str]
"""A value of `--set` that is passed to a user's function."""


class UserModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="user"):
    """A function of the user that builds a Flax NNX module. Only the engine imports and calls it."""

    reference: str
    """`package.module:function`, or `/path/to/file.py:function`."""
    directory: str
    """The directory to import from: that of the file, or the working directory if a module is named."""
    arguments: dict[str, Setting] = {}
    """Arguments of the function, and of the optional functions next to it in the same module."""

    @property
    def place(self) -> str:
        """The module or file, without the function."""
        return self.reference.rpartition(":")[0]

    @property
    def function(self) -> str:
        """The name of the function."""
        return self.reference.rpartition(":")[2]

    @property
    def name(self) -> str:
        """The reference without directories: `file.py:function`."""
        return f"{Path(self.place).name}:{self.function}"


class TrainingConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """AdamW with linear warm-up to a constant learning rate, on batches of `batch_size` × `seq_len` tokens.

    A user's model may bring its own optimizer and batches; only `batch_size` then applies.
    """

    batch_size: int
    """Sequences in the global batch of a step."""
    seq_len: int
    """Tokens in a sequence."""
    learning_rate: float = 1e-3
    """The constant rate after the warm-up."""
    warmup_steps: int = 20
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: float = 0.1
    """AdamW's decoupled weight decay."""
    grad_clip: float = 1.0
    """The global norm that gradients are clipped to."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one global batch."""
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
    """Checkpoints to keep: the newest ones. The one with the lowest loss is kept in addition."""
    directory: str | None = None
    """Where the run's checkpoint folder is created, also `gs://…`; None for the run directory."""
    at_end: bool = True
    """Save the state when the run ends."""


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
    checkpoints: CheckpointConfig = CheckpointConfig()
    """When and where checkpoints are saved."""
    low_memory: bool = False
    """A switch saves the state first, then frees each leaf of it as soon as it is moved."""
    keep_programs: int = KEEP_PROGRAMS
    """Bytes of host memory for compiled programs; the least recently used are dropped first."""
    stop_seconds: float | None = STOP_SECONDS
    """Seconds after a stop command until the run ends, even without its last checkpoint; None for no limit."""
    device_memory: int | None = None
    """Bytes that a device may use; a preset whose predicted peak is higher is rejected. None for all it has."""

    @property
    def batch(self) -> str:
        """The global batch in words: `64 × 2,048 tokens`, or `64 examples` for a user's model."""
        training = self.training
        if isinstance(self.model, UserModel):
            return f"{training.batch_size:,} examples"
        return f"{training.batch_size:,} × {training.seq_len:,} tokens"


class Membership(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a process of a run finds the others. jax finds out what is None by itself, on a TPU pod or under Slurm."""

    coordinator: str | None = None
    """HOST:PORT, which process 0 serves; `unix:/path` if all processes are on this machine."""
    processes: int | None = None
    """Processes in the run."""
    process: int | None = None
    """The index of this process, from 0."""
    secret_file: str | None = None
    """A file with the secret that processes of the run share; None for that of the environment, or the run's own."""
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
        """The answer to every command that would change the run."""
        return f"run {self.run} is an external loop: only its own program can control it"


class Restart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a new engine resumes a run, or starts it."""

    step: int | None = None
    """The step of the checkpoint to resume from; None for the newest valid one, or the beginning if there is none."""
    preset: str | None = None
    """The preset to resume with; None for that of the checkpoint."""
    other_data: bool = False
    """Resume even if the corpus is not the one that the checkpoint was trained on."""
    profile: int | None = None
    """Steps to trace, after the first ones; None for no trace."""
    config: RunConfig | None = None
    """A config that replaces the run's own from now on; None keeps the run's."""
