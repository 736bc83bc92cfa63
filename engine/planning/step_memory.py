"""What a step holds, by formula, in bytes on one device."""

from functools import cached_property

import jax

from .step_layout import FLOAT32, KEYS, NARROW, RECEIVED, SENT, StepLayout, spec_of


class StepMemory:
    def __init__(self, step: StepLayout) -> None:
        self.step = step

    @cached_property
    def argument_bytes(self) -> int:
        """State and batch."""
        return sum(self._argument_parts.values())

    @cached_property
    def parts(self) -> dict[str, int]:
        """What is there when a step is at its fullest: arguments, what the forward pass saves, copies of kernels and
        stages, and the fuller one of two moments: the logits with their gradient, or the last block of the backward
        pass with all gradients. The largest first."""
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
        """float32 parameters and Adam's two moments are 12 bytes a parameter (Rajbhandari et al. 2020, "ZeRO", section
        3.1, has 16 with a half-precision copy and gradients, which are temporaries here)."""
        names = {"parameter": "parameters", "moment": "moments", "batch": "batch", "scalar": "scalars"}
        found = dict.fromkeys(names.values(), 0)
        decisions = jax.tree.leaves((self.step.state, self.step.batch))
        for array, decision in zip(self.step.task.arrays, decisions, strict=True):
            found[names[array.kind]] += self.step.local(array.shape, spec_of(decision)) * array.dtype.itemsize
        return found

    @property
    def gradient_bytes(self) -> float:
        """float32, laid out as the parameters are."""
        return sum(self.step.local(weight.array.shape, weight.spec) * FLOAT32 for weight in self.step.weights)

    @property
    def copy_bytes(self) -> float:
        """Kernels in the dtype of the computation, made once for all layers, before they are gathered. On CPU each
        layer makes its own, and the backward pass's are kept, in float32, too, as the products want them."""
        step = self.step
        if not step.is_narrow or (step.on_cpu and (step.model.remat or step.pipeline)):
            return 0
        each = NARROW + FLOAT32 if step.on_cpu else NARROW
        return each * sum(step.local(weight.array.shape, weight.spec) for weight in step.weights if weight.is_kernel)

    @property
    def saved_bytes(self) -> float:
        """Of all layers, for the backward pass: with remat the input of each block, otherwise all of `residuals`. A
        stage saves those of its layers in every tick, and what it is given and what comes out."""
        ends = 2 * self.step.residual() * self.step.repeats if self.step.pipeline else 0
        return self._saved_in_layers + ends

    @property
    def _saved_in_layers(self) -> float:
        one = self.step.residual() if self.step.model.remat else self.residuals()
        return self.step.layers * self.step.repeats * one

    @property
    def stage_bytes(self) -> float:
        """On CPU: what a tick saves stands apart until it ends, and so do a stage's layers, float32, and what adds up
        to their gradients. A single layer is no loop, and has none of these."""
        if not self.step.pipeline or not self.step.on_cpu or self.step.layers == 1:
            return 0
        stacked = (weight for weight in self.step.weights if weight.is_stacked)
        layers = sum(self.step.local(weight.array.shape, weight.spec) for weight in stacked)
        return self._saved_in_layers / self.step.ticks + 2 * layers * FLOAT32

    def residuals(self) -> float:
        """What the backward pass of a block reads of its forward pass, counted as Korthikanti et al. 2022, "Reducing
        Activation Recomputation", section 4.1, do; but for this block as JAX differentiates it, where nothing is
        dropped: each norm saves three float32 [B, T, D], each product its input, the softmax its float32 result and a
        copy in the dtype of the computation, the tanh form of GELU five of its steps beside the product's input, and
        each dropout its mask."""
        narrow, wide = self.step.width, FLOAT32
        stream = self.step.activation(("batch", "seq", "activation_embed"))
        heads = self.step.activation(("batch", "seq", "heads", "head_dim"))
        keys = self.step.activation(KEYS)
        scores = self.step.scores()
        masks = 2 * stream if self.step.model.dropout else 0
        return (
            stream * (6 * wide + 2 * narrow)
            + (heads + keys) * 2 * narrow
            + self.step.hidden() * 6 * narrow
            + self._routing_residuals()
            + scores * (wide + narrow)
            + masks
        )

    def _routing_residuals(self) -> float:
        """Where there are experts: what they receive and what comes back, [E, B, C, D]; the slots of each token
        [B, T, E, C], as they are dispatched and combined and, in float32, for each of its choices."""
        if not self.step.model.experts:
            return 0
        slots = self.step.activation(("batch", "seq", "router", "capacity"))
        moved = sum(self.step.activation((*dims, "activation_embed")) for dims in (SENT, RECEIVED))
        return moved * self.step.width + slots * (2 * self.step.width + self.step.model.experts_per_token * FLOAT32)

    @property
    def block_bytes(self) -> float:
        """The backward pass of one block at its fullest: scores and their gradient; eight times the residual stream
        (the block's input, that of the MLP, two norms, two branches, the gradient as it comes and as it goes); the
        hidden layer before and after GELU; and the two largest kernels, gathered. On CPU with remat: all that the block
        computes again; and where the sequence is split three times the keys of all positions (keys and values as they
        were gathered, and a gradient)."""
        step = self.step
        keys = 3 * FLOAT32 * step.activation(KEYS) if step.on_cpu and step.count(step.seq_axes) > 1 else 0
        if step.on_cpu and step.model.remat:
            return (self.residuals() + keys) / step.microbatches
        gathered = [step.gathered(weight) / step.layers for weight in step.weights if weight.is_kernel]
        scores = step.scores() * (FLOAT32 + step.width)
        stream, hidden = 8 * step.residual(), 2 * step.hidden() * step.width
        return (scores + stream + hidden + keys) / step.microbatches + sum(sorted(gathered)[-2:])

    @property
    def logits_bytes(self) -> float:
        """Logits [B, T, V], which become their gradient; and the token table with its gradient, which are there twice
        where the table is gathered: as they are moved, and as the products want them."""
        table = next(weight for weight in self.step.weights if weight.array.logical_axes[0] == "vocab")
        copies = 4 if self.step.gather_axes(table) else 2
        return self.step.activation(("batch", "seq", "vocab")) * self.step.width + copies * self.step.gathered(table)
