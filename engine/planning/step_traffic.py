"""Collectives of a step by formula, and the bytes that each device sends for them."""

from collections.abc import Iterator
from functools import cached_property

from ..hlo.traffic import Flow, sent
from ..spec.preset import Axes
from .step_layout import FLOAT32, KEYS, QUERY, RECEIVED, SENT, StepLayout
from .weight_traffic import Collective, WeightTraffic


class StepTraffic:
    def __init__(self, step: StepLayout) -> None:
        self.step = step

    @cached_property
    def flows(self) -> list[Flow]:
        groups: dict[tuple[str, Axes], list[Collective]] = {}
        for each in self._collectives():
            axes = tuple(axis for axis, size in self.step.mesh.items() if size > 1 and axis in each.axes)
            if each.count and axes:
                groups.setdefault((each.kind, axes), []).append(each)
        found = [self._flow(kind, axes, same) for (kind, axes), same in groups.items()]
        return sorted(found, key=lambda flow: -flow.bytes_known)

    def _flow(self, kind: str, axes: Axes, same: list[Collective]) -> Flow:
        moved = sum(each.count * each.bytes_each for each in same)
        return Flow(
            kind=kind,
            axes=list(axes),
            count=sum(each.count for each in same),
            bytes_per_device=round(moved),
            bytes_known=round(moved),
            bytes_sent=round(sent(kind, round(moved), self.step.shard_count(axes))),
        )

    def _collectives(self) -> Iterator[Collective]:
        yield from WeightTraffic(self.step).collectives()
        yield from self._tensor_parallel_collectives()
        yield from self._pipeline_collectives()

    def _tensor_parallel_collectives(self) -> Iterator[Collective]:
        """Collectives of the activations. If heads or the MLP are split, each of a block's two branches ends in an
        all-reduce of the residual stream, and so does its backward pass (Shoeybi et al. 2019, "Megatron-LM", section
        3). Remat recomputes the first branch only, since nothing needs the result of the second. Where norms are split,
        all of these but the last of the backward pass are reduce-scatters. A split vocabulary adds one all-reduce for
        the lookup, one for the gradient of the logits' input, and three numbers per token for the loss."""
        yield from self._ring_collectives() if self.step.is_ring else self._key_collectives()
        yield from self._repeated_attention()
        yield from self._expert_collectives()
        yield from self._saved_collectives()
        stream, part = self.step.residual_bytes(), self.step.residual_bytes() / self.step.microbatches
        heads, vocab = (self.step.tensor_axes(name) for name in ("heads", "vocab"))
        saved = bool(self.step.saved_axes) and not self.step.is_explicit
        scattered = 2 if self.step.splits_norms else int(saved)
        yield Collective(self.step.scatter_kind, heads, part, self.step.block_runs * scattered)
        reduced = (3 if self.step.recomputes("out_proj") else 2) - scattered
        yield Collective("all-reduce", heads, part, self.step.block_runs * reduced)
        if not self.step.model.experts:
            yield from self._mlp_collectives(part)
        yield Collective("all-reduce", vocab, stream, 2)
        yield Collective("all-reduce", vocab, self._token_bytes, 3)

    def _mlp_collectives(self, part: float) -> Iterator[Collective]:
        """Reductions of `part` bytes of the MLP's result, and of the gradient of its input. A norm of the result needs
        it as a whole, and remat recomputes it. Where the input has no norm, the gradients of a gated MLP's two kernels
        are reduced separately."""
        model, hidden = self.step.model, self.step.tensor_axes("mlp")
        has_post = model.norm_places != "pre"
        backward = 2 if model.norm_places == "post" and model.is_gated else 1
        forward = 2 if has_post and self.step.recomputes("mlpwo") else 1
        is_scattered = bool(hidden) and self.step.saved_axes == hidden and not has_post
        for scatters, times in ((is_scattered, forward), (is_scattered and self.step.splits_norms, backward)):
            kind = self.step.scatter_kind if scatters else "all-reduce"
            yield Collective(kind, hidden, part, times * self.step.block_runs)

    def _saved_collectives(self) -> Iterator[Collective]:
        """Collectives of the residual stream that remat saves split between blocks.

        It is gathered for both forward passes of a block, its gradient for the backward pass, and both once outside the
        blocks; the MLP then ends in a reduce-scatter (Korthikanti et al. 2022, "Reducing Activation Recomputation",
        section 4.2.2). Under automatic axis types norms are computed on parts of the width, too: their outputs are
        gathered, eight gathers in all, and their sums take 13 numbers per token, 6 of an RMSNorm; with experts or norms
        after branches only the first norm, five gathers and about half as many numbers (measured).
        """
        axes, stream, is_rms = self.step.saved_axes, self.step.residual_bytes(), self.step.model.norm == "rms"
        gathers, sums = (8, 6 if is_rms else 13) if self.step.splits_norms else (5, 3 if is_rms else 7)
        if self.step.is_explicit or self.step.model.norm_places == "post":
            gathers, sums = 3, 0
        part, numbers = (size / self.step.microbatches for size in (stream, sums * self._token_bytes))
        outside = 2 * self.step.microbatches
        yield Collective("all-gather", axes, part, gathers * self.step.block_runs + outside)
        yield Collective("all-reduce", axes, numbers, self.step.block_runs)

    @property
    def _token_bytes(self) -> float:
        return self.step.activation_elements(("batch", "seq")) * FLOAT32

    def _pipeline_collectives(self) -> Iterator[Collective]:
        """Every tick, forward and backward, passes a micro-batch to the next stage. The output of the last stage is
        shared with all stages, and so is the gradient of the first one's input. What remat saves split is also passed
        on and shared split. With repeats, stages exchange chunks of parameters, and of their gradients, in float32."""
        pipeline = self.step.pipeline
        if pipeline is None:
            return
        stages, saved = tuple(pipeline.axes), self.step.saved_stream_bytes()
        yield Collective("collective-permute", stages, saved / pipeline.microbatches, 2 * pipeline.ticks)
        yield Collective("all-reduce", stages, self.step.residual_bytes(), 1)
        yield Collective("all-reduce", stages, saved, 1)
        for weight in (weight for weight in self.step.weights if weight.is_stacked):
            layers = self.step.local_elements(weight.array.shape, weight.spec) * FLOAT32
            yield Collective("collective-permute", stages, layers / pipeline.repeats, 2 * pipeline.moves)

    def _key_collectives(self) -> Iterator[Collective]:
        """Context parallelism (Dubey et al. 2024, "The Llama 3 Herd of Models", section 3.3.2). If the sequence is
        split, each shard all-gathers the keys and values of all positions for its queries, and once more with remat.
        Their gradients are reduce-scattered, for the keys in float32."""
        axes = tuple(axis for axis in self.step.seq_axes if axis not in self.step.rules.get("keys", ()))
        keys, layers = self.step.activation_elements(KEYS) / self.step.microbatches, self.step.block_runs
        yield Collective(
            "all-gather", axes, 2 * keys * self.step.itemsize, layers * (2 if self.step.model.remat else 1)
        )
        yield Collective(self.step.scatter_kind, axes, keys * FLOAT32, layers)
        yield Collective(self.step.scatter_kind, axes, keys * self.step.itemsize, layers)

    def _repeated_attention(self) -> Iterator[Collective]:
        """Attention by a kernel runs in a `shard_map`, whose transpose sums the gradients of queries, keys and values
        over the mesh axes that split none of them, though these devices have the same."""
        step = self.step
        if step.attention == "plain":
            return
        split = {*step.split_axes(QUERY), *(step.pipeline.axes if step.pipeline else ())}
        elements = step.head_elements() + 2 * step.activation_elements(("batch", "seq", "kv_heads", "head_dim"))
        idle = tuple(axis for axis in step.mesh if axis not in split)
        yield Collective("all-reduce", idle, elements / step.microbatches * step.itemsize, step.block_runs)

    def _ring_collectives(self) -> Iterator[Collective]:
        """Ring attention (ring_attention.py): keys and values make S − 1 hops, and once more with remat. In the
        backward pass queries and the result's gradients do, with two numbers per head and token, and in float32 the
        queries' gradients, whose last hop is home. Before and after, queries, keys, values and the result are exchanged
        chunk by chunk, of two devices one of their two."""
        axes, layers = self.step.seq_axes, self.step.block_runs
        devices, forward = self.step.shard_count(axes), 2 if self.step.model.remat else 1
        one = self.step.head_elements() / self.step.microbatches
        array, numbers = one * self.step.itemsize, one / self.step.model.head_dim * FLOAT32
        hops = (devices - 1) * layers
        chunks = 4 * (forward + 1) * layers * (1 if devices == 2 else 2)
        last = FLOAT32 if self.step.on_cpu else self.step.itemsize
        yield Collective("collective-permute", axes, array / 2, chunks)
        yield Collective("collective-permute", axes, array, 2 * hops * (forward + 1))
        yield Collective("collective-permute", axes, numbers, 2 * hops)
        yield Collective("collective-permute", axes, one * FLOAT32, hops)
        yield Collective("collective-permute", axes, one * last, layers)

    def _expert_collectives(self) -> Iterator[Collective]:
        """Collectives of a mixture of experts; remat repeats the forward pass.

        If the axes of the experts split the batch, tokens reach their experts and return by all-to-all, and so do their
        gradients (Lepikhin et al. 2020, "GShard", section 3.2). Along other axes every device has all tokens: the
        experts' outputs are all-gathered, and so is the gradient of their inputs. If each expert is split, its two
        matmuls end in an all-reduce like an MLP's.

        If the sequence is split, the router's probabilities are all-gathered to rank the tokens; an expert's input is a
        sum over the shards of the sequence, and its output goes to all of them.
        """
        step, recomputed = self.step, 1 if self.step.model.remat else 0
        if not step.model.experts:
            return
        if step.is_ragged:
            yield from self._ragged_collectives()
            return
        once, twice = step.model.layers * (1 + recomputed), step.model.layers * (2 + recomputed)
        sent, received = (
            step.activation_elements((*dims, "activation_embed")) * step.itemsize for dims in (SENT, RECEIVED)
        )
        experts = step.rules.get("experts", ())
        exchanged = tuple(axis for axis in experts if axis in step.batch_axes)
        gathered = tuple(axis for axis in experts if axis not in exchanged)
        yield Collective("all-to-all", exchanged, sent / step.shard_count(gathered), 2 * twice)
        yield Collective("all-gather", gathered, sent, twice)
        yield Collective("all-reduce", step.tensor_axes("mlp"), received, twice)
        probabilities = step.activation_elements(("batch", "keys", "router")) * FLOAT32
        yield Collective("all-gather", step.seq_axes, probabilities, once)
        unsharded = step.activation_elements(("router", "batch", "activation_embed")) * step.itemsize * step.slots
        is_sharded = sent < unsharded
        yield Collective(step.scatter_kind if is_sharded else "all-reduce", step.seq_axes, unsharded, twice)
        if is_sharded:
            yield Collective("all-gather", step.seq_axes, unsharded, twice)

    def _ragged_collectives(self) -> Iterator[Collective]:
        """Collectives of experts by ragged products (models/experts.py). Devices that share their experts gather their
        tokens, once more with remat, and the gradients of the result; the result and the gradients of the tokens are
        summed over the axes that split the experts or their hidden layer."""
        step, recomputed = self.step, 1 if self.step.model.remat else 0
        experts, hidden = step.rules.get("experts", ()), step.tensor_axes("mlp")
        exchanged = tuple(axis for axis in experts if axis in step.batch_axes)
        tokens = step.activation_elements(("expert_batch", "seq", "activation_embed")) * step.itemsize
        kind = step.scatter_kind if exchanged == (*experts, *hidden) else "all-reduce"
        yield Collective("all-gather", exchanged, tokens, step.model.layers * (2 + recomputed))
        yield Collective(kind, (*experts, *hidden), tokens, step.model.layers * 2)
