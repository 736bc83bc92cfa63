"""Proximal policy optimization in Brax: `ppo.train` is the loop, over eight devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from brax import envs
from brax.training.agents.ppo import networks, train
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def device_put_replicated(tree, devices):
    """Brax 0.14.2 calls it, JAX 0.10 and later have it no more."""
    split = NamedSharding(Mesh(np.array(devices), ("i",)), PartitionSpec("i"))
    return jax.device_put(jax.tree.map(lambda leaf: jnp.stack([leaf] * len(devices)), tree), split)


jax.device_put_replicated = device_put_replicated

small = functools.partial(
    networks.make_ppo_networks, policy_hidden_layer_sizes=(32, 32), value_hidden_layer_sizes=(32, 32)
)


def progress(step, metrics):
    if "training/total_loss" in metrics:
        print(float(metrics["training/total_loss"]).hex())


sizes = {"num_timesteps": 40_960, "num_evals": 9, "episode_length": 100, "num_envs": 64, "num_eval_envs": 8}
sizes |= {"batch_size": 64, "num_minibatches": 2, "unroll_length": 10, "num_updates_per_batch": 2}
fast = envs.get_environment("fast")
train.train(environment=fast, network_factory=small, progress_fn=progress, seed=0, **sizes)
