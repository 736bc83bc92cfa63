"""Finds where a step's first non-finite value comes from.

A program of its own repeats the step and reports, of what each equation computes in each turn of each loop, whether it
has a NaN or an infinity, and its largest finite magnitude. From the loss or gradient that is not finite, what it was
computed from is followed back to the operation whose inputs were all good. A value that was not used, such as in the
other branch of a `where`, is not on that way. A second program finds its elements.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..base import formatting
from ..hlo.module import LIBRARIES
from ..models.array import Array
from ..models.task import Task, TrainState
from ..parallel.observed import Activation, Observed
from ..parallel.rules import by_rules
from ..spec.config import UserModel
from ..wire.number_events import MOST_INDICES, NonfiniteOrigin
from .array_numbers import shard_ranges
from .placement import Placement, Tree
from .program import quick, rules_of, trace_step
from .recorded_trace import Argument, Constant, OfLoop, OfTurn, Operation, Recorder, Reference, Result, depth, loops

SAME_ELEMENTS = ("name", "sharding_constraint", "reshard", "copy", "optimization_barrier", "neg", "abs")
REARRANGED = ("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "rev", "split")
"""Operations whose results are not looked at: they are as finite as their inputs."""
PASSES = re.compile(r"\b(?:(?:transpose|jvp|vmap)\()+([^()]*)\)+")
"""Names that jax's transformations give to scopes around the user's own."""
Turns = tuple[int, ...]
"""The turn of each loop around an operation, outermost first."""


@dataclass(frozen=True)
class Found:
    """A non-finite value, of an operation or an argument."""

    value: Result | Argument
    turns: Turns
    is_nan: bool


@dataclass(frozen=True)
class Findings:
    """What the program has reported of values: whether they have a NaN, an infinity, and their largest magnitude."""

    reported: dict[tuple[int, int], np.ndarray]
    """float32 [turns …, 3] of each result."""
    arguments: np.ndarray
    """float32 [arguments, 3]."""

    def origin(self, output: Reference) -> Found | None:
        """Returns where an output's first non-finite value comes from; None if it is finite."""
        current = min(self._bad(self._sources([output], ())), key=self._order, default=None)
        made_of_infinities: Found | None = None
        while current is not None and isinstance(current.value, Result):
            sources = [*self._sources(current.value.operation.inputs, current.turns)]
            bad = [*self._bad(sources)]
            if current.is_nan:
                nans = [each for each in bad if each.is_nan]
                if not nans:
                    made_of_infinities = current
                bad = nans or bad
            if not bad:
                is_mask = not current.is_nan and any(map(_is_infinite_constant, sources))
                return made_of_infinities if is_mask and made_of_infinities else current
            current = min(bad, key=self._order)
        return current

    def largest_input(self, found: Found) -> float | None:
        """Returns the largest finite magnitude of an operation's inputs; None without floating-point inputs."""
        inputs = [] if isinstance(found.value, Argument) else found.value.operation.inputs
        known = [self._of(each, turns) for each, turns in self._sources(inputs, found.turns)]
        return max((float(each[2]) for each in known if each is not None), default=None)

    def _bad(self, sources: Iterable[tuple[Reference, Turns]]) -> Iterator[Found]:
        for value, turns in sources:
            report = self._of(value, turns)
            if report is not None and (report[0] or report[1]) and isinstance(value, Result | Argument):
                yield Found(value, turns, bool(report[0]))

    def _of(self, value: Reference, turns: Turns) -> np.ndarray | None:
        if isinstance(value, Argument):
            return self.arguments[value.position]
        if not isinstance(value, Result):
            return None
        reported = self.reported.get((value.operation.number, value.output))
        return None if reported is None else reported[turns]

    def _order(self, found: Found) -> tuple[int, ...]:
        """Sorts values in the order in which they are computed."""
        if isinstance(found.value, Argument):
            return (-1,)
        around = loops(found.value.operation.loop)
        steps = ((loop.number, loop.turns.index(turn)) for loop, turn in zip(around, found.turns, strict=True))
        return (*itertools.chain(*steps), found.value.operation.number)

    def _sources(self, values: Sequence[Reference], turns: Turns) -> Iterator[tuple[Reference, Turns]]:
        """Yields the values, in their turns, that these ones consist of: results that were looked at, arguments and
        constants."""
        waiting: list[tuple[Reference, Turns, int | None]] = [(each, turns, None) for each in values]
        seen = set[tuple[Reference, Turns, int | None]]()
        while waiting:
            value, turns, part = waiting.pop()
            if isinstance(value, Constant):
                yield value, ()
                continue
            turns = turns[: depth(value)]  # a loop's body may take values from outside of it
            if (each := (value, turns, part)) in seen:
                continue
            seen.add(each)
            match value:
                case Result(operation) if operation.name in SAME_ELEMENTS:
                    waiting += ((other, turns, part) for other in operation.inputs)
                case Result(operation) if operation.name in REARRANGED:
                    waiting += ((other, turns, None) for other in operation.inputs)
                case OfTurn(loop, True, index):
                    outer, before = turns[:-1], loop.turns.index(turns[-1]) - 1
                    if before < 0:
                        waiting.append((loop.inputs.carry[index], outer, None))
                    else:
                        waiting.append((loop.results[index], (*outer, loop.turns[before]), None))
                case OfTurn(loop, False, index):
                    waiting.append((loop.inputs.xs[index], turns[:-1], turns[-1]))
                case OfLoop(loop, index):
                    is_carry = index < len(loop.inputs.carry)
                    chosen = loop.turns[-1:] if is_carry else loop.turns if part is None else [part]
                    waiting += ((loop.results[index], (*turns, turn), None) for turn in chosen)
                case _:
                    yield value, turns


def _is_infinite_constant(source: tuple[Reference, Turns]) -> bool:
    value = source[0].value if isinstance(source[0], Constant) else None
    is_number = jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.floating)
    return is_number and bool(np.isinf(np.asarray(value, np.float64)).any())


def explain(placement: Placement, state: TrainState, batch: Tree) -> NonfiniteOrigin | None:
    """Repeats the step without changing the state. Returns where its loss, or else its gradient, is first not finite;
    None if both are finite."""
    task, observed = placement.task, Observed(names_only=True)
    traced = trace_step(placement, observed)
    arguments = jax.tree.leaves((state, batch))
    recorder = Recorder(traced.jaxpr, lambda _, index, x: _report(x))
    findings = Findings(*_run(placement, recorder, arguments))
    _, scalars = traced.out_info
    outputs = dict(zip(sorted(scalars), recorder.outputs[-len(scalars) :], strict=True))
    for what in ("loss", "grad_norm", "update_norm"):
        found = findings.origin(outputs[what])
        if found is None:
            continue
        if isinstance(found.value, Argument):
            array = task.arrays[found.value.position]
            return _of_argument(array, what, found, arguments[found.value.position])
        counts = _counts(placement, traced.jaxpr, found, arguments)
        names = None if isinstance(task.config.model, UserModel) else observed.activations
        named = _name_after(recorder, found.value, names)
        operation = found.value.operation
        return NonfiniteOrigin(
            what=what,
            is_nan=found.is_nan,
            largest_input=findings.largest_input(found),
            name=named,
            kind="activation",
            operation=operation.name,
            scope=PASSES.sub(r"\1", formatting.op(operation.scope)).strip("/"),
            is_backward="transpose(" in operation.scope,
            layer=_layer(operation, found.turns, task),
            source=_source(operation.equation),
            **_elements(placement, counts, observed.activations.get(named)),
        )
    return None


def _report(x: jax.Array) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    is_nan, is_infinite = jnp.isnan(x), jnp.isinf(x)
    largest = jnp.max(jnp.abs(jnp.where(is_nan | is_infinite, 0, x)), initial=0).astype(jnp.float32)
    return jnp.stack([is_nan.any().astype(jnp.float32), is_infinite.any().astype(jnp.float32), largest])


def _run(placement: Placement, recorder: Recorder, arguments: list[Any]) -> Any:
    """Returns what is kept of results, and the reports of the arguments: of each copy on a device, the largest."""
    mesh, whole = placement.mesh, PartitionSpec()
    largest = partial(jax.lax.pmax, axis_name=mesh.axis_names)

    def run(*arguments: Any) -> Any:
        reports = jnp.stack([jnp.zeros(3) if (each := _report(x)) is None else each for x in arguments])
        return recorder.evaluate(arguments), reports

    with rules_of(placement):
        lowered = jax.jit(run, out_shardings=NamedSharding(mesh, whole)).lower(*arguments)
        found = lowered.compile(compiler_options=quick(placement))(*arguments)
    return jax.device_get(jax.jit(jax.shard_map(largest, mesh=mesh, in_specs=whole, out_specs=whole))(found))


def _counts(placement: Placement, traced: Any, found: Found, arguments: list[Any]) -> list[np.ndarray]:
    """Returns how many elements of an operation's result are not finite, int [size] for each of its dims."""
    assert isinstance(found.value, Result)
    wanted = found.value.operation.number, found.value.output

    def count(operation: Operation, index: int, x: jax.Array) -> list[jax.Array] | None:
        if (operation.number, index) != wanted:
            return None
        is_bad = jnp.isnan(x) if found.is_nan else ~jnp.isfinite(x)
        others = ([each for each in range(x.ndim) if each != dim] for dim in range(x.ndim))
        return [jnp.sum(is_bad, axis=axes, dtype=jnp.int32) for axes in others]

    kept, _ = _run(placement, Recorder(traced, count), arguments)
    return [each[found.turns] for each in kept[wanted]]


def _name_after(recorder: Recorder, result: Result, names: Collection[str] | None) -> str:
    """Returns the first of these `names`, or of all, whose value the result is part of, in the same turn of the same
    loop; empty if there is none."""
    reached = {result}
    for operation in recorder.operations[result.operation.number + 1 :]:
        if operation.loop is result.operation.loop and any(
            isinstance(each, Result) and each in reached for each in operation.inputs
        ):
            if (name := operation.given_name) and (names is None or name in names):
                return name
            reached |= {Result(operation, index) for index in range(len(operation.equation.outvars))}
    return ""


def _layer(operation: Operation, turns: Turns, task: Task) -> int | None:
    """Returns the layer of a turn of the loop over all layers; None outside of it."""
    layers = getattr(task.config.model, "layers", None)
    around = zip(loops(operation.loop), turns, strict=True)
    return next((turn for loop, turn in around if loop.length == layers), None)


def _source(equation: Any) -> str:
    """Returns the innermost `file:line` outside libraries; empty if there is none."""
    frames = getattr(equation.source_info.traceback, "frames", ())
    return next((f"{each.file_name}:{each.line_num}" for each in frames if not LIBRARIES.search(each.file_name)), "")


def _elements(placement: Placement, counts: Sequence[np.ndarray], activation: Activation | None) -> dict[str, Any]:
    """Returns where the elements are: their indices along each dim, and the devices that the rules give them to. Of a
    value that has not the shape of the activation that it is part of, only the batch is known, by its size."""
    indices = [np.flatnonzero(each) for each in counts]
    shape = tuple(map(len, counts))
    if activation and activation.shape == shape:
        dims, spec = activation.logical_axes, activation.decision.spec
    else:
        is_batch = shape[:1] == (placement.task.config.training.batch_size,)
        dims = ("batch", *[None] * (len(shape) - 1)) if is_batch else (None,) * len(shape)
        spec = by_rules(shape, dims, placement.preset.rules, dict(placement.mesh.shape)).spec
    ranges = shard_ranges(shape, NamedSharding(placement.mesh, spec)) if any(dims) else {}
    devices = [
        device
        for device, box in ranges.items()
        if all(np.any((each >= start) & (each < stop)) for each, (start, stop) in zip(indices, box, strict=True))
    ]
    return {
        "shape": list(shape),
        "dims": [axis or "" for axis in dims],
        "indices": [each[:MOST_INDICES].tolist() for each in indices],
        "elements": int(counts[0].sum()) if counts else 1,
        "devices": devices,
    }


def _of_argument(array: Array, what: str, found: Found, value: jax.Array) -> NonfiniteOrigin:
    """Describes an array of the state or the batch, from its shards in this process."""
    places: dict[int, np.ndarray] = {}
    for shard in value.addressable_shards:
        first = [part.indices(size)[0] for part, size in zip(shard.index, value.shape, strict=True)]
        places[shard.device.id] = np.argwhere(~np.isfinite(np.asarray(shard.data, np.float32))) + first
    unique = np.unique(np.concatenate([*places.values()]), axis=0)
    return NonfiniteOrigin(
        what=what,
        is_nan=found.is_nan,
        name=array.names[0],
        kind=array.kind,
        shape=list(array.shape),
        dims=[axis or "" for axis in array.logical_axes],
        indices=[np.unique(unique[:, dim])[:MOST_INDICES].tolist() for dim in range(value.ndim)],
        elements=len(unique),
        devices=[device for device, each in places.items() if len(each)],
    )
