"""Stochastic variational inference in NumPyro: the loop jits `svi.update`."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([6]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)


x = jax.random.normal(jax.random.key(0), (512, 6))
y = x @ jnp.arange(6.0) + 0.1 * jax.random.normal(jax.random.key(1), (512,))
x, y = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
svi = SVI(model, AutoMultivariateNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=4))
state = svi.init(jax.random.key(2), x, y)
update = jax.jit(svi.update)
for _ in range(200):
    state, loss = update(state, x, y)
    print(float(loss).hex())
