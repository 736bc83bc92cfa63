"""An ordinary training loop under `watch`: `python -m tests.own_loop RUN`.

It prints a line of JSON for each event and reads commands from stdin: `go N` makes N steps, `raise` raises in the loop,
after which a new one begins, and `fork` starts a child that sleeps. It ends with stdin.
"""

import json
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.watch import watch

RULES = (("embed", None), ("mlp", "model"))
BATCH, WIDTH, HIDDEN = 16, 32, 64


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        def split(*names: str) -> nnx.Initializer:
            return nnx.with_partitioning(nnx.initializers.lecun_normal(), names)

        self.up = nnx.Linear(WIDTH, HIDDEN, use_bias=False, kernel_init=split("embed", "mlp"), rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, use_bias=False, kernel_init=split("mlp", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(nnx.relu(self.up(x)))


def report(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(name: str) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), nnx.logical_axis_rules(RULES):
        model = Mlp(nnx.Rngs(0))
    tx = optax.adam(1e-2)
    graph, params = nnx.split(model)
    state = {"params": params, "opt_state": tx.init(params), "step": jnp.zeros((), jnp.int32)}
    shardings = jax.tree.map(lambda x: NamedSharding(mesh, x.sharding.spec if x.ndim else P()), state)
    state = jax.device_put(state, shardings)

    def train_step(state, batch):
        def loss(params):
            return jnp.mean((nnx.merge(graph, params)(batch["inputs"]) - batch["targets"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(state["params"])
        updates, opt_state = tx.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, value

    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)
    batch = jax.device_put({"inputs": x, "targets": x[:, ::-1]}, NamedSharding(mesh, P("data")))
    step = jax.jit(train_step, donate_argnums=0).lower(state, batch).compile()
    ended = False
    while not ended:
        try:
            with watch(name, state=state, step=step, args=(state, batch), tokens_per_step=BATCH) as run:
                report(began=run.name)
                ended = True
                for line in sys.stdin:
                    match line.split():
                        case ["go", count]:
                            losses = []
                            for _ in range(int(count)):
                                state, loss = step(state, batch)
                                run.step(loss)
                                losses.append(loss)
                            report(losses=[float(loss) for loss in losses])
                        case ["raise"]:
                            raise KeyError("no such batch")
                        case ["fork"]:
                            child = os.fork()
                            if not child:
                                time.sleep(60)
                                os._exit(0)
                            report(forked=child)
        except KeyError as error:
            ended = False
            report(raised=str(error))
        report(over=run.name)


if __name__ == "__main__":
    main(sys.argv[1])
