"""A training loop that is not ours, shown as ours are: a few lines in its program tell `shardtui attach` of it.

The program's process stays its own: no signal handler, no change of jax's configuration, no thread that outlives it,
and nothing that goes wrong here reaches the training.
"""

import logging
import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
from jax.core import Tracer
from jax.stages import Compiled

from .base.invalid import Invalid
from .base.versions import versions
from .parallel.mesh import describe_device
from .program.leaves import Leaf, leaves
from .program.memory import allocated, limit
from .spec.config import WatchedRun
from .spec.preset_files import FILE_NAME
from .watching.external import Described, describe
from .watching.external_step import Step, compile_step
from .watching.reporter import Teller
from .wire.descriptions import PresetInfo
from .wire.events import EngineReady, Event, PresetInspected, TrainingStarted
from .wire.run_directory import checked_name

NOT_ASKED = "not asked of a run that is only watched"

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
) -> "Watch":
    """Shows a training loop to `shardtui attach`, `ls` and every view, which can read it and not command it.

        with watch("mine", state=state, step=compiled) as run:
            for batch in batches:
                state, loss = compiled(state, batch)
                run.step(loss)

    `name`: of the run; where there is one of that name, NAME-2, NAME-3, …: see `Watch.name`.
    `state`: any pytree of arrays, of Flax modules and states too. Shapes and shardings are read, data never, and no
    reference is kept: the step may donate it.
    `step`: what `step.lower(state, batch).compile()` gives, for collectives, memory and the batch; or the jitted
    function, with the `args` that it is called with: then it is compiled here, and jax takes that program for the first
    call, unless its arguments are others. Without a step there are arrays and losses. `args` also tell which argument
    each array of the state is; give them with a compiled step where shapes leave that open.
    `preset`: what the layout is called, and `model` what is trained; by default the name of the program.
    `tokens_per_step`, `flops_per_step`: for the rates, which are left out without them.
    `steps_done`: before this loop, where it goes on from a checkpoint.

    Of a job of several processes the first one tells; each may call this, and has to where `step` is a jitted function.
    Raises ValueError where an argument is wrong, with every problem.
    """
    described = list(leaves(state))
    compiled = getattr(step, "compiled", step)  # Flax wraps what jax compiled
    problems = [
        *_problems(name, preset, described, steps_done),
        *_step_problems(step, compiled, args),
        *(
            f"{key}={value}: above 0, or None where it is not known"
            for key, value in (("tokens_per_step", tokens_per_step), ("flops_per_step", flops_per_step))
            if value is not None and not value > 0
        ),
    ]
    if problems:
        raise ValueError("\n".join(f"watch: {problem}" for problem in problems))
    known, seconds = Step(compiled, args) if isinstance(compiled, Compiled) else None, None
    if step is not None and known is None:
        began = time.perf_counter()
        known = compile_step(step, args or ())
        seconds = time.perf_counter() - began
        known, described = _steady(known, step, described)
    about = WatchedRun(run=name, model_name=model or Path(sys.argv[0]).name or "python", preset=preset)
    if jax.process_index() > 0:
        return Watch(about, [], [], steps_done)
    try:
        found = describe(preset, described, known, seconds)
        ready = _ready(about, found, tokens_per_step, flops_per_step)
    except Exception:
        _logger.warning("%s is not watched: its arrays or its step cannot be described", name, exc_info=True)
        return Watch(about, [], [], steps_done)
    inner = PresetInspected(preset=preset, arrays=[], rematerializations=[], problem=NOT_ASKED)
    opening = [ready, found.layout, inner, TrainingStarted(preset=preset, step=steps_done)]
    return Watch(about, opening, found.devices, steps_done)


class Watch:
    """A context: what happens in it is told. Where nothing can be told, nothing is, and the loop goes on."""

    name: str | None = None
    """Of the run, once it has begun; None where nothing is told."""

    def __init__(
        self, about: WatchedRun, opening: Sequence[Event], devices: Sequence[jax.Device], steps_done: int
    ) -> None:
        """`opening`: what is told first; where there is none, nothing is told."""
        self._about = about
        self._opening = opening
        self._devices = devices
        self._steps_done = steps_done
        self._teller: Teller | None = None
        self._is_checked = False

    def step(self, loss: Any) -> None:
        """A step was dispatched. `loss`: a scalar, as the step gave it: an array is not waited for here.

        Raises TypeError where the first one is no scalar.
        """
        if not self._is_checked:
            _check(loss)
            self._is_checked = True
        if self._teller:
            self._teller.step(loss)

    def __enter__(self) -> Self:
        if self._opening:
            try:
                measuring = partial(allocated, self._devices)
                self._teller = Teller(self._about, self._opening, measuring, self._steps_done)
                self.name = self._teller.about.run
            except Exception as error:
                _logger.warning(
                    "%s is not watched: %s", self._about.run, error, exc_info=not isinstance(error, Invalid)
                )
        if self.name not in (None, self._about.run):
            _logger.warning("there is a run %s: this one is called %s", self._about.run, self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._teller:
            try:
                self._teller.end(error)
            except Exception:
                _logger.warning("how run %s ended cannot be told", self.name, exc_info=True)


def _steady(known: Step, step: Any, state: list[Leaf]) -> tuple[Step, list[Leaf]]:
    try:
        return known.steady(step, state)
    except Exception:
        _logger.warning("shown as before the first step, which lays the state out anew", exc_info=True)
        return known, state


def _check(loss: Any) -> None:
    if isinstance(loss, Tracer):
        raise TypeError("watch: step(loss): called while jax traces a function: call it in the loop, with its result")
    if getattr(loss, "shape", ()) or not hasattr(loss, "__float__"):
        shape = f" of shape {loss.shape}" if hasattr(loss, "shape") else ""
        raise TypeError(f"watch: step(loss): {type(loss).__name__}{shape}: a scalar is needed, loss.mean() say")


def _problems(name: str, preset: str, state: list[Leaf], steps_done: int) -> list[str]:
    problems: list[str] = []
    try:
        checked_name(name)
    except Invalid as error:
        problems += error.problems
    if not FILE_NAME.fullmatch(preset):
        problems.append(f"preset={preset!r}: 1 to 64 letters, digits, '.', '_' and '-'")
    if not state:
        problems.append("state: no jax.Array in it: give the pytree that the step trains")
    if steps_done < 0:
        problems.append(f"steps_done={steps_done}: 0 or more")
    return problems


def _step_problems(step: Any, compiled: Any, args: tuple[Any, ...] | None) -> list[str]:
    if step is None or isinstance(compiled, Compiled):
        return []
    if not hasattr(step, "lower"):
        return [f"step: {type(step).__name__}: give step.lower(…).compile(), or the jitted function and its args"]
    if args is None:
        return ["step: a jitted function without args: add args=(state, batch), what it is called with"]
    return []


def _ready(about: WatchedRun, found: Described, tokens: int | None, flops: float | None) -> EngineReady:
    arrays, devices = found.layout.arrays, found.devices
    layout = PresetInfo(
        name=about.preset,
        summary="The one layout of this run, as its own program made it.",
        teaches="",
        source="watched",
        mesh=found.layout.mesh.axes,
        fits=True,
        problems=[],
    )
    return EngineReady(
        versions=versions(),
        devices=[describe_device(device) for device in devices],
        simulated=devices[0].platform == "cpu" and len(devices) > 1,
        memory_limit=limit(devices, None),
        warnings=found.problems,
        dtype=None,
        parameters=sum(math.prod(array.shape) for array in arrays if array.kind == "parameter"),
        padding_parameters=0,
        tokens_per_step=tokens,
        flops_per_step=flops,
        corpus=None,
        presets=[layout],
        preset_problems=[],
    )
