"""A compiled preset: the shardings of all arrays, and the train step compiled for them."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled, Lowered, Traced

from ..hlo.layout import bytes_per_device
from ..hlo.program_text import read
from ..models.flops import flops_by_scope
from ..models.task import Scalars, Task, TrainState
from ..parallel.constraints import activation_rules
from ..parallel.mesh import describe_mesh
from ..parallel.observed import Observed
from ..parallel.rules import flax_rules, of_parameter
from ..spec.model_config import ModelConfig
from ..spec.preset import Preset
from ..wire.events import Phase, PresetCompiled
from .compilation_cache import cache_hits, mark_code
from .digest import digests, is_finite, shard_digests
from .memory import predict
from .placement import Placement, Tree


@dataclass(frozen=True)
class StateFunction:
    """A function of the train state, compiled at the first call, or before that by `compile`."""

    lower: Callable[[], Lowered]
    """Lowers the function."""

    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _compiled(self) -> Compiled:
        return self.lower().compile()

    def compile(self) -> Compiled:
        """Compiles the function once, in the first thread that calls this."""
        with self._lock:
            return self._compiled

    def __call__(self, *arguments: object) -> jax.Array:
        return self.compile()(*arguments)


def state_function(
    function: Callable[[TrainState], jax.Array], state: TrainState, is_by_device: bool = False
) -> StateFunction:
    """Returns a function of states like the abstract `state`, which has shardings.

    Its result is replicated, or split over all devices of the mesh along its first dim if it `is_by_device`.
    """

    def lower() -> Lowered:
        mesh = jax.tree.leaves(state)[0].sharding.mesh
        spec = PartitionSpec(mesh.axis_names) if is_by_device else PartitionSpec()
        return jax.jit(function, out_shardings=NamedSharding(mesh, spec)).lower(state)

    return StateFunction(lower)


def digest_function(state: TrainState) -> StateFunction:
    return state_function(partial(digests, shardings=jax.tree.map(lambda leaf: leaf.sharding, state)), state)


def shard_digest_function(state: TrainState) -> StateFunction:
    """Returns `shard_digests` as a function of states like the abstract `state`; each device keeps its own row."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return state_function(partial(shard_digests, shardings=shardings), state, is_by_device=True)


COMPILER_OPTIONS = {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}}
"""XLA's options for the step, by platform. Without it, over up to 32 devices the TPU compiler gathers a kernel piece by
piece while it multiplies ("windowed einsum"), in products so small that it estimates 1 to 43 % more time for the step
(docs/planning-measured.md)."""

HOST_BYTES_PER_CHARACTER = 40
"""Host memory of a compiled program and its jaxpr, per character of HLO text: 23 to 52 were measured on CPU
(docs/measurements.md)."""


@dataclass(frozen=True)
class Program:
    """A compiled preset, and a description of it."""

    placement: Placement
    """The task, the mesh, and the shardings of all arrays."""
    step: Compiled
    """The train step: state and batch to new state and scalars. Donates its state; keeps the placement's shardings."""
    digest: StateFunction
    """Digests of the state's arrays."""
    is_finite: StateFunction
    """Whether the state has no NaN or infinity."""
    description: PresetCompiled
    """Layout, collectives and memory of the compiled step."""
    host_bytes: int
    """Estimated host memory that the program uses."""
    held_out_loss: StateFunction | None = None
    """The loss of a state and a held-out batch; None for a run without evaluation."""
    shard_digests: StateFunction | None = None
    """Digests of what each device holds; None for a run that does not check its devices."""

    @property
    def name(self) -> str:
        return self.placement.preset.name

    def compile_state_functions(self) -> None:
        """Compiles them ahead: a switch, a save, an evaluation and a check of devices call them while no step runs."""
        for function in (self.digest, self.is_finite, self.held_out_loss, self.shard_digests):
            if function:
                function.compile()


def compile_program(placement: Placement, on_phase: Callable[[Phase], None] = lambda _: None) -> Program:
    """Compiles the step. May be called in any thread while another step runs. Calls `on_phase` before each phase."""
    began = time.perf_counter()
    on_phase("trace")
    task, traced = placement.task, trace_step(placement)
    on_phase("lower")
    lowered = traced.lower()
    on_phase("compile")
    hits = cache_hits()
    mark_code(lowered)
    step = lowered.compile()
    from_cache = cache_hits() > hits
    state = placement.abstract_state
    text = step.as_text() or ""
    written = flops_by_scope(traced.jaxpr)
    description = _describe(placement, step, text, written, time.perf_counter() - began, from_cache)
    functions = digest_function(state), state_function(is_finite, state)
    held_out = StateFunction(lambda: trace_held_out(placement).lower()) if task.config.evaluation else None
    by_device = shard_digest_function(state) if task.config.check_devices else None
    return Program(placement, step, *functions, description, HOST_BYTES_PER_CHARACTER * len(text), held_out, by_device)


def trace_step(placement: Placement, observed: Observed | None = None) -> Traced:
    """Traces the step with the placement's shardings. If `observed` is given, compiling the result fills it in."""
    state, options = placement.state_shardings, COMPILER_OPTIONS.get(placement.platform)

    def train_step(arrays: TrainState, inputs: Tree) -> tuple[TrainState, Scalars]:
        return placement.task.train_step(arrays, inputs, state.params)

    with rules_of(placement, observed):
        step = jax.jit(
            train_step, out_shardings=(state, None), donate_argnums=0, keep_unused=True, compiler_options=options
        )
        return step.trace(*placement.abstract_arguments)


def trace_held_out(placement: Placement) -> Traced:
    """Traces the loss of a held-out batch: a program of its own, so that the step is the same with and without it."""
    with rules_of(placement):
        return jax.jit(placement.task.held_out_loss).trace(*placement.abstract_arguments)


@contextlib.contextmanager
def rules_of(placement: Placement, observed: Observed | None = None) -> Iterator[None]:
    """Sets the mesh and the rules for activations, while a function is traced."""
    preset = placement.preset
    rules = flax_rules(preset, placement.task.annotated - set(placement.mesh.shape))
    with (
        jax.set_mesh(placement.mesh),
        nnx.logical_axis_rules(rules),  # for activations of a user's model
        activation_rules(placement.mesh, preset.rules, observed, placement.pipeline),
    ):
        yield


def compile_initial_state(placement: Placement) -> Callable[[], TrainState]:
    """Returns a compiled function that creates the initial state, sharded from the start. May be called in any thread.

    The values do not depend on the shardings. Uses automatic axis types, because explicit ones fuse operations
    differently, which changes rounding.
    """
    mesh = placement.mesh
    with jax.set_mesh(Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)):
        return jax.jit(placement.task.initial_state, out_shardings=placement.state_shardings).lower().compile()


def _describe(
    placement: Placement,
    step: Compiled,
    text: str,
    written: Mapping[str, float | None],
    seconds: float,
    from_cache: bool,
) -> PresetCompiled:
    (shardings, _), mesh, model = step.input_shardings, describe_mesh(placement.mesh), placement.task.config.model
    arrays = placement.describe_all(shardings)
    report = read(text, mesh.axes, [array.name for array in arrays], written)
    sizes = ((array.kind, bytes_per_device(array, mesh)) for array in arrays)
    return PresetCompiled(
        preset=placement.preset.name,
        compile_seconds=seconds,
        from_cache=from_cache,
        mesh=mesh,
        arrays=arrays,
        collectives=report.collectives,
        products=report.products,
        memory=predict(step, sizes, placement.platform),
        pipeline=placement.pipeline,
        unused_rules=_unused_rules(placement.task, placement.preset),
        attention=placement.attention,
        remat=model.remat if isinstance(model, ModelConfig) else None,
        at_peak=report.peak.memory if report.peak else None,
        peak_buffers=report.peak.buffers if report.peak else [],
    )


def _unused_rules(task: Task, preset: Preset) -> list[str]:
    if task.logical_axes is not None:  # a built-in model: rules without an array are for activations
        return []
    used = {logical for array in task.arrays for logical in of_parameter(array.logical_axes, preset.rules)}
    return [logical for logical in preset.rules if preset.axes(logical) and logical not in task.annotated | used]


def quick(placement: Placement) -> dict[str, str | bool]:
    """Returns options for a fast compilation of a program that runs once or never: on CPU, most of the time optimizes
    machine code."""
    if placement.platform != "cpu":
        return {}
    return {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}
