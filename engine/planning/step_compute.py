"""What a step computes and reads, by formula, on one device."""

from ..models.sizes import flops_per_token
from .ranking import Work
from .step_layout import FLOAT32, StepLayout
from .step_memory import StepMemory


class StepCompute:
    def __init__(self, step: StepLayout, memory: StepMemory) -> None:
        self.step, self.memory = step, memory

    @property
    def work(self) -> Work:
        training = self.step.training
        model_flops = training.tokens_per_step * flops_per_token(self.step.model, training.seq_len)
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
        model, seq = self.step.model, self.step.training.seq_len
        tokens = self.step.activation(("batch", "seq"))
        d, heads, vocab = (
            model.embed,
            model.embed / self.step.count(self.step.tensor_axes("heads")),
            model.vocab_rows / self.step.count(self.step.tensor_axes("vocab")),
        )
        products = self._mlp_flops
        block = tokens * (8 * d * heads + 4 * seq * heads) + sum(products)
        again = block - products[-1] if model.remat else 0
        return self.step.layers * self.step.repeats * (3 * block + again) + tokens * 3 * 2 * d * vocab

    @property
    def _mlp_flops(self) -> list[float]:
        """Of each product of the forward pass, in order. Experts compute on all their slots, filled or not, and their
        tokens are sent and combined by products, too."""
        model = self.step.model
        product = 2 * model.embed * self.step.hidden()
        if not model.experts:
            return [product, product]
        tokens = self.step.activation(("batch", "seq"))
        router = 2 * tokens * model.embed * model.experts
        moved = router * self.step.slots
        return [router, moved, product, product, moved]

    @property
    def _memory_bytes(self) -> float:
        """At least: state and gradients are read and written; kernels are read as they are used, three times; what a
        block computes is written and read, in the forward and in the backward pass. In a pipeline every tick reads the
        kernels and adds to their gradients."""
        moved = 2 * self.memory.argument_bytes
        for weight in self.step.weights:
            gradient = self.step.local(weight.array.shape, weight.spec) * FLOAT32
            moved += (3 * self.step.gathered(weight) + 2 * gradient) * (self.step.ticks if weight.is_stacked else 1)
        passes = (6 if self.step.model.remat else 4) * self.step.layers * self.step.repeats
        return moved + passes * self.memory.residuals()
