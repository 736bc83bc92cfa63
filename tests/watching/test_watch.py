"""An external training loop under `watch`: what viewers see of it, and that its program is not disturbed."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.hlo.lint import lint
from shardtui.engine.program.pytree_arrays import leaves
from shardtui.engine.watch import watch
from shardtui.engine.watching.external import Described, describe
from shardtui.engine.watching.external_step import CompiledStep, compile_lowered
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.commands import SaveCheckpoint, Stop, SwitchPreset
from shardtui.engine.wire.descriptions import ArrayInfo
from shardtui.engine.wire.run_directory import all_runs, find
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.state.availability import RUN_ACTIONS
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import Phase, RunState
from shardtui.tui.terminal.export import screen_text

from ..recorded import events_in
from ..schemas import checked_lines
from ..tui.test_app import shown, status, until
from ..tui.test_cli import run

COMPILED = "/jax/core/compile/backend_compile_duration"
PIPE, ROOT = subprocess.PIPE, Path(__file__).parents[2]


class OwnLoop:
    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.own_loop", name], stdin=PIPE, stdout=PIPE, cwd=ROOT, text=True
        )
        self.losses: list[float] = []
        self.name: str = self.answer()["began"]

    def answer(self) -> dict[str, Any]:
        return json.loads(self.process.stdout.readline())

    def command(self, text: str) -> dict[str, Any]:
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self.answer()

    def go(self, steps: int) -> None:
        self.losses += self.command(f"go {steps}")["losses"]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLoop]:
    """A loop that has made five steps and waits for `go`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        loop = OwnLoop("mine")
        loop.go(5)
        yield loop
        loop.end()


def by_kind(arrays: dict[str, ArrayInfo]) -> dict[str, set[str]]:
    """Returns the names of arrays by their kind."""
    kinds = {array.kind for array in arrays.values()}
    return {kind: {name for name, array in arrays.items() if array.kind == kind} for kind in kinds}


async def seen(client: EngineClient, state: RunState, until_step: int) -> list[wire.CommandRefused]:
    """Applies events to the state until so many steps are done. Returns the commands refused meanwhile."""
    refused: list[wire.CommandRefused] = []
    async for events in client.events():
        apply_all(state, events)
        refused += [event for event in events if isinstance(event, wire.CommandRefused)]
        if state.step >= until_step:
            break
    return refused


async def test_a_viewer_sees_what_the_program_has(loop: OwnLoop) -> None:
    state = RunState()
    await asyncio.wait_for(seen(EngineClient(find("mine")), state, len(loop.losses)), 60)
    assert list(state.losses) == pytest.approx(loop.losses, rel=1e-6)
    assert (state.phase, state.preset, state.pid) == (Phase.TRAINING, "as-run", loop.process.pid)
    assert state.layout.mesh.axes == {"data": 4, "model": 2}
    arrays = {array.name: array for array in state.layout.arrays}
    assert by_kind(arrays) == {
        "parameter": {"up.kernel", "down.kernel"},
        "moment": {f"{moment}.{name}.kernel" for moment in ("mu", "nu") for name in ("up", "down")},
        "scalar": {"count", "step"},
        "batch": {"batch.inputs", "batch.targets"},
    }
    columns, rows = [[], ["model"]], [["model"], []]  # embed × mlp, of which mlp is split
    specs = {name: array.compiled_spec for name, array in arrays.items() if array.kind in ("parameter", "moment")}
    assert specs == {name: columns if "up" in name else rows for name in specs}
    assert arrays["batch.inputs"].compiled_spec == [["data"], []]
    memory = state.layout.memory
    assert (memory.parameters, memory.moments, memory.batch) == (2 * 4096, 4 * 4096, 2 * 512)
    assert memory.padding >= 0
    flows = {(info.kind, *info.axes): info.bytes_each for info in state.layout.collectives or ()}
    assert flows["all-reduce", "data"] >= 2 * 4096, "the gradients, which are split over model"
    assert ("all-reduce", "model") in flows, "the product whose contraction is split"
    assert (state.ready.parameters, state.ready.tokens_per_step, state.ready.flops_per_step) == (4096, 16, None)
    assert state.flops_per_second is None
    assert state.input_wait is None


async def test_commands_are_refused_with_a_reason_and_the_loop_continues(loop: OwnLoop) -> None:
    state, client = RunState(), EngineClient(find("mine"))
    words = "run mine is an external loop: only its own program can control it"
    watching = asyncio.create_task(seen(client, state, len(loop.losses) + 3))
    await until(lambda: state.step, "the history")
    for command in (Stop(), SwitchPreset("fsdp"), SaveCheckpoint()):
        await client.send(command)
    await until(lambda: sum(isinstance(event, wire.CommandRefused) for event in state.events) == 3, "the answers")
    loop.go(3)
    assert [event.problem for event in await watching] == [words] * 3
    assert list(state.losses) == pytest.approx(loop.losses, rel=1e-6)
    for arguments in (["stop", "mine"], ["train", "--resume", "mine"], ["verify", "mine"]):
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert result.stderr == f"shardtui: {words}\n", arguments
    (listed,) = json.loads(run("ls", "--json").stdout)["runs"]
    assert (listed["run"], listed["state"], listed["step"]) == ("mine", "training", len(loop.losses))
    assert (listed["model"], listed["preset"]) == ("own_loop.py", "as-run")
    assert checked_lines("events", find("mine").events.read_text())[0]["watched"]["run"] == "mine"


async def test_every_view_works_and_no_key_sends_a_command(loop: OwnLoop) -> None:
    expected = {
        "2": ["up.kernel", "not available for an external loop", "laid out by its own program"],
        "3": ["data 4 × model 2", "parameters", "8.19 kB"],
        "4": ["all-reduce", "own_loop.py:"],
        "5": ["no findings so far"],
        "6": ["as-run", "external loop: it decides its own layout"],
        "7": ["run mine is an external loop", "not planned"],
        "0": ["watching mine", "training under as-run"],
        "1": ["as-run · ", "curves", "external loop: it decides", "tokens/s"],
    }
    async with shown(find("mine")) as (app, pilot):
        await until(lambda: app.state.step == len(loop.losses), "the history")
        for key, texts in expected.items():
            await pilot.press(key)
            await until(lambda texts=texts: all(text in screen_text(app) for text in texts), f"{key}: {texts}")
            offered = {active.binding.action for active in app.screen.active_bindings.values()}
            assert not offered & {*RUN_ACTIONS, "measure", "slice", "find"}, key
            assert key != "1" or "select" not in offered, "of another preset"
            assert {"detach", "export"} <= offered
            if key in "16":
                await pilot.press("space", "s", "w", "p", "c", "r", "x", "m", "enter", "8")
                await pilot.pause()
            assert app.current_mode != "rules"
            assert len(app.screen_stack) == 1, f"a question after {key}"
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Detach", "Export this view"} <= titles
        assert not {"Pause or resume", "End run", "Restart", "Switch to as-run"} & titles
        step = app.state.step
        loop.go(2)
        await until(lambda: app.state.step == step + 2, "the next steps")
        assert "external loop  step" in status(app) and "● training" in status(app)
        refused = [event for event in app.state.events if isinstance(event, wire.CommandRefused)]
        assert not refused, "the viewer does not ask"
        assert any("is an external loop: only its own program" in said.message for said in app._notifications)
        assert "FLOP" not in screen_text(app) and "input wait" not in screen_text(app)
        await pilot.press("d")
    assert app.lifecycle.exit_lines() == ["run mine keeps training: `shardtui attach mine` returns to it"]


async def test_a_failed_loop_and_a_killed_loop(loop: OwnLoop) -> None:
    """The last test of this loop, which it kills."""
    async with shown(find("mine")) as (app, _):
        assert loop.command("raise") == {"raised": "'no such batch'"}, "it is the program's to handle"
        await until(lambda: app.state.phase is Phase.FAILED, "the failure")
        assert app.state.step == len(loop.losses)
        (problem,) = app.state.problems
        assert problem.startswith("KeyError: 'no such batch', at ")
        assert "own_loop.py:" in problem
        said = "this run belongs to another program: start that program again"
        assert any(said in notice.message for notice in app._notifications)
    assert loop.answer() == {"over": "mine"}
    assert loop.answer() == {"began": "mine-2"}
    async with shown(find("mine-2")) as (app, _):
        loop.go(1)
        await until(lambda: app.state.step == 1, "a step")
        child = loop.command("fork")["forked"]
        os.kill(loop.process.pid, signal.SIGKILL)
        try:
            await until(lambda: app.state.phase is Phase.LOST, "the loss")
            assert app.state.problems == ["its process ended without a message: killed, or out of memory"]
            assert find("mine-2").holder() is None, "the child of a killed process holds the lock"
        finally:
            os.kill(child, signal.SIGKILL)
    states = {each["run"]: each["state"] for each in json.loads(run("ls", "--json").stdout)["runs"]}
    assert states == {"mine": "failed", "mine-2": "crashed"}


def mesh_of(*shape: int, axes: tuple[str, ...] = ("data", "model")) -> Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))])
    return Mesh(devices.reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))


def on(mesh: Mesh, shape: tuple[int, ...], *spec: str | None) -> jax.Array:
    return jax.device_put(jnp.zeros(shape), NamedSharding(mesh, P(*spec)))


def described(state: Any, step: Any = None, *args: Any) -> Described:
    """Describes a state, and the step if it is called with `args`."""
    return describe("as-run", list(leaves(state)), compile_lowered(step.lower(*args), args) if args else None, None)


def arrays_of(found: Described) -> dict[str, ArrayInfo]:
    return {array.name: array for array in found.layout.arrays}


def specs_of(found: Described) -> dict[str, list[list[str]]]:
    return {array.name: array.compiled_spec for array in found.layout.arrays}


def kinds_of(found: Described) -> dict[str, set[str]]:
    return by_kind(arrays_of(found))


def sizes_of(found: Described) -> tuple[int, int, int, int]:
    """Returns the bytes of parameters, moments, batch and padding."""
    memory = found.layout.memory
    return memory.parameters, memory.moments, memory.batch, memory.padding


@pytest.fixture
def compiled() -> list[str]:
    """The names of what jax reports, such as `COMPILED`."""
    found: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: found.append(event))
    return found


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.with_partitioning(nnx.initializers.ones, ("embed", "model"))
        self.layers = nnx.List([nnx.Linear(8, 8, kernel_init=init, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)


def test_flax_modules_and_their_states_have_short_names() -> None:
    with jax.set_mesh(mesh_of(4, 2)), nnx.logical_axis_rules((("embed", "data"), ("model", "model"))):
        model = Block(nnx.Rngs(0))
        adam = nnx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), wrt=nnx.Param)
    parameters = {f"layers.{n}.{name}" for n in (0, 1) for name in ("kernel", "bias")} | {"norm.scale", "norm.bias"}
    expected = {
        "parameter": parameters | {"norm.mean", "norm.var"},
        "moment": {f"{moment}.{name}" for moment in ("mu", "nu") for name in parameters},
        "scalar": {"dropout.rngs.count", "dropout.rngs.key", "count", "step"},
    }
    for state in ((model, adam), nnx.state((model, adam)), {"model": model, "optimizer": adam}):
        arrays = arrays_of(described(state))
        assert by_kind(arrays) == expected
        kernel = arrays["mu.layers.1.kernel"]
        assert kernel.compiled_spec == [["data"], ["model"]]
        assert kernel.logical_axes == ["embed", None], "a mesh axis is not a logical axis"
        assert arrays["dropout.rngs.key"].dtype == "key<fry>"


def test_other_pytrees() -> None:
    mesh = mesh_of(4, 2)
    layer = nn.Dense(8, kernel_init=nn.with_partitioning(nn.initializers.ones, ("embed", "mlp")))
    params = layer.init(jax.random.key(0), jnp.ones((1, 4)))["params"]
    params = jax.device_put(params, NamedSharding(mesh, P()))
    found = described(TrainState.create(apply_fn=layer.apply, params=params, tx=optax.sgd(0.1, momentum=0.9)))
    kinds = {"parameter": {"kernel", "bias"}, "moment": {"trace.kernel", "trace.bias"}}
    assert kinds_of(found) == kinds, "the step of a new TrainState is a Python int, not an array"
    assert lint(found.layout, None, None) == [], "the batch's layout and the FLOPs are unknown"
    for name in ("kernel", "trace.kernel"):
        assert arrays_of(found)[name].logical_axes == ["embed", "mlp"]
    layers = [{"w": on(mesh, (8, 8), None, "model"), "b": on(mesh, (8,))} for _ in range(2)]
    names = set(specs_of(described((layers, optax.adam(1e-3).init(layers)))))
    assert names >= {"0.0.w", "0.1.b", "mu.0.w", "nu.1.b"}
    assert set(specs_of(described(on(mesh, (8, 8))))) == {"state"}


def test_arrays_on_another_mesh_are_reported() -> None:
    """An array that was not placed is shown where the step takes it."""
    mesh = mesh_of(4, 2)
    state = {
        "w": on(mesh, (16, 16), "data", "model"),
        "count": jnp.zeros((), jnp.int32),
        "other": on(mesh_of(2, 4), (16, 2), "model"),
        "renamed": on(mesh_of(8, axes=("devices",)), (16, 2), "devices"),
        "same": on(mesh_of(4, 2), (4, 2), "data"),
        "replicated": on(mesh_of(8, 1), (16, 3)),
        "alone": jax.device_put(jnp.zeros((3, 3)), jax.devices()[3]),
        "name": "text",
    }
    found = described(state)
    both = [["data"], ["model"]]
    assert specs_of(found) == {"w": both, "same": SPLIT, "replicated": UNSPLIT, "renamed": [["data", "model"], []]}
    assert found.problems == [
        "3 arrays are not shown because their devices or mesh differ from the rest: alone, count, other"
    ]
    taken = {name: state[name] for name in ("w", "count")}
    step = jax.jit(lambda state, batch, key: (state["w"] @ batch).sum() + state["count"], donate_argnums=0)
    args = (taken, on(mesh, (16, 4), "model"), jax.random.key(0))
    found = describe("as-run", list(leaves(taken)), CompiledStep(step.lower(*args).compile(), args), None)
    assert specs_of(found) == {"w": both, "count": [], "batch.1": [["model"], []]}, "the key is not used"
    assert (found.problems, found.layout.memory.padding) == ([], 0)


def test_a_batch_on_another_mesh_of_the_same_devices_is_a_batch() -> None:
    state = {"w": on(mesh_of(4, 2), (16, 16), "data", "model")}
    step = jax.jit(lambda state, batch: ({"w": state["w"] * batch.sum()}, batch.sum()))
    for mesh, spec in ((mesh_of(8, axes=("devices",)), [["data", "model"], []]), (mesh_of(2, 4), None)):
        found = described(state, step, state, on(mesh, (64, 16), mesh.axis_names[0]))
        assert found.layout.mesh.axes == {"data": 4, "model": 2}, "the state's, although the batch is larger"
        assert specs_of(found).get("batch.1") == spec
        assert sizes_of(found) == (128, 0, 64 * 16 * 4 // mesh.shape_tuple[0][1], 0)


def test_one_array_at_two_places_is_shown_at_both() -> None:
    """An average that starts as the parameters, in the state or not, and a tied table."""
    mesh = mesh_of(8, axes=("data",))
    params = {"a": on(mesh, (16, 4), "data"), "b": on(mesh, (16, 4), "data")}
    batch = on(mesh, (32, 4), "data")

    def average(params: Any, ema: Any, x: jax.Array) -> Any:
        return params, jax.tree.map(lambda e, p: e + p, ema, params), x.sum()

    state = {"params": params, "ema": params}
    whole = jax.jit(lambda state, x: average(state["params"], state["ema"], x))
    for step, *args in ((jax.jit(average), params, params, batch), (whole, state, batch)):
        found = described(state, step, *args)
        assert kinds_of(found) == {"parameter": {"a", "b", "ema.a", "ema.b"}, "batch": {f"batch.{len(args) - 1}"}}
        assert (sizes_of(found), found.parameters) == ((4 * 32, 0, 64, 0), 128)
    only = described(params, jax.jit(average), params, params, batch)
    assert kinds_of(only) == {"parameter": {"a", "b", "argument.a", "argument.b"}, "batch": {"batch.2"}}
    step = jax.jit(lambda table, x: (table + 1, (x * table.sum()).sum()))
    found = described({"embed": params["a"], "head": params["a"]}, step, params["a"], batch)
    assert kinds_of(found) == {"parameter": {"embed", "head"}, "batch": {"batch.1"}}
    assert (sizes_of(found), found.parameters) == ((32, 0, 64, 0), 64)


def test_a_moment_that_starts_as_the_parameters() -> None:
    params = {"w": on(mesh_of(8, axes=("data",)), (16, 4), "data")}
    state = {"params": params, "opt_state": optax.contrib.schedule_free_sgd(0.1).init(params)}
    state["opt_state"] = state["opt_state"]._replace(z=params)
    step = jax.jit(lambda state, x: (jax.tree.map(lambda leaf: leaf + 1, state), x.sum()))
    found = described(state, step, state, jnp.ones(8))
    assert [kinds_of(found)[kind] for kind in ("parameter", "moment")] == [{"w"}, {"z.w"}]
    parameters, moments, _, padding = sizes_of(found)
    assert (parameters, moments, padding) == (32, 32, 0)


def test_positions_in_chains_are_not_in_names() -> None:
    layers = [{"w": on(mesh_of(4, 2), (8, 8))}]
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    for optimizer, moments in (
        (optax.MultiSteps(adam, 4), {"inner_opt_state.mu.0.w", "inner_opt_state.nu.0.w", "acc_grads.0.w"}),
        (optax.masked(adam, [{"w": True}]), {"inner_state.mu.0.w", "inner_state.nu.0.w"}),
        (optax.chain(optax.trace(0.9), optax.trace(0.8)), {"opt_state.0.trace.0.w", "opt_state.1.trace.0.w"}),
    ):
        assert kinds_of(described({"opt_state": optimizer.init(layers)}))["moment"] == moments


UNSPLIT, SPLIT = [[], []], [["data"], []]


def test_arrays_of_one_shape_are_told_apart_by_identity() -> None:
    """Parameters are replicated, moments split, and the arguments not placed; all are of one shape."""
    replicated, split = (NamedSharding(mesh_of(4, 2), P(*spec)) for spec in ((), ("data",)))
    step = jax.jit(
        lambda p, o, x: ({"w": p["w"] - o["w"]}, {"w": o["w"] + x}, (x @ p["w"]).sum()),
        in_shardings=(replicated, split, split),
        out_shardings=(replicated, split, None),
    )
    p, o = {"w": jnp.ones((8, 8))}, {"w": jnp.ones((8, 8))}
    args = p, o, jnp.ones((8, 8))
    for state in ({"params": p, "opt_state": o}, {"opt_state": o, "params": p}):
        for known in (compile_lowered(step.lower(*args), args), CompiledStep(step.lower(*args).compile(), args)):
            found = describe("as-run", list(leaves(state)), known, None)
            assert specs_of(found) == {"params.w": UNSPLIT, "opt_state.w": SPLIT, "batch.2": SPLIT}
            assert (found.problems, sizes_of(found)) == ([], (256, 64, 64, 0))
    # no layout is guessed, and no array of the state is taken for the batch
    unknown = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), p)
    found = described(unknown, step, *args)
    assert (specs_of(found), found.layout.memory) == ({"w": UNSPLIT}, None)
    assert found.problems == [
        "the batch and the memory of a step are not shown, as none of its arguments is known to be an array of the "
        "state: pass to watch as state= what is in args="
    ]


class Layers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, is_tied: bool) -> None:
        self.last = nnx.Linear(8, 8, rngs=rngs)
        self.first = self.last if is_tied else nnx.Linear(8, 8, use_bias=False, rngs=rngs)


@pytest.mark.parametrize("is_tied", [False, True])
def test_modules_are_the_arguments_of_a_step_of_nnx(is_tied: bool) -> None:
    """Its program takes a variable once that comes twice."""

    @nnx.jit
    def step(model: Layers, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
        loss, gradients = nnx.value_and_grad(lambda model: model.last(model.first(x)).sum())(model)
        optimizer.update(model, gradients)
        return loss

    model = Layers(nnx.Rngs(0), is_tied)
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    state = list(leaves((model, optimizer)))
    args = model, optimizer, jnp.ones((4, 8))
    known = compile_lowered(step.lower(*args), args)
    shapes = {at: known.arguments[number].shape for at, number in known.match(state).items()}
    assert shapes == {at: leaf.shape for at, leaf in enumerate(state)}
    found = describe("as-run", state, known, None)
    assert (kinds_of(found)["batch"], found.problems) == ({"batch.2"}, [])
    sizes = {leaf.identity: leaf.bytes for leaf in state if leaf.kind == "parameter"}
    assert found.layout.memory.parameters == sum(sizes.values())


def test_unused_arguments_take_no_memory() -> None:
    mesh = mesh_of(4, 2)
    state = {"w": on(mesh, (8, 8)), "idle": on(mesh, (8, 8), "data")}
    step = jax.jit(lambda state, rate, x: (state["w"] * rate, (x @ state["w"]).sum()))
    found = described(state, step, state, 0.5, on(mesh, (8, 8), "data"))
    assert specs_of(found) == {"idle": SPLIT, "w": UNSPLIT, "argument.1": [], "batch.2": SPLIT}
    assert sizes_of(found) == (256, 0, 64, 0)


def test_a_state_that_the_first_step_reshards(home: Path, compiled: list[str]) -> None:
    """Its layout and program are shown as they are from the second step on, and jax compiles nothing more."""
    mesh = mesh_of(4, 2)
    step = jax.jit(
        lambda state, x: ({"w": state["w"] - 0.1 * x.sum(), "n": state["n"] + 1}, (x @ state["w"]).sum()),
        out_shardings=({"w": NamedSharding(mesh, P("model")), "n": NamedSharding(mesh, P())}, None),
        donate_argnums=0,
    )
    state = {"w": on(mesh, (8, 8)), "n": jax.device_put(jnp.zeros((), jnp.int32), NamedSharding(mesh, P()))}
    x = on(mesh, (16, 8), "data")
    with watch("resharded", state=state, step=step, args=(state, x)) as run:
        compiled.clear()
        for _ in range(3):
            state, loss = step(state, x)
            run.step(loss)
        assert COMPILED not in compiled
    layout = state_of("resharded").layout
    arrays = {array.name: array.compiled_spec for array in layout.arrays}
    assert arrays == {"w": [["model"], []], "n": [], "batch.1": SPLIT}
    assert layout.memory.parameters == state["w"].addressable_shards[0].data.nbytes == 128
    assert layout.memory.padding == 0


def test_results_that_look_alike_are_told_apart_or_no_layout_is_guessed() -> None:
    mesh = mesh_of(4, 2)
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    p, x, adam = {"w": on(mesh, (8, 8))}, jnp.ones(8), optax.adam(0.1)
    o = jax.device_put(adam.init(p), whole)

    def specs_after(function: Any, out_shardings: Any, *args: Any) -> dict[str, list[list[str]]]:
        step = jax.jit(function, out_shardings=(*out_shardings, None))
        known, after = compile_lowered(step.lower(*args), args).steady(step, list(leaves(args[:-1])))
        found = specs_of(describe("as-run", after, known, None))
        return {name: spec for name, spec in found.items() if len(spec) == 2}

    def update(p: Any, o: Any, x: jax.Array) -> Any:
        updates, o = adam.update(p, o)
        return optax.apply_updates(p, updates), o, x.sum()

    assert specs_after(update, (split, whole), p, o, x) == {"w": SPLIT, "mu.w": UNSPLIT, "nu.w": UNSPLIT}
    other = {"v": on(mesh, (8, 8))}
    in_order = specs_after(lambda p, v, x: (p, v, x.sum()), (whole, split), p, other, x)
    assert in_order == {"w": UNSPLIT, "v": SPLIT}
    assert specs_after(lambda p, x: (p, p["w"] + 1, x.sum()), (split, split), p, x) == {"w": UNSPLIT}


def test_names_are_unique_and_sizes_packed() -> None:
    mesh = mesh_of(4, 2)
    state = {"a": {"b": on(mesh, (8, 8)), "c": on(mesh, (8, 3))}, "a.b": on(mesh, (8, 2))}
    shapes = {name: array.shape for name, array in arrays_of(described(state)).items()}
    assert shapes == {"['a']['b']": [8, 8], "a.c": [8, 3], "['a.b']": [8, 2]}
    packed = {"w": jax.device_put(jnp.zeros((8, 8), jnp.int4), NamedSharding(mesh, P("model")))}
    step = jax.jit(lambda state: (state, state["w"].astype(jnp.float32).sum()))
    known, leaves_after = compile_lowered(step.lower(packed), (packed,)).steady(step, list(leaves(packed)))
    found = describe("as-run", leaves_after, known, None)
    assert (arrays_of(found)["w"].bytes, sizes_of(found)) == (32, (16, 0, 0, 0))


def test_a_single_device_without_a_mesh(home: Path, compiled: list[str]) -> None:
    """The jitted function is not compiled a second time."""
    step = jax.jit(lambda w, x: (w - 0.1, (w @ x).sum()))
    w, x = jnp.ones((4, 4)), jnp.ones((4, 2))
    with watch("single", state=w, step=step, args=(w, x), steps_done=7) as run:
        assert COMPILED in compiled
        compiled.clear()
        for _ in range(3):
            w, loss = step(w, x)
            run.step(loss)
        assert COMPILED not in compiled
    state = state_of("single")
    assert state.step == 10
    assert np.isnan(state.losses[:7]).all()
    assert list(state.losses[7:]) == pytest.approx([32.0, 28.8, 25.6])
    assert (state.layout.mesh.axes, state.layout.mesh.device_ids) == ({"device": 1}, [0])
    assert [(array.name, array.kind) for array in state.layout.arrays] == [("state", "parameter"), ("batch.1", "batch")]
    assert state.layout.collectives == []
    assert state.layout.compile_seconds


def state_of(name: str) -> RunState:
    state = RunState()
    apply_all(state, events_in(find(name).events))
    return state


def test_wrong_arguments_raise_every_problem_and_create_no_run(home: Path) -> None:
    with pytest.raises(ValueError, match="watch: ") as raised:
        watch("A/b", state={"n": 3}, step=len, preset="../x", tokens_per_step=0, flops_per_step=-1.0, steps_done=-1)
    lines = str(raised.value).splitlines()
    wrong = ["run 'A/b'", "preset", "state", "steps_done", "step", "tokens_per_step", "flops_per_step"]
    assert [line.split(":")[1].split("=")[0].strip() for line in lines] == wrong
    with pytest.raises(ValueError, match=r"step: without args: add the arguments that it is called with"):
        watch("mine", state=jnp.ones(3), step=jax.jit(jnp.sum).lower(jnp.ones(3)))
    with watch("mine", state=jnp.ones(3)) as run, pytest.raises(TypeError, match=r"of shape \(3,\): must be a scalar"):
        run.step(jnp.ones(3))
    assert [directory.name for directory in all_runs()] == ["mine"]


def test_failures_of_watch_do_not_reach_the_training(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss that cannot be read, and then a state directory that cannot be created."""
    with watch("fine", state=jnp.ones(3)) as run:
        run.step(1.0)
        run.step("no number")
        run.reporter._thread.join()
        run.step(2.0)
    *_, last = events_in(find("fine").events)
    assert isinstance(last, wire.Failed)
    assert "no longer watched: a loss cannot be read: could not convert string" in last.problems[0]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    caplog.clear()
    (home / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    with watch("mine", state=jnp.ones(3)) as run:
        assert run.name is None
        for _ in range(3):
            run.step(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        f"mine is not watched: {home}/file/shardtui/runs/mine: cannot be written: Not a directory: "
        "set XDG_STATE_HOME to a directory that you can write"
    ]


def test_losses_that_are_not_finite_are_logged_with_their_steps(home: Path) -> None:
    with watch("wild", state=jnp.ones(3)) as run:
        for loss in (1.0, float("nan"), 2.0, float("inf"), float("nan"), 3.0):  # read at once
            run.step(loss)
    assert [event.step for event in events_in(find("wild").events) if isinstance(event, wire.LossNotFinite)] == [2, 4]


def test_watch_keeps_no_array_and_changes_nothing_of_the_process(home: Path) -> None:
    before = (dict(os.environ), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
    state = {"w": jnp.full((5, 7), 1.0)}
    step = jax.jit(lambda state: ({"w": state["w"] * 0.5}, state["w"].sum()))
    with warnings.catch_warnings(), watch("held", state=state, step=step, args=(state,)) as run:
        warnings.simplefilter("error")
        del state
        assert [array.shape for array in jax.live_arrays() if array.shape == (5, 7)] == []
        run.step(np.float32(3.0), norm=jnp.inf, rate=0.5)
    assert before == (dict(os.environ), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
    events = list(events_in(find("held").events))
    kinds = [type(event) for event in events]
    [steps] = [event for event in events if isinstance(event, wire.StepsDone)]
    assert (steps.losses, steps.metrics) == ([3.0], {"norm": [None], "rate": [0.5]})
    assert kinds[:3][1:] == [wire.EngineReady, wire.PresetCompiled]
    ends = (wire.StepsDone, wire.EngineStopped)
    assert [kind for kind in kinds if kind in ends] == [*ends]


def test_the_example_in_the_docs_runs(home: Path) -> None:
    text = (ROOT / "docs" / "watching.md").read_text()
    exec(text.split("```python\n")[1].split("```")[0].replace("range(1000)", "range(50)"), {})
    state = state_of("mine")
    assert (state.phase, state.step) == (Phase.STOPPED, 50)
    assert state.losses[-1] < state.losses[0] / 2
    assert [array.compiled_spec for array in state.layout.arrays] == [[[], []], [["data"], []]]
    assert [info.kind for info in state.layout.collectives or ()] == ["all-reduce"]
