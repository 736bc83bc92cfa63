"""PyTorch's side of `gpu`: the same model, batch and optimizer, compiled, with flash attention.

Prints the card, and then tokens/s for every line on stdin.
"""

import sys
import time

import torch
from shardtui.engine.spec.config import ModelConfig
from shardtui.engine.spec.model_choice import load_model
from torch import nn
from torch.nn import functional as F

from .gpu import SETTINGS

STEPS = 20


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(config.embed), nn.LayerNorm(config.embed)
        self.qkv = nn.Linear(config.embed, 3 * config.embed)
        self.out = nn.Linear(config.embed, config.embed)
        self.up, self.down = nn.Linear(config.embed, config.mlp), nn.Linear(config.mlp, config.embed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[B, T, D]` to `[B, T, D]`."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self._drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self._drop(self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training)


class Gpt(nn.Module):
    """A GPT-2 decoder with tied embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab_rows, config.embed)
        self.position = nn.Embedding(config.context, config.embed)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.embed)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the mean cross-entropy of tokens and targets `[B, T]`."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main() -> None:
    """Compiles and warms up, and then times steps on request."""
    torch.set_float32_matmul_precision("high")
    model = load_model("gpt2", SETTINGS)
    config, training = model.model, model.training
    gpt = torch.compile(Gpt(config).cuda())
    adam = torch.optim.AdamW(
        gpt.parameters(), training.learning_rate, betas=(0.9, 0.95), weight_decay=training.weight_decay, fused=True
    )
    tokens, targets = torch.randint(config.vocab, (2, training.batch_size, training.seq_len), device="cuda")

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = gpt(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(gpt.parameters(), training.grad_clip)
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    print(torch.cuda.get_device_name(), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        print(STEPS * training.tokens_per_step / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()
