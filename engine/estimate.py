"""What a step under a preset would hold, move and compute, by formula: no compiler and no device.

The formulas follow what the step is written to do (model.py, task.py): where the compiler does it otherwise, the figure
of the compiled program stands beside this one. Dims as in model.py.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax

from .board import Cost, Row, Work, timed
from .config import Invalid, ModelConfig, UserModel
from .model import flops_per_token
from .preset import Axes, Preset
from .program import decide_all
from .sharding import Decision, by_rules, with_derived
from .task import Array, Task
from .topology import Topology, wiring
from .traffic import Flow, sent

FLOAT32 = 4
NO_FORMULA = "no estimate: the formulas are of the built-in model"
SENT, RECEIVED = ("router", "batch", "capacity"), ("experts", "expert_batch", "capacity")
"""Dims of what experts are sent, where it comes from and where it goes to."""


@dataclass(frozen=True)
class Move:
    """A collective that a step repeats."""

    kind: str
    axes: Axes
    bytes_each: float
    count: int


@dataclass(frozen=True)
class Weight:
    """A parameter and its layout."""

    array: Array
    spec: tuple[Axes, ...]

    @property
    def name(self) -> str:
        return self.array.names[0]

    @property
    def axes(self) -> set[str]:
        return {axis for axes in self.spec for axis in axes}

    @property
    def is_stacked(self) -> bool:
        return self.array.logical_axes[:1] == ("layers",)

    @property
    def layers(self) -> int:
        return self.array.shape[0] if self.is_stacked else 1

    @property
    def is_table(self) -> bool:
        return self.array.logical_axes[0] in ("vocab", "positions")

    @property
    def is_kernel(self) -> bool:
        return self.name.endswith(".kernel")


def estimate_row(task: Task, preset: Preset, devices: int, topology: Topology | None) -> Row:
    """Of one preset. Without a topology: on devices whose chip is not known, so that nothing can be said of time."""
    mesh = preset.sizes(devices)
    step = None
    try:
        if isinstance(task.config.model, UserModel):
            decide_all(task, preset, devices)
        else:
            step = Step(task, preset, devices)
    except Invalid as error:
        return Row(preset=preset.name, mesh=mesh, problems=list(error.problems))
    wired = [wiring(topology, mesh, [axis]) for axis in mesh] if topology else []
    if step is None:
        return Row(preset=preset.name, mesh=mesh, wiring=wired, problems=[NO_FORMULA], laid_out=True)
    cost = Cost(
        argument_bytes=step.argument_bytes,
        peak_bytes=sum(step.parts.values()),
        parts=step.parts,
        capacity_bytes=topology.chip.memory if topology else None,
        collectives=step.flows,
    )
    if topology:
        cost = timed(cost, step.work, topology, mesh)
    pipeline = preset.pipeline(devices, task.config.training.batch_size)
    return Row(preset=preset.name, mesh=mesh, wiring=wired, pipeline=pipeline, estimate=cost)


class Step:
    """One step of a task under a preset, as each device does it. Sizes are in bytes on one device."""

    def __init__(self, task: Task, preset: Preset, devices: int) -> None:
        """`task`: of the built-in model. Raises Invalid where the preset cannot be laid out."""
        assert isinstance(task.config.model, ModelConfig)
        self._state, self._batch = decide_all(task, preset, devices)
        self._task = task
        self._model, self._training = task.config.model, task.config.training
        self._explicit = preset.axis_types == "explicit"
        self._mesh = preset.sizes(devices)
        self._rules = with_derived(preset.rules)
        self._pipeline = preset.pipeline(devices, self._training.batch_size)
        self._width = 2 if task.dtype == "bfloat16" else FLOAT32
        self._on_cpu = task.platform == "cpu"

    @cached_property
    def weights(self) -> list[Weight]:
        arrays, decisions = (jax.tree.leaves(tree.params) for tree in (self._task.state_arrays, self._state))
        return [Weight(array, _spec(decision)) for array, decision in zip(arrays, decisions, strict=True)]

    # Memory

    @cached_property
    def argument_bytes(self) -> int:
        """State and batch."""
        return sum(self._argument_parts.values())

    @cached_property
    def parts(self) -> dict[str, int]:
        """What is there when a step is at its fullest: arguments, what the forward pass saves, copies of the kernels,
        and the fuller one of two moments: the logits with their gradient, or the last block of the backward pass with
        all gradients. The largest first."""
        found = {**self._argument_parts, "saved activations": self.saved_bytes, "kernel copies": self.copy_bytes}
        if self.logits_bytes > self.gradient_bytes + self.block_bytes:
            found |= {"logits": self.logits_bytes}
        else:
            found |= {"gradients": self.gradient_bytes, "one block": self.block_bytes}
        ordered = sorted(found.items(), key=lambda part: -part[1])
        return {name: round(size) for name, size in ordered if size}

    @cached_property
    def _argument_parts(self) -> dict[str, int]:
        """float32 parameters and Adam's two moments are 12 bytes a parameter (Rajbhandari et al. 2020, "ZeRO", section
        3.1, has 16 with a half-precision copy and gradients, which are temporaries here)."""
        names = {"parameter": "parameters", "moment": "moments", "batch": "batch", "scalar": "scalars"}
        found = dict.fromkeys(names.values(), 0)
        decisions = jax.tree.leaves((self._state, self._batch))
        for array, decision in zip(self._task.arrays, decisions, strict=True):
            found[names[array.kind]] += self._local(array.shape, _spec(decision)) * array.dtype.itemsize
        return found

    @property
    def gradient_bytes(self) -> float:
        """float32, laid out as the parameters are."""
        return sum(self._local(weight.array.shape, weight.spec) * FLOAT32 for weight in self.weights)

    @property
    def copy_bytes(self) -> float:
        """Kernels in the dtype of the computation, made once for all layers, before they are gathered."""
        if self._width == FLOAT32:
            return 0
        kernels = (weight for weight in self.weights if weight.is_kernel)
        return sum(self._local(weight.array.shape, weight.spec) * self._width for weight in kernels)

    @property
    def saved_bytes(self) -> float:
        """Of all layers, for the backward pass: with remat the input of each block, otherwise all of `_residuals`. A
        stage saves those of its layers in every tick, and what it is given and what comes out."""
        one = self._residual() if self._model.remat else self._residuals()
        ends = 2 * self._residual() * self._repeats if self._pipeline else 0
        return self._layers * self._repeats * one + ends

    def _residual(self) -> float:
        """The residual stream [B, T, D]."""
        return self._activation(("batch", "seq", "activation_embed")) * self._width

    def _residuals(self) -> float:
        """What the backward pass of a block reads of its forward pass, counted as Korthikanti et al. 2022, "Reducing
        Activation Recomputation", section 4.1, do; but for this block as JAX differentiates it, where nothing is
        dropped: each norm saves three float32 [B, T, D], each product its input, the softmax its float32 result and a
        copy in the dtype of the computation, the tanh form of GELU five of its steps beside the product's input, and
        each dropout its mask."""
        narrow, wide = self._width, FLOAT32
        stream = self._activation(("batch", "seq", "activation_embed"))
        heads = self._activation(("batch", "seq", "heads", "head_dim"))
        keys = self._activation(("batch", "keys", "heads", "head_dim"))
        scores = self._scores()
        masks = 2 * stream if self._model.dropout else 0
        return (
            stream * (6 * wide + 2 * narrow)
            + (heads + keys) * 2 * narrow
            + self._hidden() * 6 * narrow
            + self._routing_residuals()
            + scores * (wide + narrow)
            + masks
        )

    def _hidden(self) -> float:
        """Elements of the hidden layer of the MLP [B, T, F], or of the experts [E, B, C, F]."""
        return self._activation((*(RECEIVED if self._model.experts else ("batch", "seq")), "mlp"))

    def _routing_residuals(self) -> float:
        """Where there are experts: what they receive and what comes back, [E, B, C, D]; the slots of each token
        [B, T, E, C], as they are dispatched and combined and, in float32, for each of its choices."""
        if not self._model.experts:
            return 0
        slots = self._activation(("batch", "seq", "router", "capacity"))
        moved = sum(self._activation((*dims, "activation_embed")) for dims in (SENT, RECEIVED))
        return moved * self._width + slots * (2 * self._width + self._model.experts_per_token * FLOAT32)

    def _scores(self) -> float:
        """Elements of attention [B, N, T, T]."""
        return self._activation(("batch", "heads", "seq")) * self._training.seq_len

    @property
    def block_bytes(self) -> float:
        """The backward pass of one block at its fullest: scores and their gradient; eight times the residual stream
        (the block's input, that of the MLP, two norms, two branches, the gradient as it comes and as it goes); the
        hidden layer before and after GELU; and the two largest kernels, gathered."""
        gathered = [self._gathered(weight) / self._layers for weight in self.weights if weight.is_kernel]
        scores = self._scores() * (FLOAT32 + self._width)
        hidden = self._hidden() * self._width
        return (scores + 8 * self._residual() + 2 * hidden) / self._microbatches + sum(sorted(gathered)[-2:])

    @property
    def logits_bytes(self) -> float:
        """Logits [B, T, V], which become their gradient; and the token table with its gradient, which are there twice
        where the table is gathered: as they are moved, and as the products want them."""
        table = next(weight for weight in self.weights if weight.array.logical_axes[0] == "vocab")
        copies = 4 if self._gather_axes(table) else 2
        return self._activation(("batch", "seq", "vocab")) * self._width + copies * self._gathered(table)

    def _gathered(self, weight: Weight) -> float:
        """Without the split over axes along which it is gathered for use, of all layers."""
        kept = [tuple(axis for axis in axes if axis not in self._gather_axes(weight)) for axes in weight.spec]
        return self._local(weight.array.shape, tuple(kept)) * self._width

    # Traffic

    @cached_property
    def flows(self) -> list[Flow]:
        """The one that moves most first."""
        groups: dict[tuple[str, Axes], list[Move]] = {}
        for move in self._moves():
            axes = tuple(axis for axis in self._mesh if axis in move.axes)
            if self._count(axes) > 1:
                groups.setdefault((move.kind, axes), []).append(move)
        found = [self._flow(kind, axes, moves) for (kind, axes), moves in groups.items()]
        return sorted(found, key=lambda flow: -flow.bytes_known)

    def _flow(self, kind: str, axes: Axes, moves: list[Move]) -> Flow:
        moved = sum(move.count * move.bytes_each for move in moves)
        return Flow(
            kind=kind,
            axes=list(axes),
            count=sum(move.count for move in moves),
            bytes_per_device=round(moved),
            bytes_known=round(moved),
            bytes_sent=round(sent(kind, round(moved), self._count(axes))),
        )

    def _moves(self) -> Iterator[Move]:
        for weight in self.weights:
            yield from self._weight_moves(weight)
        yield from self._tensor_moves()
        yield from self._stage_moves()

    def _weight_moves(self, weight: Weight) -> Iterator[Move]:
        """A parameter that is split over axes which split the batch is gathered for the forward pass and for the
        backward pass, and its gradient is scattered: 3 × its bytes (Rajbhandari et al. 2020, "ZeRO", section 7.2.2).
        With remat the kernel of query, key and value is gathered once more: a block begins with it when it is computed
        again, and ends with it when it is differentiated. Under explicit axis types what is no kernel is gathered once
        and kept, as a step says so. Over the other axes of batch and sequence the gradient is reduced. Layers of a
        stage are gathered and reduced together, once a step and in float32 (pipeline.spread)."""
        gather = self._gather_axes(weight)
        if self._pipeline and weight.is_stacked:
            times, uses, one = 1, 1, self._gathered(weight) / self._width * FLOAT32
        else:
            again = self._model.remat and "qkv" in weight.array.logical_axes and weight.is_kernel
            kept = self._explicit and not self._model.remat and not weight.is_kernel
            times, uses = weight.layers, 1 if weight.is_table or kept else 3 if again else 2
            one = self._gathered(weight) / times
        if gather:
            yield Move("all-gather", gather, one, times * uses)
        for axes in self._reduced_together(weight):
            scatter = tuple(axis for axis in axes if axis in gather)
            yield Move(self._scatter, scatter, one, times)
            for rest in (self._batch_axes, self._seq_axes) if self._on_cpu else (axes,):
                reduced = tuple(axis for axis in axes if axis in rest and axis not in weight.axes)
                yield Move("all-reduce", reduced, one / self._count(scatter), times)

    def _reduced_together(self, weight: Weight) -> list[Axes]:
        """The axes that split the tokens, over which the gradient is a sum. On CPU the compiler reduces over those of
        the batch and over those of the sequence one after the other, but for what a product's result is split over."""
        apart = self._on_cpu and not weight.is_kernel
        return [self._batch_axes, self._seq_axes] if apart else [self._batch_axes + self._seq_axes]

    @property
    def _scatter(self) -> str:
        """On CPU a reduction whose result is cut."""
        return "all-reduce" if self._on_cpu else "reduce-scatter"

    def _tensor_moves(self) -> Iterator[Move]:
        """Where heads or the MLP are split, each of the two branches of a block ends in a reduction of the residual
        stream, and so does its backward pass (Shoeybi et al. 2019, "Megatron-LM", section 3). With remat the first
        branch is computed again; the second is not, nothing needs its result. A split vocabulary adds one reduction
        for the lookup, one for the gradient of the logits' input, and three numbers a token for the loss."""
        yield from self._key_moves()
        yield from self._expert_moves()
        stream, part = self._residual(), self._residual() / self._microbatches
        heads, hidden, vocab = (self._tensor_axes(name) for name in ("heads", "mlp", "vocab"))
        yield Move("all-reduce", heads, part, self._block_runs * (3 if self._model.remat else 2))
        if not self._model.experts:
            yield Move("all-reduce", hidden, part, self._block_runs * 2)
        yield Move("all-reduce", vocab, stream, 2)
        yield Move("all-reduce", vocab, self._activation(("batch", "seq")) * FLOAT32, 3)

    def _stage_moves(self) -> Iterator[Move]:
        """Forward and backward, every tick ends with a micro-batch going to the next stage. What the last one has made
        goes to all, and so does the gradient of what the first one was given."""
        if self._pipeline:
            stages, stream = tuple(self._pipeline.axes), self._residual()
            yield Move("collective-permute", stages, stream / self._microbatches, 2 * self._ticks)
            yield Move("all-reduce", stages, stream, 2)

    def _key_moves(self) -> Iterator[Move]:
        """Where the sequence is split, keys and values of all its positions are gathered for the queries of each part
        (Dubey et al. 2024, "The Llama 3 Herd of Models", section 3.3.2, on context parallelism), with remat once more;
        their gradients are scattered, the keys' in float32 as the product with the queries gives it."""
        axes = tuple(axis for axis in self._seq_axes if axis not in self._rules.get("keys", ()))
        keys, layers = self._activation(("batch", "keys", "heads", "head_dim")) / self._microbatches, self._block_runs
        yield Move("all-gather", axes, 2 * keys * self._width, layers * (2 if self._model.remat else 1))
        yield Move(self._scatter, axes, keys * FLOAT32, layers)
        yield Move(self._scatter, axes, keys * self._width, layers)

    def _expert_moves(self) -> Iterator[Move]:
        """Where the axes of the experts split the batch, tokens go to their experts and come back by all-to-alls, and
        their gradients likewise (Lepikhin et al. 2020, "GShard", section 3.2). Along other axes every device has all
        tokens: what its experts make of them is gathered, and the gradient of what they were sent. Where an expert is
        split itself, its two products end in a reduction as those of an MLP do. With remat all of the forward pass is
        done again.

        Where the sequence is split, the router's probabilities are gathered, to count who comes first; what an expert
        is sent is a sum over the parts of the sequence, and what comes back is for all of them."""
        if not self._model.experts:
            return
        layers, again = self._model.layers, 1 if self._model.remat else 0
        sent, received = (self._activation((*dims, "activation_embed")) * self._width for dims in (SENT, RECEIVED))
        experts = self._rules.get("experts", ())
        exchanged = tuple(axis for axis in experts if axis in self._batch_axes)
        gathered = tuple(axis for axis in experts if axis not in exchanged)
        yield Move("all-to-all", exchanged, sent / self._count(gathered), layers * (4 + 2 * again))
        yield Move("all-gather", gathered, sent, layers * (2 + again))
        yield Move("all-reduce", self._tensor_axes("mlp"), received, layers * (2 + again))
        choices = self._activation(("batch", "keys", "router")) * FLOAT32
        yield Move("all-gather", self._seq_axes, choices, layers * (1 + again))
        whole = self._activation(("router", "batch", "activation_embed")) * self._width * self._slots
        is_cut = sent < whole
        yield Move(self._scatter if is_cut else "all-reduce", self._seq_axes, whole, layers * (2 + again))
        if is_cut:
            yield Move("all-gather", self._seq_axes, whole, layers * (2 + again))

    # Computation

    @property
    def work(self) -> Work:
        training = self._training
        model_flops = training.tokens_per_step * flops_per_token(self._model, training.seq_len)
        return Work(
            flops=self._flops,
            memory_bytes=self._memory_bytes,
            model_flops=model_flops,
            tokens=training.tokens_per_step,
        )

    @property
    def _flops(self) -> float:
        """Of one device: 2 a multiplication and addition; the backward pass has twice those of the forward pass
        (Kaplan et al. 2020, "Scaling Laws", section 2.1); remat repeats the forward pass of a block but its last
        product. Devices that do not split a product repeat it, and stages without a micro-batch multiply zeros."""
        model, seq = self._model, self._training.seq_len
        tokens = self._activation(("batch", "seq"))
        d, heads, vocab = (
            model.embed,
            model.embed / self._count(self._tensor_axes("heads")),
            model.vocab_rows / self._count(self._tensor_axes("vocab")),
        )
        products = self._mlp_flops
        block = tokens * (8 * d * heads + 4 * seq * heads) + sum(products)
        again = block - products[-1] if model.remat else 0
        return self._layers * self._repeats * (3 * block + again) + tokens * 3 * 2 * d * vocab

    @property
    def _mlp_flops(self) -> list[float]:
        """Of each product of the forward pass, in order. Experts compute on all their slots, filled or not, and their
        tokens are sent and combined by products, too."""
        model = self._model
        product = 2 * model.embed * self._hidden()
        if not model.experts:
            return [product, product]
        tokens = self._activation(("batch", "seq"))
        router = 2 * tokens * model.embed * model.experts
        moved = router * self._slots
        return [router, moved, product, product, moved]

    @property
    def _memory_bytes(self) -> float:
        """At least: state and gradients are read and written; kernels are read as they are used, three times; what a
        block computes is written and read, in the forward and in the backward pass. In a pipeline every tick reads the
        kernels and adds to their gradients."""
        moved = 2 * self.argument_bytes
        for weight in self.weights:
            gradient = self._local(weight.array.shape, weight.spec) * FLOAT32
            moved += (3 * self._gathered(weight) + 2 * gradient) * (self._ticks if weight.is_stacked else 1)
        passes = (6 if self._model.remat else 4) * self._layers * self._repeats
        return moved + passes * self._residuals()

    # Stages; without a pipeline all layers are one, which works on the whole batch in one tick

    @property
    def _layers(self) -> float:
        """Of one stage."""
        return self._model.layers / (self._pipeline.stages if self._pipeline else 1)

    @property
    def _microbatches(self) -> int:
        return self._pipeline.microbatches if self._pipeline else 1

    @property
    def _ticks(self) -> int:
        return self._pipeline.ticks if self._pipeline else 1

    @property
    def _block_runs(self) -> int:
        """How often a device goes through a block, forward."""
        return round(self._layers) * self._ticks

    @property
    def _repeats(self) -> float:
        """How often a stage does the work of the whole batch, zeros included."""
        return self._ticks / self._microbatches

    @property
    def _slots(self) -> int:
        """Of each expert for each sequence."""
        return self._model.capacity(self._training.seq_len)

    # Axes

    @property
    def _batch_axes(self) -> Axes:
        return self._rules.get("batch", ())

    @property
    def _seq_axes(self) -> Axes:
        return self._rules.get("seq", ())

    def _gather_axes(self, weight: Weight) -> Axes:
        """Those over which a parameter is split, but not the product that it is used in."""
        experts = self._rules.get("experts", ()) if "experts" in weight.array.logical_axes else ()
        kept = {*experts, *(axis for name in weight.array.logical_axes if name for axis in self._tensor_axes(name))}
        kept |= set(self._pipeline.axes) if self._pipeline else set()
        return tuple(axis for axis in self._mesh if axis in weight.axes and axis not in kept)

    def _tensor_axes(self, logical: str) -> Axes:
        """Over which an activation's dim of this name is split; batch and sequence have taken their own before."""
        if logical not in ("heads", "mlp", "vocab"):
            return ()
        axes = self._rules.get(logical, ())
        return axes if not set(axes) & {*self._batch_axes, *self._seq_axes} else ()

    def _count(self, axes: Iterable[str]) -> int:
        return math.prod(self._mesh[axis] for axis in axes)

    def _local(self, shape: tuple[int, ...], spec: tuple[Axes, ...]) -> int:
        return math.prod(-(-size // self._count(axes)) for size, axes in zip(shape, spec, strict=True))

    def _activation(self, logical: tuple[str, ...]) -> int:
        """Elements of an activation with these dims."""
        sizes = _dims(self._model, self._training.batch_size, self._training.seq_len)
        shape = tuple(sizes[name] for name in logical)
        return self._local(shape, _spec(by_rules(shape, logical, self._rules, self._mesh)))


def _dims(model: ModelConfig, batch: int, seq: int) -> Mapping[str, int]:
    return {
        "batch": batch,
        "seq": seq,
        "keys": seq,
        "activation_embed": model.embed,
        "heads": model.heads,
        "head_dim": model.head_dim,
        "mlp": model.mlp,
        "vocab": model.vocab_rows,
        "experts": model.experts,
        "router": model.experts,
        "expert_batch": batch,
        "capacity": model.capacity(seq) if model.experts else 0,
    }


def _spec(decision: Decision) -> tuple[Axes, ...]:
    return tuple(dim.axes for dim in decision.dims)
