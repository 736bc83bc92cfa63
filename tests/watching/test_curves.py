"""The curves of programs whose loss is not, or not only, among the results of their step."""

import functools
from collections.abc import Callable, Iterator
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

Losses = Iterator[float]
"""Of a loop, as it goes on."""


def loss_of(params: Any, batch: Any) -> Any:
    return jnp.mean((batch @ params["w"] - 1) ** 2)


def gradient_step(params: Any, batch: Any) -> Any:
    return jax.value_and_grad(loss_of)(params, batch)


def descended(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def descend(params: Any, batch: Any) -> Any:
    return descended(params, jax.grad(loss_of)(params, batch))


def train(params: Any, batch: Any) -> Any:
    loss, gradients = gradient_step(params, batch)
    return descended(params, gradients), {"cost": loss}


def apply_step(params: Any, moments: Any, gradients: Any) -> Any:
    moments = jax.tree.map(lambda m, g: m / 2 + g, moments, gradients)
    return descended(params, moments), moments


def batches() -> Any:
    return jax.random.normal(jax.random.key(0), (STEPS, 8, 4))


def zeros() -> Any:
    return {"w": jnp.zeros((4, 2))}


def split(evaluates_first: bool = False) -> Losses:
    gradient, apply = jax.jit(gradient_step), jax.jit(apply_step, donate_argnums=(0, 1))
    params, moments = zeros(), zeros()
    for batch in batches() if evaluates_first else ():
        gradient(params, batch)
    for batch in batches():
        loss, gradients = gradient(params, batch)
        params, moments = apply(params, moments, gradients)
        yield float(loss)


def evaluated_after() -> Losses:
    """The step returns nothing but its state, and another function computes the loss of what it returned."""
    update, evaluate, params = jax.jit(descend), jax.jit(loss_of), zeros()
    for batch in batches():
        params = update(params, batch)
        yield float(evaluate(params, batch))


def returned() -> Losses:
    """The loss is computed of a result that the step does not take again."""

    @jax.jit
    def update(params: Any, batch: Any) -> Any:
        return descend(params, batch), batch @ params["w"]

    loss_function, params = jax.jit(lambda outputs: jnp.mean((outputs - 1) ** 2)), zeros()
    for batch in batches():
        params, outputs = update(params, batch)
        yield float(loss_function(outputs))


def held_out() -> Losses:
    """The step returns a scalar, and another function after it one that is called the loss."""
    params, norm = zeros(), jax.jit(lambda params, batch: (descend(params, batch), {"norm": jnp.sum(params["w"])}))
    evaluate = jax.jit(lambda params, batch: {"loss": loss_of(params, batch)})
    for batch in batches():
        params, metrics = norm(params, batch)
        yield float(metrics["norm"])
        evaluate(params, batch)


def clipped() -> Losses:
    """Three functions, and the norm of the gradient, which is not the loss."""

    @jax.jit
    def clip(gradients: Any) -> Any:
        norm = jnp.linalg.norm(gradients["w"])
        return jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradients), {"norm": norm}

    @jax.jit
    def apply(params: Any, moments: Any, gradients: Any) -> Any:
        return *apply_step(params, moments, gradients), jnp.sum(params["w"])

    gradient, params, moments = jax.jit(gradient_step), zeros(), zeros()
    for batch in batches():
        loss, gradients = gradient(params, batch)
        gradients, metrics = clip(gradients)
        params, moments, metrics["sum"] = apply(params, moments, gradients)
        yield float(loss)


def alone() -> Losses:
    """One function does all, and an evaluation every few steps is no curve."""
    step, evaluate, params = jax.jit(train), jax.jit(loss_of), zeros()
    for number, batch in enumerate(batches()):
        params, metrics = step(params, batch)
        yield float(metrics["cost"])
        if number % 3 == 0:
            evaluate(params, batch)


def mapped() -> Losses:
    """A function of `jax.pmap` returns one loss a device, and here their mean is the loss."""

    @functools.partial(jax.pmap, axis_name="i", donate_argnums=0)
    def step(params: Any, batch: Any) -> Any:
        loss, gradients = gradient_step(params, batch)
        return descended(params, jax.lax.pmean(gradients, "i")), loss

    params = {"w": jnp.zeros((4, 4, 2))}
    for batch in batches():
        params, loss = step(params, batch.reshape(4, 2, 4))
        yield float(loss.mean())


def watched(monkeypatch: pytest.MonkeyPatch, loop: Losses) -> tuple[list[float], RunState, list[wire.Event]]:
    """Returns the losses that a loop saw, and its run."""
    program = Program(WatchRequest(run="curves"))
    with monkeypatch.context() as patches:
        for owner, name in ((jax, "jit"), (jax, "pmap"), (jax.stages.Compiled, "__call__")):
            patches.setattr(owner, name, getattr(owner, name))
        replace_jit(program._calls_of)
        losses = list(loop)
    program._end()
    events, state = list(events_in(find("curves").events)), RunState()
    apply_all(state, events)
    return losses, state, events


@pytest.mark.parametrize(
    ("loop", "step", "curves"),
    [
        (split, "apply_step", set[str]()),
        (evaluated_after, "descend", set[str]()),
        (returned, "update", set[str]()),
        (held_out, "<lambda>", {"<lambda>/loss"}),
        (clipped, "apply", {"norm", "apply"}),
        (alone, "train", set[str]()),
        (mapped, "step", set[str]()),
    ],
)
def test_the_loss_is_found_wherever_the_loop_computes_it(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], Losses], step: str, curves: set[str]
) -> None:
    losses, state, events = watched(monkeypatch, loop())
    assert {event.step.name.rpartition(".")[2] for event in events if isinstance(event, wire.StepFound)} == {step}
    assert list(state.losses) == pytest.approx(losses, rel=1e-6), "of every step, from the first one on"
    assert {*state.curves} == curves
    reports = [event for event in events if isinstance(event, wire.StepsDone)]
    assert all(seconds > 0 for report in reports for seconds in report.step_seconds)
    assert not any(report.nonfinite for report in reports)


def test_a_function_that_was_called_before_the_loop_is_found_later(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, state, _ = watched(monkeypatch, split(evaluates_first=True))
    assert list(state.losses)[-3:] == pytest.approx(losses[-3:], rel=1e-6)
