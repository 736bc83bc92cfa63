"""What a step sends, by formula: its collectives, and what each device sends for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..analysis.traffic import Flow, sent
from ..spec.preset import Axes
from .step_layout import FLOAT32, KEYS, RECEIVED, SENT, StepLayout, Weight, axes_of


@dataclass(frozen=True)
class Move:
    """A collective that a step repeats."""

    kind: str
    axes: Axes
    bytes_each: float
    count: int


class StepTraffic:
    def __init__(self, step: StepLayout) -> None:
        self.step = step

    @cached_property
    def flows(self) -> list[Flow]:
        """The one that moves most first."""
        groups: dict[tuple[str, Axes], list[Move]] = {}
        for move in self._moves():
            axes = tuple(axis for axis in self.step.mesh if axis in move.axes)
            if self.step.count(axes) > 1:
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
            bytes_sent=round(sent(kind, round(moved), self.step.count(axes))),
        )

    def _moves(self) -> Iterator[Move]:
        for weight in self.step.weights:
            yield from self._weight_moves(weight)
        yield from self._tensor_moves()
        yield from self._stage_moves()

    def _weight_moves(self, weight: Weight) -> Iterator[Move]:
        """A parameter that is split over axes which split the batch is gathered for the forward pass and for the
        backward pass, and its gradient is scattered: 3 × its bytes (Rajbhandari et al. 2020, "ZeRO", section 7.2.2).
        Over the other axes of batch and sequence the gradient is reduced. Layers of a stage are gathered and reduced
        together, once a step and in float32 (pipeline.spread)."""
        gather = self.step.gather_axes(weight)
        if self.step.pipeline and weight.is_stacked:
            times, uses, one = 1, 1, self.step.gathered(weight) / self.step.width * FLOAT32
        else:
            times, uses = weight.layers, self._uses(weight)
            one = self.step.gathered(weight) / times
        if gather:
            yield Move("all-gather", gather, one, times * uses)
        yield from self._moment_moves(weight)
        for axes in self._reduced_together(weight):
            scatter = tuple(axis for axis in axes if axis in gather)
            yield Move(self._scatter, scatter, one, times)
            for rest in (self.step.batch_axes, self.step.seq_axes) if self.step.on_cpu else (axes,):
                reduced = tuple(axis for axis in axes if axis in rest and axis not in weight.axes)
                yield Move("all-reduce", reduced, one / self.step.count(scatter), times)

    def _uses(self, weight: Weight) -> int:
        """How often a layer gathers it: a table once. With remat the kernel of query, key and value once more, but not
        on CPU: a block begins with it when it is computed again, and ends with it when it is differentiated. Under
        explicit axis types what is no kernel is gathered once and kept, as a step says so."""
        remat = self.step.model.remat
        if weight.is_table or (self.step.is_explicit and not remat and not weight.is_kernel):
            return 1
        again = remat and not self.step.on_cpu and weight.is_kernel and "qkv" in weight.array.logical_axes
        return 3 if again else 2

    def _moment_moves(self, weight: Weight) -> Iterator[Move]:
        """A moment that is split less than its parameter takes the gradient gathered, float32, each for itself."""
        for spec in weight.moments:
            axes = tuple(axis for axis in self.step.mesh if axis in weight.axes - axes_of(spec))
            yield Move("all-gather", axes, self.step.local(weight.array.shape, spec) * FLOAT32, 1)

    def _reduced_together(self, weight: Weight) -> list[Axes]:
        """The axes that split the tokens, over which the gradient is a sum. On CPU the compiler reduces over those of
        the batch and over those of the sequence one after the other, but for what a product's result is split over."""
        apart = self.step.on_cpu and not weight.is_kernel
        return [self.step.batch_axes, self.step.seq_axes] if apart else [self.step.batch_axes + self.step.seq_axes]

    @property
    def _scatter(self) -> str:
        """On CPU a reduction whose result is cut."""
        return "all-reduce" if self.step.on_cpu else "reduce-scatter"

    def _tensor_moves(self) -> Iterator[Move]:
        """Where heads or the MLP are split, each of the two branches of a block ends in a reduction of the residual
        stream, and so does its backward pass (Shoeybi et al. 2019, "Megatron-LM", section 3). With remat the first
        branch is computed again; the second is not, nothing needs its result. A split vocabulary adds one reduction
        for the lookup, one for the gradient of the logits' input, and three numbers a token for the loss."""
        yield from self._key_moves()
        yield from self._expert_moves()
        stream, part = self.step.residual(), self.step.residual() / self.step.microbatches
        heads, hidden, vocab = (self.step.tensor_axes(name) for name in ("heads", "mlp", "vocab"))
        yield Move("all-reduce", heads, part, self.step.block_runs * (3 if self.step.model.remat else 2))
        if not self.step.model.experts:
            yield Move("all-reduce", hidden, part, self.step.block_runs * 2)
        yield Move("all-reduce", vocab, stream, 2)
        yield Move("all-reduce", vocab, self.step.activation(("batch", "seq")) * FLOAT32, 3)

    def _stage_moves(self) -> Iterator[Move]:
        """Forward and backward, every tick ends with a micro-batch going to the next stage. What the last one has made
        goes to all, and so does the gradient of what the first one was given."""
        if self.step.pipeline:
            stages, stream = tuple(self.step.pipeline.axes), self.step.residual()
            yield Move("collective-permute", stages, stream / self.step.microbatches, 2 * self.step.ticks)
            yield Move("all-reduce", stages, stream, 2)

    def _key_moves(self) -> Iterator[Move]:
        """Where the sequence is split, keys and values of all its positions are gathered for the queries of each part
        (Dubey et al. 2024, "The Llama 3 Herd of Models", section 3.3.2, on context parallelism), with remat once more;
        their gradients are scattered, the keys' in float32 as the product with the queries gives it."""
        axes = tuple(axis for axis in self.step.seq_axes if axis not in self.step.rules.get("keys", ()))
        keys, layers = self.step.activation(KEYS) / self.step.microbatches, self.step.block_runs
        yield Move("all-gather", axes, 2 * keys * self.step.width, layers * (2 if self.step.model.remat else 1))
        yield Move(self._scatter, axes, keys * FLOAT32, layers)
        yield Move(self._scatter, axes, keys * self.step.width, layers)

    def _expert_moves(self) -> Iterator[Move]:
        """Where the axes of the experts split the batch, tokens go to their experts and come back by all-to-alls, and
        their gradients likewise (Lepikhin et al. 2020, "GShard", section 3.2). Along other axes every device has all
        tokens: what its experts make of them is gathered, and the gradient of what they were sent. Where an expert is
        split itself, its two products end in a reduction as those of an MLP do. With remat all of the forward pass is
        done again.

        Where the sequence is split, the router's probabilities are gathered, to count who comes first; what an expert
        is sent is a sum over the parts of the sequence, and what comes back is for all of them."""
        if not self.step.model.experts:
            return
        layers, again = self.step.model.layers, 1 if self.step.model.remat else 0
        sent, received = (
            self.step.activation((*dims, "activation_embed")) * self.step.width for dims in (SENT, RECEIVED)
        )
        experts = self.step.rules.get("experts", ())
        exchanged = tuple(axis for axis in experts if axis in self.step.batch_axes)
        gathered = tuple(axis for axis in experts if axis not in exchanged)
        yield Move("all-to-all", exchanged, sent / self.step.count(gathered), layers * (4 + 2 * again))
        yield Move("all-gather", gathered, sent, layers * (2 + again))
        yield Move("all-reduce", self.step.tensor_axes("mlp"), received, layers * (2 + again))
        choices = self.step.activation(("batch", "keys", "router")) * FLOAT32
        yield Move("all-gather", self.step.seq_axes, choices, layers * (1 + again))
        whole = self.step.activation(("router", "batch", "activation_embed")) * self.step.width * self.step.slots
        is_cut = sent < whole
        yield Move(self._scatter if is_cut else "all-reduce", self.step.seq_axes, whole, layers * (2 + again))
        if is_cut:
            yield Move("all-gather", self.step.seq_axes, whole, layers * (2 + again))
