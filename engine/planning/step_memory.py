"""Memory of a step by formula, in bytes per device."""

from functools import cached_property

import jax

from .step_layout import BFLOAT16, FLOAT32, KEYS, LANES, RECEIVED, SENT, StepLayout
from .weight import spec_of

HIDDEN_RESIDUALS = {"gelu": 6, "geglu": 8, "swiglu": 6}
"""Arrays of the hidden layer's size that an MLP saves: the results of its matmuls, the input of the last one, and what
the derivative of GELU's tanh form or of SiLU needs (`jax.ad_checkpoint.print_saved_residuals`)."""


class StepMemory:
    """Formulas for what a step holds. All sizes are bytes per device."""

    def __init__(self, step: StepLayout) -> None:
        self.step = step

    @cached_property
    def argument_bytes(self) -> int:
        return sum(self._argument_parts.values())

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes at the peak by what they hold, the largest first. These are arguments, saved activations, copies of
        kernels and stages, and the larger of two: the logits with their gradient, or the last block of the backward
        pass with all gradients."""
        found = {**self._argument_parts, "saved activations": self.saved_bytes, "kernel copies": self.copy_bytes}
        found |= {"stage copies": self.stage_bytes}
        if self.logits_bytes > self.gradient_bytes + self.block_bytes:
            found |= {"logits": self.logits_bytes}
        else:
            found |= {"gradients": self.gradient_bytes, "one block": self.block_bytes}
        ordered = sorted(found.items(), key=lambda part: -part[1])
        return {name: round(size) for name, size in ordered if size}

    @cached_property
    def _argument_parts(self) -> dict[str, int]:
        """Float32 parameters and Adam's two moments take 12 bytes per parameter. Rajbhandari et al. 2020, "ZeRO",
        section 3.1, count 16 with a half-precision copy and gradients, which are temporaries here."""
        names = {"parameter": "parameters", "moment": "moments", "batch": "batch", "scalar": "scalars"}
        found = dict.fromkeys(names.values(), 0)
        decisions = jax.tree.leaves((self.step.state, self.step.batch))
        for array, decision in zip(self.step.task.arrays, decisions, strict=True):
            found[names[array.kind]] += (
                self.step.local_elements(array.shape, spec_of(decision, self.step.mesh)) * array.dtype.itemsize
            )
        return found

    @property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients: float32, laid out like the parameters. That of an output layer's own table is kept as
        it is computed until the end, if it is all-reduced over a whole slice and then sliced (measured on TPU)."""
        step = self.step
        split = sum(step.local_elements(weight.array.shape, weight.spec) * FLOAT32 for weight in step.weights)
        axes = step.gather_axes(step.output_table)
        is_kept = step.on_tpu and not step.model.tied and axes and step.is_slice(axes)
        return split + (step.gathered_bytes(step.output_table) if is_kept else 0)

    @property
    def copy_bytes(self) -> float:
        """Bytes of kernels in the compute dtype, converted once for all layers before they are all-gathered. On CPU
        each layer converts its own, and keeps bfloat16 and float32 copies for the backward pass's matmuls."""
        step = self.step
        if not step.is_bfloat16 or (step.on_cpu and (step.model.remat or step.pipeline)):
            return 0
        each = BFLOAT16 + FLOAT32 if step.on_cpu else BFLOAT16
        return each * sum(
            step.local_elements(weight.array.shape, weight.spec) for weight in step.weights if weight.is_kernel
        )

    @property
    def saved_bytes(self) -> float:
        """Bytes that all layers save for the backward pass: the input of each block with remat, else its residuals. A
        pipeline stage saves its layers' in every tick, and without remat also its input. One residual stream
        waits in its first stage for the first or the next pass."""
        step = self.step
        if not step.pipeline:
            return self._saved_in_layers
        inputs = 0 if step.model.remat else step.residual_bytes() * step.ticks / step.microbatches
        return self._saved_in_layers + inputs + step.saved_stream_bytes()

    @property
    def _saved_in_layers(self) -> float:
        if self.step.model.remat:
            one = self.step.saved_stream_bytes() + self.step.kept_bytes()
        else:
            one = self._product_bytes if self.step.pipeline else block_residuals(self.step)
        return self.step.layers * self.step.bubble_factor * one

    @property
    def _product_bytes(self) -> float:
        """Bytes of the results of a block's matmuls, which is what a pipeline stage saves without remat.

        These are query, key, value, attention's result and, if it is plain, its float32 scores, the hidden layer, twice
        with a gate, and two branches.
        """
        step = self.step
        heads, keys = step.activation_elements(("batch", "seq", "heads", "head_dim")), step.activation_elements(KEYS)
        elements = 2 * heads + 2 * keys + step.hidden_elements() * (2 if step.model.is_gated else 1)
        return elements * step.itemsize + 2 * step.residual_bytes() + step.score_elements() * FLOAT32

    @property
    def stage_bytes(self) -> float:
        """Bytes of copies that only a pipeline stage makes. With repeats, these are its layers in float32 in the order
        of its passes. On CPU they are also what one tick saves, kept separately until the tick ends, and in float32 the
        stage's layers and the accumulators of their gradients, unless a single layer, which needs no loop."""
        step = self.step
        if not step.pipeline:
            return 0
        stacked = [weight for weight in step.weights if weight.is_stacked]
        layers = sum(step.local_elements(weight.array.shape, weight.spec) for weight in stacked) * FLOAT32
        gathered = sum(step.gathered_bytes(weight) for weight in stacked) / step.itemsize * FLOAT32
        interleaved = gathered if step.repeats > 1 else 0
        in_loop = self._saved_in_layers / step.ticks + 2 * layers if step.on_cpu and step.layers > step.repeats else 0
        return interleaved + in_loop

    @property
    def block_bytes(self) -> float:
        """Peak bytes of the backward pass of one block, or of one tick of a pipeline stage without remat, which
        recomputes what its blocks save, beyond what was saved before."""
        step = self.step
        if not step.pipeline or step.model.remat:
            return self._one_block_bytes
        layers = step.layers / step.repeats
        return layers * block_residuals(self.step) / step.microbatches + (self._one_block_bytes if layers > 1 else 0)

    @property
    def _one_block_bytes(self) -> float:
        """Peak bytes of one block's backward pass, beyond what was saved for it.

        It holds the attention scores and their gradient; eight residual streams (the block's input, the MLP's input,
        two norms, two branches, the incoming and the outgoing gradient); the hidden layer before and after GELU, and
        with a gate that, too; what experts without a capacity receive and return; and the two
        largest kernels, all-gathered. On CPU with remat: everything that the block recomputes; if its input was saved
        split, two arrays of that less, or under explicit axis types the gathered input more. With a split sequence also
        what attention moves.
        """
        step, keys = self.step, self._moved_bytes
        if step.on_cpu and step.model.remat:
            whole, split = step.residual_bytes(), step.saved_stream_bytes()
            input_bytes = (whole if step.is_explicit else 2 * (split - whole)) if split < whole else 0
            return (block_residuals(self.step) + input_bytes + keys) / step.microbatches
        gathered = [step.gathered_bytes(weight) / step.layers for weight in step.weights if weight.is_kernel]
        scores = step.score_elements() * (FLOAT32 + step.itemsize)
        stream = 8 * step.residual_bytes()
        hidden = (3 if step.model.is_gated else 2) * step.hidden_elements() * step.itemsize
        received = 0
        if step.model.experts and not step.model.capacity_factor:
            one = step.activation_elements((*RECEIVED, "activation_embed")) * step.itemsize
            received = 2 * (_row_bytes(step) if step.is_ragged else one)
        return (scores + stream + hidden + received + keys) / step.microbatches + sum(sorted(gathered)[-2:])

    @property
    def _moved_bytes(self) -> float:
        """Bytes that attention holds of a split sequence in the backward pass. A ring: queries and the result's
        gradients, twice because the next ones arrive meanwhile; in float32 the gradients of keys and values, and twice
        those of queries; with remat, also what it recomputes, which on CPU is counted with the block. Plain attention,
        on CPU: gathered keys, gathered values, and one gradient."""
        step = self.step
        if step.is_ring:
            recomputed = 4 if step.model.remat and not step.on_cpu else 0
            each = (4 + recomputed) * step.itemsize + 4 * FLOAT32
            return each * step.head_elements() * step.head_padding
        is_split = step.on_cpu and step.shard_count(step.seq_axes) > 1
        return 3 * FLOAT32 * step.activation_elements(KEYS) if is_split else 0

    @property
    def logits_bytes(self) -> float:
        """Bytes of the logits `[B, T, V]`, whose buffer their gradient reuses, and the output layer's table with its
        gradient. If the table is all-gathered, both exist twice: as transferred, and as the matmuls use them; but not
        on GPU, nor on TPU if the rows of a shard fill the lanes of its tiles (measured)."""
        step, table = self.step, self.step.output_table
        row = step.model.embed // step.shard_count(table.spec[1])
        copies = 4 if step.gather_axes(table) and (step.on_cpu or (step.on_tpu and row % LANES)) else 2
        return step.activation_elements(("batch", "seq", "vocab")) * step.itemsize + copies * step.gathered_bytes(table)


def block_residuals(step: StepLayout) -> float:
    """Returns the bytes that a block's forward pass saves for its backward pass, without remat.

    Counted as in Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.1, but for this block as
    JAX differentiates it, which drops nothing: each LayerNorm saves three float32 `[B, T, D]`, each RMSNorm two,
    also of queries and keys, each matmul its input, the softmax its float32 result and a copy in the compute dtype,
    the MLP what `HIDDEN_RESIDUALS` says, and each dropout its mask. Splash attention saves no scores, but pads its
    operands and its result to the lanes of a tile. A ring saves what its device has of them, the result twice, and
    one number per head and token.
    """
    itemsize, model = step.itemsize, step.model
    stream = step.activation_elements(("batch", "seq", "activation_embed"))
    normed = (3 if model.norm == "layer" else 2) * FLOAT32
    norms = 4 if model.norm_places == "both" else 2
    heads, keys = step.head_elements(), step.activation_elements(KEYS)
    attention = (heads + keys) * 2 * itemsize
    if step.is_ring:
        attention = heads * (5 * itemsize + FLOAT32 / model.head_dim)
    return (
        stream * (norms * normed + 2 * itemsize + (2 if model.dropout else 0))
        + attention * step.head_padding
        + (heads + keys) * (normed if model.query_norm != "none" else 0)
        + step.hidden_elements() * HIDDEN_RESIDUALS[model.activation] * itemsize
        + _routing_residuals(step)
        + step.score_elements() * (FLOAT32 + itemsize)
    )


def _routing_residuals(step: StepLayout) -> float:
    """Bytes saved for routing: what experts receive and return `[E, B, C, D]`, and the tokens' slots `[B, T, E, C]`
    to dispatch and to combine, and in float32 for each choice of a token. 0 without experts. Without a capacity
    experts receive all tokens, and there are no slots."""
    model = step.model
    if not model.experts:
        return 0
    if step.is_ragged:
        return 2 * _row_bytes(step)
    slots = step.activation_elements(("batch", "seq", "router", "capacity")) if model.capacity_factor else 0
    moved = sum(step.activation_elements((*dims, "activation_embed")) for dims in (SENT, RECEIVED))
    return moved * step.itemsize + slots * (2 * step.itemsize + model.experts_per_token * FLOAT32)


def _row_bytes(step: StepLayout) -> float:
    """Bytes of the tokens that go into ragged products, and of what comes out, `[B, T, K, D]` each."""
    tokens = step.activation_elements(("expert_batch", "seq", "activation_embed"))
    return tokens * step.model.experts_per_token * step.itemsize
