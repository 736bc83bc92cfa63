"""The curves of programs whose loss is not, or not only, among the results of their step."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from shardtui.engine.spec.watch_request import WatchRequest
from shardtui.engine.watching.jitted import replace_jit
from shardtui.engine.watching.program import Program
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.run_directory import find
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import RunState

from ..recorded import events_in

pytestmark = pytest.mark.usefixtures("home")
RATE, STEPS = 0.25, 12

Loop = Callable[[], list[float]]


def loss_of(params: Any, batch: Any) -> Any:
    return jnp.mean((batch @ params["w"] - 1) ** 2)


def gradient_step(params: Any, batch: Any) -> Any:
    return jax.value_and_grad(loss_of)(params, batch)


def apply_step(params: Any, moments: Any, gradients: Any) -> Any:
    moments = jax.tree.map(lambda m, g: m / 2 + g, moments, gradients)
    return jax.tree.map(lambda p, m: p - RATE * m, params, moments), moments


def batches() -> Any:
    return jax.random.normal(jax.random.key(0), (STEPS, 8, 4))


def zeros() -> Any:
    return {"w": jnp.zeros((4, 2))}


def split(evaluates_first: bool = False) -> list[float]:
    gradient, apply = jax.jit(gradient_step), jax.jit(apply_step, donate_argnums=(0, 1))
    params, moments, losses = zeros(), zeros(), list[float]()
    for batch in batches() if evaluates_first else ():
        gradient(params, batch)
    for batch in batches():
        loss, gradients = gradient(params, batch)
        params, moments = apply(params, moments, gradients)
        losses.append(float(loss))
    return losses


def evaluated_after() -> list[float]:
    """The step returns nothing but its state, and another function computes the loss of what it returned."""

    @jax.jit
    def update(params: Any, batch: Any) -> Any:
        return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss_of)(params, batch))

    evaluate, params, losses = jax.jit(loss_of), zeros(), list[float]()
    for batch in batches():
        params = update(params, batch)
        losses.append(float(evaluate(params, batch)))
    return losses


def returned() -> list[float]:
    """The loss is computed of a result that the step does not take again."""

    @jax.jit
    def update(params: Any, batch: Any) -> Any:
        gradients = jax.grad(loss_of)(params, batch)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), batch @ params["w"]

    loss_function, params, losses = jax.jit(lambda outputs: jnp.mean((outputs - 1) ** 2)), zeros(), list[float]()
    for batch in batches():
        params, outputs = update(params, batch)
        losses.append(float(loss_function(outputs)))
    return losses


def clipped() -> list[float]:
    """Three functions, and the norm of the gradient, which is not the loss."""

    @jax.jit
    def clip(gradients: Any) -> Any:
        norm = jnp.linalg.norm(gradients["w"])
        return jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradients), {"norm": norm}

    @jax.jit
    def apply(params: Any, moments: Any, gradients: Any) -> Any:
        return *apply_step(params, moments, gradients), jnp.sum(params["w"])

    gradient, params, moments, losses = jax.jit(gradient_step), zeros(), zeros(), list[float]()
    for batch in batches():
        loss, gradients = gradient(params, batch)
        gradients, metrics = clip(gradients)
        params, moments, metrics["sum"] = apply(params, moments, gradients)
        losses.append(float(loss))
    return losses


def alone() -> list[float]:
    """One function does all, and an evaluation every few steps is no curve."""

    @jax.jit
    def train(params: Any, batch: Any) -> Any:
        loss, gradients = gradient_step(params, batch)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), {"cost": loss}

    evaluate, params, losses = jax.jit(loss_of), zeros(), list[float]()
    for number, batch in enumerate(batches()):
        params, metrics = train(params, batch)
        losses.append(float(metrics["cost"]))
        if number % 3 == 0:
            evaluate(params, batch)
    return losses


def mapped() -> list[float]:
    """A function of `jax.pmap` returns one loss a device, and here their mean is the loss."""

    @functools.partial(jax.pmap, axis_name="i", donate_argnums=0)
    def train(params: Any, batch: Any) -> Any:
        loss, gradients = gradient_step(params, batch)
        return jax.tree.map(lambda p, g: p - RATE * jax.lax.pmean(g, "i"), params, gradients), loss

    params, losses = {"w": jnp.zeros((4, 4, 2))}, list[float]()
    for batch in batches():
        params, loss = train(params, batch.reshape(4, 2, 4))
        losses.append(float(loss.mean()))
    return losses


Watched = Callable[[Loop], tuple[list[float], RunState, list[wire.Event]]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Returns a function that returns the losses that a loop saw, and its run."""

    def run(loop: Loop) -> tuple[list[float], RunState, list[wire.Event]]:
        program = Program(WatchRequest(run="curves"))
        with monkeypatch.context() as patches:
            for owner, name in ((jax, "jit"), (jax, "pmap"), (jax.stages.Compiled, "__call__")):
                patches.setattr(owner, name, getattr(owner, name))
            replace_jit(program._calls_of)
            losses = loop()
        program._end()
        events, state = list(events_in(find("curves").events)), RunState()
        apply_all(state, events)
        return losses, state, events

    return run


@pytest.mark.parametrize(
    ("loop", "step", "curves"),
    [
        (split, "apply_step", set[str]()),
        (evaluated_after, "update", set[str]()),
        (returned, "update", set[str]()),
        (clipped, "apply", {"norm", "apply"}),
        (alone, "train", set[str]()),
        (mapped, "train", set[str]()),
    ],
)
def test_the_loss_is_found_wherever_the_loop_computes_it(
    watched: Watched, loop: Loop, step: str, curves: set[str]
) -> None:
    losses, state, events = watched(loop)
    found = [event.step.name.rpartition(".")[2] for event in events if isinstance(event, wire.StepFound)]
    assert {*found} == {step}
    assert list(state.losses) == pytest.approx(losses, rel=1e-6), "of every step, from the first one on"
    assert {*state.curves} == curves
    reports = [event for event in events if isinstance(event, wire.StepsDone)]
    assert all(seconds > 0 for report in reports for seconds in report.step_seconds)
    assert not any(report.nonfinite for report in reports)


def test_a_function_that_was_called_before_the_loop_is_found_later(watched: Watched) -> None:
    losses, state, _ = watched(functools.partial(split, evaluates_first=True))
    assert list(state.losses)[-3:] == pytest.approx(losses[-3:], rel=1e-6)
