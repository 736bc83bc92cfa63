"""Shows an external training loop in `shardtui attach`, with a few lines in the loop's own program.

It installs no signal handler, does not change jax's configuration, leaves no thread behind, and no failure here reaches
the training.
"""

import logging
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.stages import Compiled, Lowered

from .base.user_error import noting
from .program.pytree_arrays import Leaf, leaves
from .spec.config import WatchedRun
from .spec.preset_files import FILE_NAME
from .watching.external import describe
from .watching.external_step import CompiledStep, compile_lowered
from .watching.run import Watch
from .wire.run_directory import checked_name

_logger = logging.getLogger("shardtui")


def watch(
    name: str,
    *,
    state: Any,
    step: Any = None,
    args: tuple[Any, ...] | None = None,
    preset: str = "as-run",
    model: str | None = None,
    tokens_per_step: int | None = None,
    flops_per_step: float | None = None,
    steps_done: int = 0,
) -> Watch:
    """Shows a training loop in `shardtui attach`, `ls` and every view, which can read it but not control it.

        with watch("mine", state=state, step=step, args=(state, batch)) as run:
            for batch in batches:
                state, loss = step(state, batch)
                run.step(loss)

    `name`: name of the run; if it is taken, NAME-2, NAME-3, …: see `Watch.name`.
    `state`: any pytree of arrays, including Flax modules and states. Only shapes and shardings are read, never data,
    and no reference is kept: the step may donate it.
    `step`: the jitted function, for collectives, memory, the batch and origins: it is compiled here, and jax reuses
    that program for the first call if the arguments match. Or what `step.lower(state, batch)` returns, which is
    compiled here, too; or the result of its `compile()`, which has no origins. Without a step, only arrays and losses
    are shown.
    `args`: what the step is called with. By them it is known which argument each array of the state is.
    `preset`: name of the layout; `model`: name of the model, by default the name of the program.
    `tokens_per_step`, `flops_per_step`: for throughput and MFU, which are not shown without them.
    `steps_done`: steps before this loop, if it resumes from a checkpoint.

    In a job of several processes, process 0 reports; each may call this, and must if `step` is a jitted function.
    Raises ValueError with every problem of the arguments.
    """
    described = list(leaves(state))
    problems = [
        *_problems(name, preset, described, steps_done),
        *_step_problems(step, args),
        *_rate_problems(tokens_per_step=tokens_per_step, flops_per_step=flops_per_step),
    ]
    if problems:
        raise ValueError("\n".join(f"watch: {problem}" for problem in problems))
    known, described, seconds = _known_step(step, args or (), described)
    about = WatchedRun(run=name, model_name=model or Path(sys.argv[0]).name or "python", preset=preset)
    found = None
    if jax.process_index() == 0:
        try:
            found = describe(preset, described, known, seconds)
        except Exception:
            _logger.warning("%s is not watched: its arrays or its step cannot be described", name, exc_info=True)
    return Watch(about, found, steps_done, tokens_per_step, flops_per_step)


def _known_step(
    step: Any, args: tuple[Any, ...], state: list[Leaf]
) -> tuple[CompiledStep | None, list[Leaf], float | None]:
    """Returns the step, the state as the step takes it, and the seconds to compile it, None if it was compiled."""
    made = _made_by_jax(step)
    if isinstance(made, Compiled):
        return CompiledStep(made, args), state, None
    if step is None:
        return None, state, None
    began = time.perf_counter()
    if isinstance(made, Lowered):
        return compile_lowered(made, args), state, time.perf_counter() - began
    known = compile_lowered(step.lower(*args), args)
    seconds = time.perf_counter() - began
    return *_steady(known, step, state), seconds


def _made_by_jax(step: Any) -> Any:
    """Returns jax's compiled or lowered step, which Flax wraps."""
    return getattr(step, "compiled", getattr(step, "lowered", step))


def _steady(known: CompiledStep, step: Any, state: list[Leaf]) -> tuple[CompiledStep, list[Leaf]]:
    try:
        return known.steady(step, state)
    except Exception:
        _logger.warning("layouts are those before the first step, which changes them", exc_info=True)
        return known, state


def _problems(name: str, preset: str, state: list[Leaf], steps_done: int) -> list[str]:
    problems: list[str] = []
    with noting(problems):
        checked_name(name)
    if not FILE_NAME.fullmatch(preset):
        problems.append(f"preset={preset!r}: must be 1 to 64 letters, digits, '.', '_' and '-'")
    if not state:
        problems.append("state: it contains no jax.Array: give the pytree that the step updates")
    if steps_done < 0:
        problems.append(f"steps_done={steps_done}: 0 or more")
    return problems


def _step_problems(step: Any, args: tuple[Any, ...] | None) -> list[str]:
    if step is None:
        return []
    if not (hasattr(step, "lower") or isinstance(_made_by_jax(step), Compiled | Lowered)):
        return [f"step: {type(step).__name__}: give the jitted function, or step.lower(…)"]
    if args is None:
        return ["step: without args: add the arguments that it is called with, args=(state, batch)"]
    return []


def _rate_problems(**rates: float | None) -> list[str]:
    return [
        f"{key}={value}: must be above 0, or None if unknown"
        for key, value in rates.items()
        if value is not None and not value > 0
    ]
