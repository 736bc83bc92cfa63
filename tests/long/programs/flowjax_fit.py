"""A normalizing flow that FlowJAX fits to samples: `fit_to_data` is the loop."""

import jax
import jax.numpy as jnp
from flowjax.distributions import Normal
from flowjax.flows import masked_autoregressive_flow
from flowjax.train import fit_to_data

x = jax.random.normal(jax.random.key(0), (640, 3))
x = x.at[:, 1].add(jnp.sin(2 * x[:, 0]))
flow = masked_autoregressive_flow(jax.random.key(1), base_dist=Normal(jnp.zeros(3)), flow_layers=2, nn_width=32)
flow, losses = fit_to_data(jax.random.key(2), flow, x, learning_rate=1e-3, max_epochs=6, show_progress=False)
for loss in losses["train"]:
    print(float(loss).hex())
