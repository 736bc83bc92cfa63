"""How a preset splits a step of the built-in model: its weights, its activations, its pipeline stages.

Sizes are per device. Dims as in decoder.py.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from ..explain.kernel_layouts import LANES
from ..models.sizes import expert_matmul, query_block, tile_block
from ..models.task import Task
from ..parallel.rules import with_derived
from ..program.placement import decide_all
from ..spec.model_config import KEPT, AttentionKernel, ModelConfig
from ..spec.preset import Axes, Preset
from .weight import Shards, Spec, Weight, weights_of

FLOAT32, BFLOAT16 = 4, 2
"""Bytes per element."""
CUDNN_BLOCK = 128
"""Positions in a block of cuDNN's attention: as in FlashAttention-2 (Dao 2023, section 3.3), as cuDNN's are not
documented."""
SENT, RECEIVED = ("router", "batch", "capacity"), ("experts", "expert_batch", "capacity")
"""Logical axes [E, B, C] of the tokens sent to experts: on the sending and on the receiving side."""
SAVED = ("batch", "seq", "saved_embed")
"""Logical axes [B, T, D] of the residual stream as remat saves it."""
KEYS = ("batch", "keys", "kv_heads", "head_dim")
"""Logical axes [B, T, K, H] of attention's keys, and of its values."""
QUERY = ("batch", "seq", "heads", "head_dim")
"""The same of its queries."""


class StepLayout(Shards):
    """The layout of one training step under a preset. Elements and bytes are per device."""

    def __init__(self, task: Task, preset: Preset, devices: int) -> None:
        """`task`: trains the built-in model. Raises UserError if the preset cannot be laid out."""
        assert isinstance(task.config.model, ModelConfig)
        super().__init__(with_derived(preset.rules), preset.sizes(devices))
        self.state, self.batch = decide_all(task, preset, devices)
        self.task, self.preset = task, preset
        self.model, self.training = task.config.model, task.config.training
        self.is_explicit = preset.axis_types == "explicit"
        self._gather_axes: dict[str, Axes] = {}
        self._gathered_specs: dict[str, Spec] = {}
        self.pipeline = preset.pipeline(devices, self.training.batch_size)
        self.on_cpu, self.on_tpu = task.platform == "cpu", task.platform == "tpu"
        self.is_bfloat16 = task.dtype == "bfloat16"
        self.itemsize = BFLOAT16 if self.is_bfloat16 and not self.on_cpu else FLOAT32
        """Bytes per element of activations: the CPU's compiler computes and sends bfloat16 as float32."""
        self.layers = self.model.layers / (self.pipeline.stages if self.pipeline else 1)
        """Layers per pipeline stage."""
        pipeline = self.pipeline
        schedule = (pipeline.microbatches, pipeline.ticks, pipeline.repeats) if pipeline else (1, 1, 1)
        self.microbatches, self.ticks, self.repeats = schedule
        """Micro-batches, and ticks of the schedule, per step; passes of a micro-batch through the stages."""
        self.block_runs = round(self.layers / self.repeats) * self.ticks
        """Forward passes through a block per device and step: layers that a stage applies in a tick × ticks."""
        self.bubble_factor = self.ticks / (self.repeats * self.microbatches)
        """A stage's work, with the pipeline bubble, relative to the work on the batch alone."""
        self.slots = self.model.capacity(self.training.seq_len) if self.model.experts else 0
        """Capacity of each expert, in tokens per sequence."""
        self.scatter_kind = "all-reduce" if self.on_cpu else "reduce-scatter"
        """Opcode that a reduce-scatter compiles to: on CPU an all-reduce whose result is sliced."""
        self.kept: tuple[str, ...] = KEPT[self.model.remat] if isinstance(self.model.remat, str) else ()
        """The named activations that remat keeps besides a block's input."""
        self.is_ragged = bool(self.model.experts) and expert_matmul(self.model, task.platform) == "ragged"

    @cached_property
    def weights(self) -> list[Weight]:
        return weights_of(self.task.state_arrays, self.state, self.mesh)

    @property
    def output_table(self) -> Weight:
        name = "token.embedding" if self.model.tied else "output.embedding"
        return next(weight for weight in self.weights if weight.name == name)

    def gather_axes(self, weight: Weight) -> Axes:
        """Returns the axes over which a parameter is all-gathered for use: they split it but not its matmul."""
        if weight.name not in self._gather_axes:
            self._gather_axes[weight.name] = self._axes_to_gather(weight)
        return self._gather_axes[weight.name]

    def _axes_to_gather(self, weight: Weight) -> Axes:
        experts = self.rules.get("experts", ()) if "experts" in weight.array.logical_axes else ()
        kept = {*experts, *(axis for name in weight.array.logical_axes if name for axis in self.tensor_axes(name))}
        kept |= set(self.pipeline.axes) if self.pipeline else set()
        return tuple(axis for axis in self.mesh if axis in weight.axes and axis not in kept)

    def activation_elements(self, logical: tuple[str, ...]) -> int:
        """Returns the elements of one device's shard of an activation with these logical axes."""
        return self.local_elements(*self._activation(logical))

    def _activation(self, logical: tuple[str, ...]) -> tuple[tuple[int, ...], Spec]:
        sizes = _dims(self.model, self.training.batch_size, self.training.seq_len)
        shape = tuple(sizes[name] for name in logical)
        return shape, self.spec_of(shape, logical)

    def split_axes(self, logical: tuple[str, ...]) -> Axes:
        """Returns the mesh axes that split an activation with these logical axes."""
        return tuple(axis for axes in self._activation(logical)[1] for axis in axes)

    def recomputes(self, name: str) -> bool:
        """Returns whether remat repeats the product with this name, of those in `KEPT`."""
        is_last = name == "mlpwo" and self.model.norm_places == "pre" and not self.model.experts
        return bool(self.model.remat) and name not in self.kept and not is_last

    def kept_bytes(self) -> float:
        stream, heads = self.activation_elements(("batch", "seq", "activation_embed")), self.head_elements()
        moved = self.activation_elements((*RECEIVED, "activation_embed")) if self.model.experts else stream
        elements = {
            "qkv_proj": heads + 2 * self.activation_elements(KEYS),
            "out_proj": stream,
            "context": heads,
            "mlpwi": self.hidden_elements() * (2 if self.model.is_gated else 1),
            "mlpwo": moved,
        }
        return sum(elements[name] for name in self.kept) * self.itemsize

    @property
    def saved_axes(self) -> Axes:
        """Mesh axes that split the width of the residual stream as remat saves it; none without remat."""
        _, (*_, width) = self._activation(SAVED)
        return width if self.model.remat else ()

    @property
    def splits_norms(self) -> bool:
        """Whether a block's norms are computed on parts of the width, as `blocks.Block` decides it."""
        is_split = bool(self.saved_axes) and not self.is_explicit
        return is_split and not self.model.experts and self.model.norm_places == "pre"

    def residual_bytes(self) -> float:
        return self.activation_elements(("batch", "seq", "activation_embed")) * self.itemsize

    def saved_stream_bytes(self) -> float:
        """Returns the bytes of the residual stream as it is saved between blocks."""
        return self.residual_bytes() / self.shard_count(self.saved_axes)

    def hidden_elements(self) -> float:
        """Returns the elements of the hidden layer of the MLP `[B, T, F]`, or of the experts `[E, B, C, F]`; by ragged
        products `[B, T, K, F]` for the tokens of all devices that share their experts."""
        if self.is_ragged:
            return self.activation_elements(("expert_batch", "seq", "mlp")) * self.model.experts_per_token
        return self.activation_elements((*(RECEIVED if self.model.experts else ("batch", "seq")), "mlp"))

    @property
    def attention(self) -> AttentionKernel:
        kernels = self.task.model.attention_kernels
        assert kernels is not None, "only a user's model has none"
        return kernels.of(self.training.seq_len, self.shard_count(self.seq_axes))

    @property
    def is_ring(self) -> bool:
        return self.attention.startswith("ring")

    @property
    def score_block(self) -> int:
        """Queries in a block of attention scores; all, if attention is plain and the sequence is split."""
        seq, parts = self.training.seq_len, self.shard_count(self.seq_axes)
        match self.attention:
            case "plain":
                return seq if parts > 1 else query_block(seq)
            case "ring" | "ring-splash" | "ring-splash-interpreted":
                return tile_block(seq // parts // 2)
            case "cudnn":
                return min(seq, CUDNN_BLOCK)
            case _:
                return tile_block(seq)

    @property
    def head_padding(self) -> float:
        """Elements of a head as the attention kernel holds it, relative to `head_dim`: 2 for 64 on 128 lanes."""
        return -(-self.model.head_dim // LANES) * LANES / self.model.head_dim if "splash" in self.attention else 1.0

    def head_elements(self) -> float:
        """Returns the elements of a device's queries, and of its own positions' keys, `[B, T, N, H]`."""
        return self.activation_elements(QUERY)

    @cached_property
    def computed_scores(self) -> float:
        """The part of the attention scores `[B, N, T, T]` that is computed, as a mean over the layers: blocks above the
        diagonal and those before a window are left out."""
        layers = range(self.model.layers if self.model.window else 1)
        windows = Counter(map(self.model.window_of, layers))
        size = self.training.seq_len, self.score_block, self.attention == "plain"
        return sum(_computed_scores(each, *size) * count for each, count in windows.items()) / len(layers)

    def score_elements(self) -> float:
        scores = self.activation_elements(("batch", "heads", "seq")) * self.training.seq_len
        return scores * self.computed_scores if self.attention == "plain" else 0

    def gathered_bytes(self, weight: Weight) -> float:
        """Returns the bytes of a parameter, all its layers, as all-gathered for use in the dtype of activations."""
        if weight.name not in self._gathered_specs:
            gathered = self.gather_axes(weight)
            kept = (tuple(axis for axis in axes if axis not in gathered) for axes in weight.spec)
            self._gathered_specs[weight.name] = tuple(kept)
        return self.local_elements(weight.array.shape, self._gathered_specs[weight.name]) * self.itemsize


def _computed_scores(window: int, seq: int, block: int, is_plain: bool) -> float:
    """The part of the attention scores of one layer that is computed. `window`: its positions; 0 if it has none."""
    if not 0 < window < seq:
        return (1 + block / seq) / 2
    starts = range(0, seq, block)
    if is_plain:  # its keys start at the first query's window
        keys = [start + block - max(0, start - window + 1) for start in starts]
    else:
        keys = [start + block - max(0, start - window + 1) // block * block for start in starts]
    return sum(keys) * block / seq**2


def _dims(model: ModelConfig, batch: int, seq: int) -> Mapping[str, int]:
    return {
        "batch": batch,
        "seq": seq,
        "keys": seq,
        "activation_embed": model.embed,
        "saved_embed": model.embed,
        "heads": model.heads,
        "kv_heads": model.key_heads,
        "head_dim": model.head_dim,
        "mlp": model.mlp,
        "vocab": model.vocab_rows,
        "experts": model.experts,
        "router": model.experts,
        "expert_batch": batch,
        "capacity": model.capacity(seq) if model.experts else 0,
    }
