"""FLOPs and memory traffic of a step by formula, per device."""

from ..models.sizes import flops_per_token
from .ranking import Work
from .step_layout import FLOAT32, StepLayout
from .step_memory import block_residuals


class StepCompute:
    def __init__(self, step: StepLayout, argument_bytes: int) -> None:
        self.step, self._argument_bytes = step, argument_bytes

    @property
    def work(self) -> Work:
        """FLOPs and memory traffic of one device, and the model FLOPs and tokens of all."""
        training = self.step.training
        model_flops = training.tokens_per_step * flops_per_token(self.step.model, training.seq_len)
        return Work(
            flops=self._flops, memory_bytes=self._memory_bytes, model_flops=model_flops, tokens=training.tokens_per_step
        )

    @property
    def _flops(self) -> float:
        """FLOPs of one device: 2 per multiply-add, and twice as many backward as forward. Kaplan et al. 2020, "Scaling
        Laws", section 2.1. Remat repeats a block's attention, and the matmuls whose results it does not keep. Devices
        that do not split a matmul repeat it, and pipeline stages without a micro-batch compute, too. Attention leaves
        out blocks of scores above the diagonal; cuDNN's and ring attention compute the others once more backward,
        splash attention twice."""
        model, seq = self.step.model, self.step.training.seq_len
        tokens = self.step.activation_elements(("batch", "seq"))
        d, vocab = model.embed, model.vocab_rows / self.step.shard_count(self.step.tensor_axes("vocab"))
        heads = model.head_dim * model.heads / self.step.shard_count(self.step.tensor_axes("heads"))
        keys = model.head_dim * model.key_heads / self.step.shard_count(self.step.tensor_axes("kv_heads"))
        matmuls = self._mlp_flops
        attention = 4 * tokens * seq * heads * self.step.computed_scores
        backward = 2.0 if self.step.attention == "plain" else 3.5 if "splash" in self.step.attention else 2.5
        queries, out = 2 * tokens * d * (heads + 2 * keys), 2 * tokens * d * heads
        block = queries + out + sum(matmuls)
        kept = queries * self._is_kept("qkv_proj") + out * self._is_kept("out_proj") + self._kept_mlp_flops(matmuls)
        recomputed = block - kept + attention if model.remat else 0
        layer = 3 * block + (1 + backward) * attention + recomputed
        return self.step.layers * self.step.bubble_factor * layer + tokens * 3 * 2 * d * vocab

    def _is_kept(self, name: str) -> bool:
        return not self.step.recomputes(name)

    def _kept_mlp_flops(self, matmuls: list[float]) -> float:
        """FLOPs of the matmuls of an MLP that remat does not repeat. With experts, combining is the last one."""
        model = self.step.model
        *others, down = matmuls if not model.experts else matmuls[:-1]
        inner = others[-2:] if model.is_gated else others[-1:]
        combine = matmuls[-1] if model.experts and model.norm_places == "pre" else 0
        return sum(inner) * self._is_kept("mlpwi") + down * self._is_kept("mlpwo") + combine

    @property
    def _mlp_flops(self) -> list[float]:
        """FLOPs of each matmul of the MLP's forward pass, in order. Experts compute all their slots, filled or not, and
        dispatching and combining their tokens are matmuls, too; without a capacity there is nothing to dispatch, and by
        ragged products they compute their own tokens, here as many for each device."""
        model = self.step.model
        matmuls = [2 * model.embed * self.step.hidden_elements()] * (3 if model.is_gated else 2)
        if not model.experts:
            return matmuls
        router = 2 * self.step.activation_elements(("batch", "seq")) * model.embed * model.experts
        if self.step.is_ragged:
            shards = self.step.shard_count(self.step.rules.get("experts", ()))
            return [router, *(flops / shards for flops in matmuls)]
        if not model.capacity_factor:
            return [router, *matmuls, router]
        dispatch = combine = router * self.step.slots
        return [router, dispatch, *matmuls, combine]

    @property
    def _memory_bytes(self) -> float:
        """Lower bound of the bytes that one device reads and writes. State and gradients are read and written; kernels
        are read for each of three uses; a block's activations are written and read in the forward and in the backward
        pass. In a pipeline every tick reads the kernels of the layers that it applies and adds to their gradients."""
        moved = 2 * self._argument_bytes
        for weight in self.step.weights:
            gradient = self.step.local_elements(weight.array.shape, weight.spec) * FLOAT32
            moved += (3 * self.step.gathered_bytes(weight) + 2 * gradient) * (
                self.step.ticks / self.step.repeats if weight.is_stacked else 1
            )
        passes = (6 if self.step.model.remat else 4) * self.step.layers * self.step.bubble_factor
        return moved + passes * block_residuals(self.step)
