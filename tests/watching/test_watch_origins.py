"""The origin dialog over a watched run: a real engine process explains the step that `watch` kept."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from shardtui.engine.watch import watch
from shardtui.engine.wire.run_directory import find
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.lookups import NO_RULES, NOT_KEPT
from shardtui.tui.terminal.export import screen_text

from ..tui.test_app import finished, until
from ..tui.test_origin import explained, open_array, put_on, texts
from ..tui.test_views import press


@pytest.fixture(autouse=True)
def programs_of_these_lines() -> Iterator[None]:
    """A program that was compiled when this file had other lines is not used again."""
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    yield
    jax.config.update("jax_compilation_cache_include_metadata_in_key", False)


def watched(given: Callable[[Any, Any, Any], Any]) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def put(shape: tuple[int, ...], *spec: str | None) -> jax.Array:
        return jax.device_put(jnp.ones(shape), NamedSharding(mesh, P(*spec)))

    state = {"params": {"up": put((32, 64), None, "model"), "down": put((64, 32), "model", None)}}
    batch = {"inputs": put((16, 32), "data"), "unused": put((16,), "data")}

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> jax.Array:
            return jnp.mean((jnp.tanh(batch["inputs"] @ params["up"]) @ params["down"]) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        return {"params": jax.tree.map(lambda x, g: x - g, state["params"], gradients)}, loss

    jitted = jax.jit(step)
    with watch("mine", state=state, step=given(jitted, state, batch), args=(state, batch)) as run:
        state, loss = jitted(state, batch)
        run.step(loss)


def said(app: ShardtuiApp) -> str:
    options = app.screen.query_one("OptionList").options
    return " ".join(" ".join(str(option.prompt) for option in options).split())


@pytest.mark.parametrize("given", [lambda step, *_: step, lambda step, *args: step.lower(*args)])
async def test_a_step_that_was_kept_is_explained(home: Path, given: Callable[..., Any]) -> None:
    watched(given)
    async with finished(find("mine")) as (app, pilot):
        await open_array(app, pilot, "up")
        await explained(app)
        assert texts(app)[0].startswith("32 × 64 f32 (–, model)")
        assert texts(app)[1] == "as compiled"
        assert any("argument up" in line for line in texts(app))
        await press(pilot, "t", *"mlp=model", "enter")
        await until(lambda: NO_RULES in screen_text(app), "the message")
        await press(pilot, "escape", "escape", "4")
        key = next(key for key, info in app.screen.table.given.items() if info.axes == ["model"])
        app.screen.table.select(key)
        await press(pilot, "enter")
        await explained(app)
        assert texts(app)[2].startswith("  because the product at test_watch_origins.py:")
        put_on(app, "  down 64 × 32 (model, –)")
        await press(pilot, "enter")
        assert "origin of down" in screen_text(app)


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_of_a_compiled_or_a_damaged_step_the_dialog_says_what_is_wrong(home: Path, is_damaged: bool) -> None:
    watched(lambda step, *args: step if is_damaged else step.lower(*args).compile())
    if is_damaged:
        find("mine").step.write_text('{"names":[],"module":"module {"}')
    async with finished(find("mine"), (140, 40)) as (app, pilot):
        await open_array(app, pilot, "up")
        message = "step.json: the step cannot be read" if is_damaged else NOT_KEPT
        await until(lambda: message in said(app), "the message")
