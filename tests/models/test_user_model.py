"""User models: the guides' models against the guides' own loops, what a module may hold, and every kind of error."""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.base.user_error import UserError
from shardtui.engine.checkpoint import directory as checkpoint
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.corpus import Corpus
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.models.flops import flops
from shardtui.engine.models.optimizer import optimizer
from shardtui.engine.models.task import Task, TrainState
from shardtui.engine.models.user_code import load_module
from shardtui.engine.planning.estimate import estimate_row, layout_row
from shardtui.engine.planning.goal import SearchRequest
from shardtui.engine.planning.search import Search
from shardtui.engine.program.digest import joined
from shardtui.engine.program.inspection import inspect
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program
from shardtui.engine.program.reshard import Transfers, move_state
from shardtui.engine.spec.config import AnomalyConfig, RunConfig, UserModel
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset_reader import load_preset, parse_preset
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.engine_command import answered
from shardtui.tui.state.recommendation import recommendation

from ..conftest import SHARDTUI, tiny_config
from ..suite import loss_of

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
EXAMPLES: dict[str, dict[str, Any]] = {
    "dot_relu_dot.py:DotReluDot": {"depth": 32},
    "dot_relu_dot.py:LogicalDotReluDot": {"depth": 32},
    "transformer.py:language_model": {"seq_len": 16, "width": 32, "blocks": 1, "dropout": 0.0},
    "vision_transformer.py:VisionTransformer": {"width": 32, "size": 16},
    "digits.py:CNN": {"dropout": 0.0},
}
"""The models of docs/examples, with arguments that make them small and deterministic."""
TEXT = np.frombuffer(Path(__file__).read_bytes(), np.uint8)
RULES = (("embed", None), ("mlp", "model"), ("heads", "model"), ("head_dim", None), ("vocab", None))
RULES += (("positions", None), ("layers", None))

HEAD = "import jax, jax.numpy as jnp, numpy as np, optax\nfrom flax import nnx\n"
LINEAR = "def make(rngs):\n    return nnx.Linear(4, 4, rngs=rngs)\n"
MEAN = "def loss(model, batch):\n    return model(batch).mean()\n"
ONES = "def batch(step, batch_size):\n    return np.ones((batch_size, 4), np.float32)\n"
TOY = (
    HEAD
    + """
from sizes import CLASSES

print("a module may print")

class Toy(nnx.Module):
    def __init__(self, width: int = 16, rate: float = 0.0, *, rngs: nnx.Rngs):
        named = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
        self.layers = nnx.List([nnx.Linear(8, width, kernel_init=named, rngs=rngs), nnx.Linear(width, 8, rngs=rngs)])
        self.shift = jnp.linspace(0.0, 1.0, 8)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.output = nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.output(self.dropout(self.norm(x + self.shift)))

def loss(model, batch, smoothing=0.0):
    logits = model(batch["x"])
    labels = optax.smooth_labels(jax.nn.one_hot(batch["label"], CLASSES), smoothing)
    return optax.softmax_cross_entropy(logits, labels).mean()

def batch(step, batch_size):
    random = np.random.default_rng(step)
    label = random.integers(0, CLASSES, batch_size)
    return {"x": random.standard_normal((batch_size, 8)) + label[:, None], "label": label}
"""
)


def config_of(reference: str, *settings: str, **changes: Any) -> RunConfig:
    choice = choose_model(reference, settings)
    return tiny_config(model_name=choice.name, model=choice.model, training=choice.training, **changes)


def task_of(reference: str, *settings: str, **changes: Any) -> Task:
    return Task(config_of(reference, *settings, data=None, **changes), "cpu")


def written(folder: Path, text: str, name: str = "models.py") -> Path:
    (folder / "sizes.py").write_text("CLASSES = 4\n")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def batches_of(task: Task) -> Any:
    training = task.config.training
    return task.model.batches or Batches(Corpus("here", 1, TEXT), training.batch_size, training.seq_len, 0)


def compiled(task: Task, preset: str) -> Program:
    return compile_program(place(task, load_preset(preset), jax.devices()))


def steps(program: Program, state: TrainState, batches: Any, numbers: range) -> tuple[TrainState, list[float]]:
    losses = []
    for n in numbers:
        shardings, structure = jax.tree.flatten(program.placement.batch_shardings)
        arrays = map(jax.device_put, jax.tree.leaves(batches[n]), shardings)
        state, scalars = program.step(state, structure.unflatten(arrays))
        losses.append(float(scalars["loss"]))
    return state, losses


def unsharded(task: Task, count: int) -> Iterator[tuple[TrainState, float]]:
    """Trains without a mesh or a preset; yields the state after each step and the loss before it."""
    state, step = jax.jit(task.initial_state)(), jax.jit(task.train_step)
    for n in range(count):
        state, scalars = step(state, batches_of(task)[n])
        yield state, float(scalars["loss"])


def guides_losses(model: str, task: Task, count: int) -> list[float]:
    """Trains as in Flax's guide to several devices: one mesh, initialised sharded, nnx.Optimizer, nnx.jit. With the
    example's own functions, and shardtui's text and default optimizer only."""
    assert isinstance(task.config.model, UserModel)
    example, name = load_module(task.config.model), model.partition(":")[2]
    tx = example.optimizer() if hasattr(example, "optimizer") else optimizer(task.config.training, {})
    structure, made = jax.tree.structure(task.batch_arrays), batches_of(task)
    batches = [structure.unflatten(jax.tree.leaves(made[n])) for n in range(count)]
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), nnx.logical_axis_rules(RULES):
        net = nnx.jit(lambda: getattr(example, name)(**EXAMPLES[model], rngs=nnx.Rngs(0)))()
        opt = nnx.Optimizer(net, tx, wrt=nnx.Param)

        @nnx.jit
        def train_step(net: Any, opt: nnx.Optimizer, batch: Any) -> jax.Array:
            value, gradients = nnx.value_and_grad(lambda net: example.loss(net, batch))(net)
            opt.update(net, gradients)
            return value

        sharding = NamedSharding(mesh, P("data"))
        return [float(train_step(net, opt, jax.device_put(batch, sharding))) for batch in batches]


@pytest.mark.parametrize(
    ("model", "presets", "laid_out"),
    [
        (
            "dot_relu_dot.py:DotReluDot",
            ("dp-tp4", "tp"),
            {"dot1.kernel": [[], ["model"]], "nu.w2": [["model"], []], "batch.x": [["data"], []]},
        ),
        pytest.param(
            "dot_relu_dot.py:LogicalDotReluDot",
            ("fsdp-tp2", "dp"),
            {"dot1.kernel": [["fsdp"], ["model"]], "mu.w2": [["model"], ["fsdp"]], "batch.y": [["fsdp"], []]},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "transformer.py:language_model",
            ("dp-tp2", "fsdp"),
            {"blocks.0.mha.query.kernel": [[], ["model"], []], "blocks.0.linear2.kernel": [["model"], []]},
            marks=pytest.mark.core,
        ),
        pytest.param("vision_transformer.py:VisionTransformer", ("hsdp", "tp"), {}, marks=pytest.mark.slow),
        pytest.param("digits.py:CNN", ("dp", "fsdp"), {}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_guides_models_train_and_switch(model: str, presets: tuple[str, str], laid_out: dict[str, Any]) -> None:
    task = task_of(f"{FOLDER}/{model}", "batch_size=8", *(f"{key}={value}" for key, value in EXAMPLES[model].items()))
    first, second = (compiled(task, preset) for preset in presets)
    batches = batches_of(task)
    state, losses = steps(first, compile_initial_state(first.placement)(), batches, range(2))
    moved = Transfers().move(state, second.placement.state_shardings)
    losses += steps(second, moved, batches, range(2, 4))[1]
    assert losses == pytest.approx(guides_losses(model, task, 4), rel=1e-5)
    arrays = {array.name: array for array in first.description.arrays}
    for name, spec in laid_out.items():
        assert arrays[name].spec == arrays[name].compiled_spec == spec, name
    assert first.description.collectives


def test_a_model_that_is_loaded_again_leaves_its_directory_once_in_the_path(tmp_path: Path) -> None:
    model = UserModel(reference=f"{written(tmp_path, 'import sizes')}:make", directory=str(tmp_path))
    for _ in range(3):
        load_module(model)
    assert sys.path.count(str(tmp_path)) == 1
    assert sys.path[-1] == str(tmp_path), "a random.py there does not replace Python's"


def test_parameters_and_flops_are_those_by_hand_and_by_formula(task: Task) -> None:
    """The vision transformer has two blocks."""
    net = task_of(f"{FOLDER}/digits.py:CNN", "batch_size=2")
    products = 28 * 28 * 9 * 32 + 14 * 14 * 9 * 32 * 64 + 7 * 7 * 64 * 256 + 256 * 10
    assert net.flops_per_step == 3 * 2 * 2 * products
    assert net.parameters == 824_458 + 2 * (32 + 64)
    vision = task_of(f"{FOLDER}/vision_transformer.py:VisionTransformer", "batch_size=8")
    patches, width = 64, 64
    block = 12 * width * width * patches + 2 * patches * patches * width
    assert vision.flops_per_step == 3 * 2 * 8 * (patches * 48 * width + 2 * block + width * 10)
    params = place(vision, load_preset("hsdp"), jax.devices()).state.params
    assert params["blocks"]["up"]["kernel"].spec == P(None, "fsdp", None)
    # For the built-in model, whose blocks are scanned. The formula counts the same products.
    batch = jax.tree.structure(task.batch_arrays).unflatten(map(jnp.zeros_like, batches_of(task)[0]))
    counted = 3 * flops(jax.make_jaxpr(lambda params: loss_of(task)(params, batch, None))(task.abstract_state.params))
    assert counted == pytest.approx(task.flops_per_step)


@pytest.mark.core
def test_variables_and_dropout_follow_the_steps_and_an_override_may_name_a_variable(tmp_path: Path) -> None:
    """BatchNorm's means follow the batches, a plain array stays constant, dropout depends on the step."""
    path = written(tmp_path, TOY)
    still = "\ndef optimizer():\n    return optax.sgd(0.0)\n"
    same = "\ndef batch(step, batch_size):\n    return {'x': np.ones((16, 8)), 'label': np.zeros(16, int)}\n"
    path.write_text(TOY + still + same)
    (before, first), (after, second) = unsharded(task_of(f"{path}:Toy"), 2)
    assert first == pytest.approx(second, rel=1e-6)
    assert np.abs(before.variables["norm"]["mean"] - after.variables["norm"]["mean"]).max() > 1e-3
    np.testing.assert_array_equal(after.variables["shift"], before.variables["shift"])
    np.testing.assert_allclose(after.variables["shift"], np.linspace(0, 1, 8), rtol=1e-6)
    plain, smooth = (
        [loss for _, loss in unsharded(task_of(f"{path}:Toy", "rate=0.5", f"smoothing={part}"), 2)] for part in (0, 0.1)
    )
    assert len({first, *plain, *smooth}) == 5, "dropout differs by step, and smoothing reaches the loss"
    path.write_text(TOY)
    task = task_of(f"{path}:Toy")
    preset = parse_preset(Path("p.toml"), '[mesh]\ndata = 8\n[overrides]\n"norm.mean" = ["data"]\n')
    placement = place(task, preset, jax.devices())
    assert placement.state_shardings.variables["norm"]["mean"].spec == P("data")


def test_names_of_dims(tmp_path: Path) -> None:
    """Mesh axes are used as they are, unknown names leave a dim unsharded and say so, older spellings are read."""
    path = written(
        tmp_path,
        HEAD
        + """
class Named(nnx.Module):
    def __init__(self):
        self.a = nnx.Param(jnp.ones((8, 8)), sharding=("model",))
        self.b = nnx.Param(jnp.ones((8, 8)), out_sharding=jax.P(None, ("data", "model")))
        self.c = nnx.Param(jnp.ones((8, 8)), sharding_names=("hidden", "mlp"))

def loss(model, batch):
    return jnp.mean(batch @ model.a[...] @ model.b[...] @ model.c[...])

def batch(step, batch_size):
    return jnp.ones((batch_size, 8))
""",
    )
    with pytest.warns(DeprecationWarning):
        task = task_of(f"{path}:Named", "batch_size=8")
    decided = place(task, load_preset("dp-tp2"), jax.devices()).state.params
    assert [decided[name].spec for name in "abc"] == [P("model", None), P(None, ("data", "model")), P(None, "model")]
    assert decided["c"].dims[0].reason == (
        'hidden: no rule, and not an axis of this mesh: unsharded: hidden = "model" in [rules] splits it'
    )
    assert decided["a"].dims[0].reason == "model: mesh axis → model (2): 8 ÷ 2 = 4"
    rules = '[mesh]\ndata = 4\nmodel = 2\n[rules]\nbatch = "data"\nhidden = "model"\nof_activations = "data"\n'
    mine, twice = (parse_preset(Path("mine.toml"), text) for text in (rules, f'{rules}mlp = "model"\n'))
    assert place(task, mine, jax.devices()).state.params["c"].spec == P("model", None)
    with pytest.raises(UserError, match="c: mlp: rule → model"):
        place(task, twice, jax.devices())
    assert place(task, load_preset("fsdp"), jax.devices()).state.params["a"].spec == P(None, None)


@pytest.mark.slow
def test_user_models_are_estimated_from_their_trace() -> None:
    """Under `dp`, which the compilers for CPU and TPU reduce alike."""
    task = task_of(f"{FOLDER}/transformer.py:language_model", "batch_size=16", "blocks=1")
    slice_ = load_topology("v5e:2x4")
    refused, row = (estimate_row(task, load_preset(name), 8, slice_) for name in ("fsdp4-model16", "dp"))
    assert (refused.verdict, refused.estimate) == ("infeasible", None)
    cost, compiled = row.estimate, compile_program(place(task, load_preset("dp"), jax.devices())).description
    memory, found = compiled.memory, compiled.collectives
    assert cost and memory and found and cost.basis == "traced" and not row.no_estimate
    assert cost.argument_bytes == memory.arguments
    assert cost.bytes_sent == pytest.approx(sum(flow.bytes_sent for flow in flows(found)), rel=0.01)
    assert cost.step_seconds and cost.compute_seconds and cost.tokens_per_second and cost.flop_utilisation
    assert cost.compute_seconds * slice_.chip.flops * 8 == pytest.approx(task.flops_per_step, rel=0.01)


@pytest.mark.slow
def test_a_search_tries_the_axes_that_split_a_users_model() -> None:
    slice_ = load_topology("v5e:2x4")
    task = task_of(f"{FOLDER}/transformer.py:language_model", "batch_size=16")
    search = Search(task, slice_, SearchRequest(kept=["batch_size"], minutes=5))
    found = search.rows([load_preset("dp-ep4")])
    assert found[0].verdict == "fits"
    assert all(row.estimate and row.estimate.basis == "traced" for row in found)
    assert not {axis for row in found for axis in row.mesh} - {"data", "fsdp", "seq", "model"}
    assert {tuple(row.settings) for row in found} == {()}, "remat is in the user's code"


def test_axes_that_the_mesh_lacks_are_refused() -> None:
    task = task_of(f"{FOLDER}/dot_relu_dot.py:DotReluDot", "batch_size=64")
    row = layout_row(task, load_preset("dp"), 64, load_topology("v5p:4x4x4"))
    assert "once they are traced or compiled" in recommendation([row], "v5p:4x4x4")
    task = task_of(f"{FOLDER}/dot_relu_dot.py:DotReluDot", "batch_size=8", "depth=32")
    assert place(task, load_preset("tp"), jax.devices())
    with pytest.raises(UserError) as error:
        place(task, load_preset("fsdp-tp2"), jax.devices())
    (problem,) = error.value.problems
    assert problem.startswith("fsdp-tp2: on a mesh of fsdp × model: loss of dot_relu_dot.py: ValueError: ")
    assert problem.endswith("(dot_relu_dot.py:23): choose a preset whose mesh has the axes that the model names")


OPTAX = f"{LINEAR}{MEAN}{ONES}def optimizer(): return optax.{{}}()\n"
MODULE = "class make(nnx.Module):\n    def __init__(self):\n        "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def made(): pass\n", "models.py:make: models.py ({path}) has no make: it has made"),
        ("make = 3\n", "make of models.py is int, not a function"),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all' (models.py:3): "),
        ("def make(:\n", "SyntaxError: invalid syntax (models.py, line 3) (models.py:3)"),
        ("raise SystemExit('not today')\n", "SystemExit: not today (models.py:3)"),
        ("def make():\n    raise ValueError('a:\\n  b')\n", "make of models.py: ValueError: a: b (models.py:4)"),
        ("def make():\n    return inner()\ndef inner():\n    return {}['x']\n", "KeyError: 'x' (models.py:6)"),
        ("def make():\n    return 3\n", "make of models.py returned int: it must return an nnx.Module"),
        ("def make(width):\n    pass\n", "make of models.py: missing a required argument: 'width': set it with --set"),
        ("def make():\n    return nnx.Dropout(0.1)\n", "models.py:make returned a module without an nnx.Param"),
        (f"{MODULE}self.l = [nnx.Param(jnp.ones(3))]\n", "(models.py:5): make it an nnx.List or nnx.Dict"),
        (f"{MODULE}self.w = [jnp.ones(3)]\n", "make of models.py: w is a plain list that holds arrays: make it an"),
        (f"{MODULE}self.n = nnx.Param(jnp.ones(3, int))\n", "n: int32: a parameter must have a float dtype: make it"),
        (f"{MODULE}self.n = nnx.Param(jnp.ones(3), out_sharding=('a', 'b'))\n", "n: 2 axis names ('a', 'b') for an"),
        (LINEAR + ONES, "batch of models.py needs a loss(model, batch) in the same file"),
        (f"{LINEAR}{MEAN}def batch(): pass\n", "batch of models.py: too many positional arguments: it is called as"),
        (
            f"{LINEAR}{MEAN}def batch(step):\n    return {{'x': np.ones((8, 2)), 'y': [np.ones(7), 3.0]}}\n",
            "batch of models.py: batch.y.0 is float32 [7]: its first dim must be the batch size, 8: let "
            "batch take batch_size, or set --batch-size\nbatch of models.py: batch.y.1 is float32 []: ",
        ),
        (f"{LINEAR}{MEAN}def batch(step):\n    return 1 / step\n", "batch(0) of models.py: ZeroDivisionError: "),
        (f"{LINEAR}{MEAN}{ONES}def optimizer(): return 3\n", "optimizer of models.py returned int: it must return"),
        (OPTAX.format("lbfgs"), "missing 3 required keyword-only arguments: 'value', 'grad', and 'value_fn'"),
        (OPTAX.format("contrib.momo"), "its update gets gradients, state and parameters: choose another one"),
    ],
)
def test_errors_in_the_users_functions(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, HEAD + text)
    with pytest.raises(UserError) as error:
        task_of(f"{path}:make", "batch_size=8")
    assert says.format(path=path) in str(error.value)


STACKED = """
class Stacked(nnx.Module):
    def __init__(self, *, rngs):
        named = lambda *axes: nnx.with_partitioning(nnx.initializers.normal(), axes)
        linear = lambda rngs: nnx.Linear(8, 8, kernel_init=named("embed", "mlp"), bias_init=named("mlp"), rngs=rngs)
        self.blocks = nnx.split_rngs(splits=4)(nnx.vmap(linear))(rngs)
        self.rows = nnx.Param(jnp.ones((4, 8)), out_sharding=jax.P("model"))

    def __call__(self, x):
        run = nnx.scan(lambda block, x: block(x), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        return run(self.blocks, x @ self.rows)

def optimizer():
    return optax.MultiSteps(optax.adam(1e-3), every_k_schedule=2)
"""


def test_names_of_one_layer_are_of_the_last_dims_and_updates_may_wait(tmp_path: Path) -> None:
    task = task_of(f"{written(tmp_path, HEAD + STACKED + MEAN + ONES)}:Stacked", "batch_size=8")
    axes = {array.names[0]: array.logical_axes for array in task.arrays}
    assert axes["blocks.kernel"] == (None, "embed", "mlp")
    assert axes["blocks.bias"] == (None, "mlp")
    assert axes["rows"] == ("model", None)
    first, second, third = (state.params["rows"] for state, _ in unsharded(task, 3))
    assert np.array_equal(first, second) != np.array_equal(second, third)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{LINEAR}{ONES}def loss(model, batch): return model(batch)\n", "loss of models.py returned float32 [8, 4]: "),
        (f"{LINEAR}{ONES}def loss(model, batch):\n    return model(batch[:, 1:]).mean()\n", "(models.py:8)"),
        (
            f"{LINEAR}{ONES}def loss(model, batch):\n"
            "    return jax.lax.while_loop(lambda x: x < 3, lambda x: x + 1, model(batch).sum())\n",
            "Reverse-mode differentiation does not work for lax.while_loop",
        ),
        (f"{MODULE}self.w = nnx.Param(jnp.ones(4))\n", "is not callable"),
        (LINEAR, "make of models.py: TypeError: dot_general requires contracting dimensions to have the same shape"),
        (
            f"{MODULE}self.e = nnx.Embed(256, 4, rngs=nnx.Rngs(0))\n"
            "    def __call__(self, tokens):\n        return self.e(tokens)\n",
            "make of models.py returned float32 [8, 16, 4] for tokens int32 [8, 16]: return logits [batch, seq, 256 or "
            "more]",
        ),
        (
            f"{MODULE}self.w = nnx.Param(jnp.ones(4))\n        self.n = nnx.Variable(jnp.zeros(()))\n"
            "    def __call__(self, x):\n"
            f"        self.n[...] += 1\n        self.n.set_value(jnp.ones(3))\n        return x * self.w\n{ONES}{MEAN}",
            "n: float32 [] became float32 [3] in a forward pass: a variable must keep its shape and dtype",
        ),
    ],
)
def test_an_invalid_step_is_reported_for_every_preset(tmp_path: Path, text: str, says: str) -> None:
    task = task_of(f"{written(tmp_path, HEAD + text)}:make", "batch_size=8", "seq_len=16")
    for preset in ("dp", "fsdp"):
        with pytest.raises(UserError) as error:
            place(task, load_preset(preset), jax.devices())
        assert f"{preset}: " in str(error.value)
        assert says in str(error.value)


@pytest.mark.parametrize(
    ("reference", "settings", "says"),
    [
        ("models.py", (), ["--model models.py: no function is named: write models.py:FUNCTION"]),
        ("nowhere.py:make", ("q=nan",), ["there is no file /", "--set q=nan: a value must be a number"]),
        ("READ-ME.md:make", (), ["'READ-ME.md' is not a module name: give package.module or path/file.py"]),
        ("./README.md:make", (), ["./README.md is not a Python file: its name must end in .py"]),
        ("a b:make", ("loud",), ["'a b' is not a module name", "--set loud: not KEY=VALUE"]),
        ("package:1st", (), ["'1st' is not a function name: write package:FUNCTION"]),
        ("package:make", ("batch_size=many",), ["Expected `int`, got `str` at `.batch_size`"]),
        ("package.without.colon", (), ["or name a function that builds your own model: package.module:function"]),
    ],
)
def test_invalid_references(reference: str, settings: tuple[str, ...], says: list[str]) -> None:
    with pytest.raises(UserError) as error:
        choose_model(reference, settings)
    assert all(text in str(error.value) for text in says), error.value


def test_settings_of_no_function_missing_modules_and_batches_of_other_shapes_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, TOY)
    with pytest.raises(UserError) as error:
        Task(config_of(f"{path}:Toy", "widht=3", "depth=2"), "cpu")
    assert error.value.problems[0] == (
        "--set widht=3: Toy of models.py has no argument widht: choose one of width, rate, smoothing, batch_size"
    )
    assert error.value.problems[2].endswith("batch of models.py makes the batches: omit --data")
    config = config_of(f"{path}:Toy", "batch_size=8", data=None)
    path.unlink()
    with pytest.raises(UserError, match="the file does not exist: restore it, or start a new run with another model"):
        Task(config, "cpu")
    missing = "No module named 'nowhere': install it, or run shardtui in the directory that contains it"
    with pytest.raises(UserError, match=missing):
        task_of("nowhere.models:make")
    text = HEAD + LINEAR + MEAN + "def batch(step):\n    return np.ones((8, 4 + step // 2), np.float64)\n"
    batches = task_of(f"{written(tmp_path, text)}:make", "batch_size=8").model.batches
    assert batches and batches[1].dtype == np.float32
    np.testing.assert_array_equal(batches.rows(1, range(2, 5)), np.ones((3, 4)))
    with pytest.raises(UserError, match=r"batch\(2\) is float32 \[8, 5\], batch\(0\) was float32 \[8, 4\]"):
        batches[2]


ODD = """
class Odd(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(4, 8, rngs=rngs)
        self.seen = nnx.Variable(jnp.arange(8) < 3)
        self.keys = nnx.Variable(jax.random.split(jax.random.key(7), 8))
        self.phase = nnx.Variable(jnp.arange(64.0).reshape(8, 8) * (1 + 2j))
        self.scale = nnx.Variable(jnp.arange(8.0).astype(jnp.float8_e4m3fn))

    def __call__(self, x):
        self.seen[...] = ~self.seen[...]
        self.keys[...] = jax.vmap(jax.random.fold_in, (0, None))(self.keys[...], 1)
        self.phase[...] *= 1j
        self.scale[...] = (self.scale[...].astype(jnp.float32) * 2).astype(jnp.float8_e4m3fn)
        return self.layer(x) * self.scale[...].astype(jnp.float32)
"""


def test_variables_of_every_kind_of_dtype_survive_a_switch(tmp_path: Path) -> None:
    task = task_of(f"{written(tmp_path, HEAD + ODD + MEAN + ONES)}:Odd", "batch_size=8")
    first, second = compiled(task, "dp"), compiled(task, "fsdp")
    state, _ = steps(first, compile_initial_state(first.placement)(), batches_of(task), range(3))
    moved = move_state(state, first, second, Transfers())
    digests = joined(first.digest(state))
    for name, variable in state.variables.items():
        changed = state._replace(variables={**state.variables, name: variable[::-1]})
        differing = joined(first.digest(changed)) != digests
        assert list(itertools.compress(checkpoint.state_names(task), differing)) == [name]
    steps(second, moved, batches_of(task), range(3, 4))


def test_inspect_works_for_a_module_that_prints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = config_of(f"{written(tmp_path, TOY)}:Toy", "batch_size=8", data=None, preset="fsdp-tp2")
    assert answered(inspect, config) == 0
    inspection = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert inspection["compiled"]["unused_rules"] == ["heads", "vocab"]
    kinds = {array["name"]: array["kind"] for array in inspection["compiled"]["arrays"]}
    assert (kinds["norm.mean"], kinds["shift"], kinds["layers.0.kernel"]) == ("variable", "variable", "parameter")
    memory = inspection["compiled"]["memory"]
    assert memory["variables"] == 3 * 8 * 4
    parts = ("parameters", "moments", "variables", "scalars", "batch", "padding")
    assert sum(memory[part] for part in parts) == memory["arguments"]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SHARDTUI, *arguments], capture_output=True, text=True, cwd=cwd, timeout=240)


@pytest.mark.slow
def test_a_run_switches_saves_and_resumes_from_another_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model in a package that imports a sibling module. The losses match those of an unsharded run."""
    path = written(home, TOY, "toys/models.py")
    model = ("--model=toys.models:Toy", "--set=width=32", "--set=rate=0.2", "--batch-size=8", "--preset=dp")
    begun = run("train", "--json", *model, "--steps=4", "--switch=2:tp", cwd=home)
    resumed = run("train", "--json", "--resume=toy-1", "--steps=6", "--preset=fsdp-tp2", cwd=home.parent)
    assert (begun.returncode, resumed.returncode) == (0, 0), begun.stderr + resumed.stderr
    lines = [json.loads(line) for line in (begun.stdout + resumed.stdout).splitlines()]
    monkeypatch.chdir(home)
    task = task_of("toys.models:Toy", "width=32", "rate=0.2", "batch_size=8")
    expected = pytest.approx([loss for _, loss in unsharded(task, 6)], rel=1e-5)
    assert [line["loss"] for line in lines if line["type"] == "StepDone"] == expected
    events = {event["type"]: event for event in map(json.loads, begun.stdout.splitlines())}
    assert (events["Switched"]["arrays"], events["Switched"]["digests_equal"]) == (31, True)
    ready = events["EngineReady"]
    assert (ready["counted"], ready["tokens_per_step"], ready["corpus"]["files"]) == ("examples", 8, 0)
    config = run_directory.find("toy-1").config
    place = checkpoint.CheckpointDirectory(epath.Path(home / "state/shardtui/runs/toy-1/checkpoints"))
    assert place.steps() == [4, 6]
    assert [found.problems for found in checkpoint.verify(place, config).checkpoints] == [[], []]
    path.write_text(TOY.replace("rngs), nnx.Linear(width, 8", "rngs), nnx.Linear(width, 8, use_bias=False"))
    changed = run("train", "--resume=toy-1", "--steps=8", cwd=home.parent)
    assert changed.returncode == 2
    assert "arrays differ from the checkpoint's: layers.1.bias is removed, was float32 [8]" in changed.stderr


def test_an_error_leaves_one_message_and_no_run(home: Path) -> None:
    written(home, "def make():\n    raise ValueError('of mine')\n")
    result = run("train", "--model=models.py:make", "--steps=3", cwd=home)
    assert (result.returncode, result.stdout) == (2, "")
    assert "shardtui: make of models.py: ValueError: of mine (models.py:2)" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((home / "state").rglob("*.json*"))


SCALARS = """
class Model(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Linear(8, 8, rngs=rngs)

def batch(step, batch_size):
    x = np.random.default_rng(step).normal(size=(batch_size, 8)).astype(np.float32)
    if step == 2:
        x[3, 5] = np.nan
    return x

def loss(model, batch):
    error = model.w(batch) - batch
    return jnp.mean(error**2), {"worst": jnp.max(jnp.abs(error))}

def optimizer():
    return optax.inject_hyperparams(optax.adam)(learning_rate=0.01)
"""


def test_a_step_that_is_not_finite_is_skipped_and_other_scalars_of_the_loss_are_returned(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + SCALARS)
    task = task_of(f"{path}:Model", "batch_size=8", anomalies=AnomalyConfig(on_nonfinite="skip"))
    program, batches = compiled(task, "fsdp"), batches_of(task)
    states, scalars = [compile_initial_state(program.placement)()], list[dict[str, float]]()
    for n in range(4):
        batch = jax.device_put(batches[n], program.placement.batch_shardings)
        state, found = program.step(jax.tree.map(jnp.copy, states[-1]), batch)
        states.append(state)
        scalars.append({name: float(value) for name, value in found.items()})
    assert scalars[0].keys() == {"loss", "worst", "grad_norm", "update_norm", "param_norm", "learning_rate"}
    assert [math.isfinite(each["grad_norm"]) for each in scalars] == [True, True, False, True]
    assert scalars[0]["worst"] ** 2 > scalars[0]["loss"] and scalars[0]["learning_rate"] == pytest.approx(0.01)
    floats = [[leaf for leaf in jax.tree.leaves(jax.device_get(each)) if leaf.dtype == np.float32] for each in states]
    assert all(map(np.array_equal, floats[2], floats[3])) and not all(map(np.array_equal, floats[3], floats[4]))
    assert [int(each.step) for each in states] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("returned", "says"),
    [("{'worst': batch}", "float32 [8, 8] as 'worst'"), ("{'grad_norm': batch.max()}", "a scalar named 'grad_norm'")],
)
def test_other_scalars_are_floats_with_names_of_their_own(tmp_path: Path, returned: str, says: str) -> None:
    path = written(tmp_path, HEAD + SCALARS.replace('{"worst": jnp.max(jnp.abs(error))}', returned))
    problems = task_of(f"{path}:Model", "batch_size=8").problems_on(("data",))
    assert any(f"loss of models.py returned {says}: " in problem for problem in problems)
