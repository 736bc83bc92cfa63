"""GPT-2 124M on one GPU: this engine's step compared with a tuned PyTorch one, on the same card.

Needs torch as well as jax, both with CUDA: `pip install torch`. Each side is a process that makes some steps on
request, so that the two are measured alternately.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from shardtui.engine.models.sizes import flops_per_token
from shardtui.engine.spec.model_choice import load_model

from .figure import Figure, at_least

REPEATS = 5
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
"""Dense bf16 FLOP/s, from NVIDIA's data sheets."""
SETTINGS = ("seq_len=1024", "batch_size=32", "dtype=bfloat16")


class Side:
    """A process that makes steps on request and reports tokens/s."""

    def __init__(self, module: str) -> None:
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment.pop("JAX_PLATFORMS")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.bench.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment,
        )
        self.card = self._answer()

    def tokens_per_second(self) -> float:
        """Has it make some steps."""
        assert self._process.stdin
        print("go", file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        """Ends the process."""
        self._process.communicate()


def run() -> list[Figure]:
    """Measures tokens/s of both sides, and MFU on cards of known peak; empty without a GPU."""
    ours = Side("gpu_ours")
    if not ours.card:
        print("gpu: skipped: jax finds no GPU", file=sys.stderr)
        return []
    theirs = Side("gpu_torch")
    pairs = [(ours.tokens_per_second(), theirs.tokens_per_second()) for _ in range(REPEATS)]
    ours.end()
    theirs.end()
    model = load_model("gpt2", SETTINGS)
    torch = median(rate for _, rate in pairs)
    figures = [
        at_least(
            1.0,
            f"tokens/s of GPT-2 124M, sequence 1,024, bf16, ours ÷ PyTorch's, {ours.card}",
            [own / other for own, other in pairs],
            "×",
            f"torch.compile with flash attention: {torch:,.0f} tokens/s",
        )
    ]
    peak = next((flops for name, flops in PEAK.items() if name in ours.card), None)
    if peak:
        flops = flops_per_token(model.model, model.training.seq_len)
        figures.append(
            at_least(
                0.4,
                "model FLOP utilisation: tokens/s · (6·N + 12·L·D·T) ÷ peak",
                [rate * flops / peak for rate, _ in pairs],
                "×",
                f"{flops / 1e6:,.0f} MFLOP a token, {peak / 1e12:,.0f} TFLOP/s dense bf16",
            )
        )
    return figures
