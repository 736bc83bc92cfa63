"""Checks what the tool says of a preset by independent means.

Shards are compared with jax's own `devices_indices_map`, bytes with sums over them, collectives and FLOPs with a second
parser of the compiled text, losses and digests with those of one device.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from shardtui.engine.hlo import layout
from shardtui.engine.hlo.collectives import inventory
from shardtui.engine.hlo.module import parse
from shardtui.engine.models.flops import flops
from shardtui.engine.models.task import Array, Batch, Task, TrainState
from shardtui.engine.planning.step_trace import arguments, traced_work
from shardtui.engine.program.placement import Placement, describe_preset, place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program, trace_step
from shardtui.engine.program.reshard import Transfers
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_reader import load_preset, parse_preset
from shardtui.engine.spec.preset_writer import preset_text
from shardtui.engine.wire.collective import CollectiveInfo
from shardtui.engine.wire.descriptions import ArrayInfo, MeshInfo, PresetInfo

from . import second_reader
from .random_presets import Case
from .random_programs import program

SAME_LOSS = {"float32": 1e-5, "bfloat16": 2e-2}
"""Largest relative difference of a loss, by dtype."""
STEPS = 2


@dataclass
class Checked:
    case: Case
    wrong: list[str] = field(default_factory=list)
    info: PresetInfo | None = None
    """The description of the preset; None until it is described."""
    arrays: int = 0
    collectives: int = 0


class Checks:
    """Checks of one case. An exception counts as wrong."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.task = Task(case.config, "cpu")
        self.devices = jax.devices()[: case.devices]
        self.preset = case.preset
        self.checked = Checked(case)

    def placed(self) -> Checked:
        """Checks the placement, without compiling."""
        with self._caught("placed"):
            read = parse_preset(Path(f"{self.preset.name}.toml"), preset_text(self.preset))
            self._expect(bool(self.preset.problems) or read.layout == self.preset.layout, "its text is another preset")
            info = self.checked.info = describe_preset(self.task, self.preset, self.devices)
            self._expect(info.fits != bool(info.problems), f"fits: {info.fits}, but {info.problems}")
            why = why_not(self.task, self.preset, self.devices)
            is_refused = self.preset.axis_types == "explicit" and any("ShardingTypeError" in p for p in info.problems)
            same = info.fits == (why is None) or is_refused
            self._expect(same, f"fits: {info.fits} {info.problems}, independently: {why}")
            if info.fits:
                placement = place(self.task, self.preset, self.devices)
                trace_step(placement)
                shardings = placement.state_shardings, placement.batch_shardings
                self._arrays(placement, placement.describe_all(shardings), shardings)
        return self.checked

    def described(self) -> Program | None:
        """Checks the compiled program and returns it; None if that raised."""
        with self._caught("described"):
            placement = place(self.task, self.preset, self.devices)
            program = compile_program(placement)
            (shardings, _), described = program.step.input_shardings, program.description  # type: ignore[attr-defined]
            self._arrays(placement, described.arrays, shardings)
            for array in described.arrays:
                same = layout.is_same_layout(array.spec, array.compiled_spec, described.mesh)
                self._expect(same, f"{array.name}: {array.spec} compiled as {array.compiled_spec}")
            self._memory(program, shardings)
            self._collectives(program)
            self._flops(program)
            return program
        return None

    def trained(self, program: Program) -> None:
        """Checks that losses, initial state and the digests of a moved state are those of one device."""
        with self._caught("trained"):
            alone = compile_program(place(self.task, load_preset("dp"), self.devices[:1]))
            states = [compile_initial_state(each.placement)() for each in (alone, program)]
            self._moved(program, states[1], np.asarray(alone.digest(states[0])), states[0])
            for array, one, other in zip(self.task.arrays, *map(jax.tree.leaves, states), strict=False):
                same = np.allclose(one, other, rtol=1e-6, atol=1e-7)
                self._expect(same, f"{array.names[0]} has another initial value than on one device")
            losses = [train(self.task, each, state) for each, state in zip((alone, program), states, strict=True)]
            bar = SAME_LOSS[self.task.model.dtype or "float32"]
            apart = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
            self._expect(apart <= bar, f"losses {losses[1]}, on one device {losses[0]}")

    def _moved(self, program: Program, state: TrainState, digests: np.ndarray, alone: TrainState) -> None:
        """Moves the state to a replicated layout and back, and there from one device."""
        own, transfers = program.placement.state_shardings, Transfers()
        same = np.array_equal(program.digest(jax.device_put(alone, own)), digests)
        self._expect(same, "the state's digests differ from those on one device")
        replicated = Preset("replicated", "", "", {"data": len(self.devices)}, {}, {}, "")
        there = transfers.move(state, place(self.task, replicated, self.devices).state_shardings)
        for array, one, other in zip(self.task.arrays, *map(jax.tree.leaves, (state, there)), strict=False):
            same = np.asarray(one).tobytes() == np.asarray(other).tobytes()
            self._expect(same, f"{array.names[0]} changed when it was moved")
        back = transfers.move(there, own)
        self._expect(np.array_equal(program.digest(back), program.digest(state)), "digests differ after moving")

    def _arrays(self, placement: Placement, arrays: list[ArrayInfo], shardings: Any) -> None:
        mesh = MeshInfo(dict(placement.mesh.shape), [device.id for device in placement.mesh.devices.flat])
        for array, sharding in zip(arrays, jax.tree.leaves(shardings), strict=True):
            boxes: dict[tuple[tuple[int, int], ...], list[int]] = {}
            for device, index in sharding.devices_indices_map(tuple(array.shape)).items():
                box = tuple(part.indices(size)[:2] for part, size in zip(index, array.shape, strict=True))
                boxes.setdefault(box, []).append(device.id)
            ours = {
                tuple(zip(shard.start, shard.stop, strict=True)): list(shard.devices)
                for shard in layout.shards(array.shape, array.compiled_spec, mesh)
            }
            theirs = {box: sorted(devices) for box, devices in boxes.items()}
            self._expect(ours == theirs, f"{array.name}: shards {ours}, jax has {theirs}")
            held = max(math.prod(stop - start for start, stop in box) for box in boxes) * _itemsize(array)
            said = layout.bytes_per_device(array, mesh)
            self._expect(said == held, f"{array.name}: {said} B a device, jax has {held}")
            self.checked.arrays += 1

    def _memory(self, program: Program, shardings: Any) -> None:
        held = Counter[str]()
        for array, sharding in zip(program.description.arrays, jax.tree.leaves(shardings), strict=True):
            held[array.kind] += math.prod(sharding.shard_shape(tuple(array.shape))) * _itemsize(array)
        memory = program.description.memory
        said = {"parameter": memory.parameters, "moment": memory.moments}
        said |= {"batch": memory.batch, "scalar": memory.scalars}
        self._expect(dict(held) == said, f"memory {said}, summed {dict(held)}")
        total = sum(held.values())
        self._expect(memory.arguments == total, f"arguments {memory.arguments}, summed {total}")
        self._expect(memory.padding == 0, f"padding {memory.padding} B")

    def _collectives(self, program: Program) -> None:
        found, mesh = program.description.collectives, dict(program.placement.mesh.shape)
        self._expect(found is not None, "its collectives cannot be read")
        wrong = unlike(found or [], text_of(program), mesh)
        self._expect(not wrong, wrong)
        over_none = [info for info in found or () if not info.axes]
        self._expect(not over_none, f"collectives over no axis {over_none}")
        self.checked.collectives += len(found or ())

    def _flops(self, program: Program) -> None:
        """Compares the FLOPs of the trace with those in the text.

        The text may have fewer: of one position a device, XLA multiplies instead of a product over positions, and the
        partitioner may split the products of gradients over an axis that no rule uses. It may have more under explicit
        types where the residual stream is whole and weights are split over an axis of their own: the trace multiplies
        the parts and sums, the CPU's compiler gathers the weights.
        """
        memory = program.description.memory
        held = sum(arguments(self.task, self.preset, self.case.devices).values())
        self._expect(memory is not None and held == memory.arguments, f"{held} B of arguments by their shapes")
        said = traced_work(self.task, self.preset, self.devices).flops
        counted = second_reader.flops(text_of(program))
        sizes = self.preset.sizes(self.case.devices)
        parts = math.prod(sizes[axis] for axis in self.preset.axes("seq"))
        is_one_position = parts == self.task.config.training.seq_len
        has_unused_axis = any(size > 1 and axis not in _used(self.preset) for axis, size in sizes.items())
        may_be_fewer = said > counted > 0.8 * said and (is_one_position or has_unused_axis)
        has_split_weights = bool({*self.preset.axes("embed")} - {*self.preset.axes("batch"), *self.preset.axes("seq")})
        may_be_more = said < counted < 2 * said and self.preset.axis_types == "explicit" and has_split_weights
        same = abs(said / counted - 1) <= 0.01 or may_be_fewer or may_be_more
        self._expect(same, f"{said:.4g} FLOPs in the trace, {counted:.4g} in the text")

    def _expect(self, holds: bool, wrong: str) -> None:
        if not holds:
            self.checked.wrong.append(wrong)

    @contextmanager
    def _caught(self, where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.checked.wrong.append(f"{where}: {type(error).__name__}: {str(error)[:500]}")


def text_of(program: Program) -> str:
    return program.step.as_text()  # type: ignore[attr-defined]


def unlike(found: list[CollectiveInfo], text: str, mesh: dict[str, int]) -> str:
    ours = Counter((info.kind, tuple(info.axes), info.count, info.bytes_each) for info in found)
    theirs = second_reader.collectives(text, mesh)
    return "" if ours == theirs else f"collectives only here {ours - theirs}, only in the second parser {theirs - ours}"


def wrong_of_program(seed: int) -> list[str]:
    """Checks a random program: its collectives on its mesh, and its FLOPs on one device, where none are repeated."""
    random, alone = program(seed), program(seed, alone=True)
    mesh, text = dict(random.mesh.shape), random.compiled()
    said = flops(jax.make_jaxpr(alone.function)(alone.argument).jaxpr)
    counted = second_reader.flops(alone.compiled())
    other_flops = "" if said == counted else f"{said:.0f} FLOPs counted in the jaxpr, {counted:.0f} in the text"
    return [*filter(None, (unlike(inventory(parse(text), mesh), text, mesh), other_flops))]


def why_not(task: Task, preset: Preset, devices: list[jax.Device]) -> str | None:
    """Returns why a preset cannot be laid out, found independently: what jax refuses and the built-in model cannot do.

    None if it can, although jax may refuse to guess under explicit axis types.
    """
    sizes, count = dict(preset.mesh), len(devices)
    fixed = math.prod(size for size in sizes.values() if size > 0)
    sizes = {axis: count // fixed if size < 0 else size for axis, size in sizes.items()}
    if math.prod(sizes.values()) != count:
        return f"{sizes} are not {count}"
    mesh, model, training = jax.make_mesh(tuple(sizes.values()), tuple(sizes)), task.config.model, task.config.training
    if preset.axes("experts") and not model.experts:
        return "no experts"
    if unmatched := [glob for glob in preset.overrides if not any(_matches(array, glob) for array in task.arrays)]:
        return f"no array for {unmatched}"
    stages = preset.axes("layers")
    if stages and preset.axis_types == "explicit":
        return "stages in explicit axis types"
    of_activations = {axis for name in ("batch", "seq", "activation_embed") for axis in preset.axes(name)}
    if shared := of_activations & set(stages):
        stages = ()
        if preset.microbatches or preset.pipeline_repeats > 1:
            return f"a schedule without stages, {shared}"
    if stages and model.experts:
        return "experts in stages"
    group = training.batch_size // math.prod(sizes[axis] for axis in preset.axes("batch"))
    if preset.microbatches and (not stages or group % preset.microbatches):
        return f"{preset.microbatches} micro-batches of {group} in stages {stages}"
    count, repeats = math.prod(sizes[axis] for axis in stages), preset.pipeline_repeats
    if count > 1 and repeats > 1:
        parts = preset.microbatches or max(parts for parts in range(1, 4 * count + 1) if group % parts == 0)
        if model.layers % (count * repeats) or parts < count:
            return f"{repeats} repeats of {count} stages: {model.layers} layers, {parts} micro-batches"
    split = {"batch": training.batch_size, "seq": training.seq_len, "layers": stages and model.layers}
    for name, size in split.items():
        if size and size % (parts := math.prod(sizes[axis] for axis in preset.axes(name))):
            return f"{name} {size} in {parts} parts, whatever overrides say"
    for array in task.arrays:
        spec = _spec(array, preset)
        if len(spec) > len(array.shape):
            return f"{array.names[0]}: {spec} for {array.shape}"
        try:
            NamedSharding(mesh, PartitionSpec(*spec)).shard_shape(array.shape)
        except Exception as error:
            return f"{array.names[0]}: {error}"
    return None


def _used(preset: Preset) -> set[str]:
    splits = (*preset.rules.values(), *(override.spec for override in preset.overrides.values()))
    return {axis for axes in itertools.chain(*splits) for axis in axes}


def _matches(array: Array, glob: str) -> bool:
    if array.kind == "batch" and not glob.startswith("batch"):
        return False
    return bool(array.shape) and any(fnmatchcase(name, glob) for name in array.names)


def _spec(array: Array, preset: Preset) -> list[tuple[str, ...] | None]:
    for name in array.names:
        for glob, override in preset.overrides.items():
            if _matches(array, glob) and fnmatchcase(name, glob):
                stacked = array.logical_axes[:1] == ("layers",)
                size = math.prod(array.shape[1:] if stacked else array.shape)
                return [*([None] if stacked else []), *(override.spec if size >= override.min_size else ())]
    return [preset.axes(logical or "") or None for logical in array.logical_axes]


def _itemsize(array: ArrayInfo) -> int:
    return jax.numpy.dtype(array.dtype).itemsize


def train(task: Task, program: Program, state: TrainState | None = None) -> list[float]:
    """Trains on random tokens and returns the losses. `state`: donated; by default the initial one."""
    state = state or compile_initial_state(program.placement)()
    losses: list[float] = []
    shapes = [array.shape for array in jax.tree.leaves(task.batch_arrays)]
    model = task.config.model
    for tokens in np.random.default_rng(0).integers(0, model.vocab, (STEPS, *shapes[0]), np.int32):
        batch = Batch(tokens, np.roll(tokens, -1, axis=1))
        state, scalars = program.step(state, Batch(*map(jax.device_put, batch, program.placement.batch_shardings)))
        losses.append(float(scalars["loss"]))
    return losses
