"""A Flax NNX model with an optimizer, trained by `nnx.jit`; parameters and batches are split by explicit shardings."""

import jax
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        init = nnx.initializers.lecun_normal()
        self.up = nnx.Linear(32, 128, kernel_init=nnx.with_partitioning(init, (None, "model")), rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(128, 10, kernel_init=nnx.with_partitioning(init, ("model", None)), rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(nnx.relu(self.norm(self.up(x)))))


@nnx.jit
def create_model():
    model = MLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    state = nnx.state((model, optimizer))
    nnx.update((model, optimizer), jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model, optimizer


@nnx.jit
def train_step(model, optimizer, metrics, images, labels):
    def loss_fn(model):
        logits = model(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    (loss, logits), gradients = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    metrics.update(loss=loss, logits=logits, labels=labels)
    optimizer.update(model, gradients)
    return loss, optax.global_norm(gradients)


with jax.set_mesh(mesh):
    model, optimizer = create_model()
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    key, split = jax.random.key(1), NamedSharding(mesh, PartitionSpec("data"))
    for _ in range(30):
        key, one, two = jax.random.split(key, 3)
        images = jax.device_put(jax.random.normal(one, (64, 32)), split)
        labels = jax.device_put(jax.random.randint(two, (64,), 0, 10), split)
        loss, norm = train_step(model, optimizer, metrics, images, labels)
        print(float(loss).hex())
