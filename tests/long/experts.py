"""FLOPs and memory of one layer's experts, forward and backward on one TPU, by dense and by ragged products.

`python tests/long/experts.py [--record]` (under a minute) needs the extra `tpu`.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from shardtui.engine.models.blocks import Mixture
from shardtui.engine.spec.config import ModelConfig
from shardtui.engine.spec.model_choice import load_model

from tests.suite import versions
from tests.table import Table, arguments

MODELS = ("mixtral-8x7b", "qwen3-30b-a3b")
TOPOLOGY, TOKENS = "v5p:2x2x1", 4096
COLUMNS = {
    "model": "",
    "products": "",
    "FLOPs": "{:.1f} T",
    "÷ those of the chosen experts": "{:.2f}",
    "temporaries": "bytes",
}


def main() -> None:
    options = arguments(argparse.ArgumentParser(description=__doc__))
    print(f"{versions()}, {TOPOLOGY}, {TOKENS:,} tokens, bfloat16\n")
    device = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices[0]
    with Table("long/experts", COLUMNS, options.record, "python tests/long/experts.py") as table:
        for name in MODELS:
            for products in ("dense", "ragged"):
                config = load_model(name, [f"expert_matmul={products}"]).model
                assert isinstance(config, ModelConfig)
                compiled = compile_experts(config, device)
                flops, memory = compiled.cost_analysis()["flops"], compiled.memory_analysis()
                chosen = 18 * TOKENS * config.experts_per_token * config.embed * config.mlp
                table.add(name, products, flops / 1e12, flops / chosen, memory.temp_size_in_bytes)


def compile_experts(config: ModelConfig, device: jax.Device) -> Any:
    """Compiles the gradients of a mixture of experts for `TOKENS` tokens of one sequence."""
    with nnx.use_eager_sharding(False):
        module = nnx.eval_shape(lambda: Mixture(config, jnp.bfloat16, nnx.Rngs(0)))
    graph, state = nnx.split(module)

    def objective(state: nnx.State, x: jax.Array) -> jax.Array:
        out, balance = nnx.merge(graph, state)(x)
        return jnp.sum(out.astype(jnp.float32) ** 2) + balance.sum()

    placed = SingleDeviceSharding(device)
    x = jax.ShapeDtypeStruct((1, TOKENS, config.embed), jnp.bfloat16, sharding=placed)
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), state)
    return jax.jit(jax.grad(objective, (0, 1))).lower(state, x).compile()


if __name__ == "__main__":
    main()
