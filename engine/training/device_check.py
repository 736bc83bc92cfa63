"""Compares what devices must share, every so many steps, and goes back if they differ."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ..base import formatting
from ..checkpoint.directory import state_names
from ..distributed.outcomes import WrongDevices
from ..models.task import Task
from ..parallel.rules import axes_in
from ..program.placement import place
from ..program.pytree_arrays import bytes_of
from ..spec.preset import Preset
from ..wire.events import DevicesDiffer, WrongDevice
from .progress import Pausing, Progress
from .switcher import Restorer
from .tools import Tools

SHOWN = 3


class Differing(NamedTuple):
    """Devices whose shards differ from their replicas."""

    devices: list[int]
    """Their places in the mesh, in row-major order."""
    leaves: list[int]
    """The arrays that differ, as places among the leaves."""
    is_certain: bool
    """Whether most replicas agree that these devices are wrong. Of two replicas that differ, either may be."""


@dataclass(frozen=True)
class DeviceCheck:
    """Compares the replicas of the state's arrays, in every process after the same steps. Each device digests its own
    shards after a step; the digests are read while the next step runs. Before a save or a switch they are read at once,
    so that every checkpoint holds a state whose replicas are equal."""

    tools: Tools
    restorer: Restorer
    pausing: Pausing

    def after_step(self, at: Progress) -> bool:
        """Begins and reads what is due after a step was dispatched. Returns False if the run has gone back."""
        if not (every_steps := self.tools.config.check_devices):
            return True
        if at.unread is not None and not self._read(at):
            return False
        if at.begun == self.tools.config.steps or self.pausing.is_paused or self.tools.saver.is_due(at.begun):
            return self.passes(at)
        if at.begun % every_steps == 0:
            self._begin(at)
        return True

    def passes(self, at: Progress) -> bool:
        """Compares the devices now, if the run does so at all. Returns False if they differ and the run has gone back.
        Raises WrongDevices in a supervised run."""
        if not self.tools.config.check_devices:
            return True
        self._begin(at)
        return self._read(at)

    def _begin(self, at: Progress) -> None:
        assert at.program.shard_digests
        at.unread, at.unread_at = at.program.shard_digests(at.state), at.begun

    def _read(self, at: Progress) -> bool:
        assert at.unread is not None
        with self.tools.cluster.step():
            rows, at.unread = rows_of(at.unread), None
        found = self.tools.cluster.gather(rows, dict[int, bytes])
        shardings = jax.tree.leaves(at.program.placement.state_shardings)

        def compare() -> Differing | None:
            joined = {place: row for part in found for place, row in part.items()}
            words = np.stack([np.frombuffer(joined[place], np.uint64) for place in sorted(joined)])
            return differing(words, first_holders(shardings))

        different = self.tools.cluster.broadcast(compare, Differing | None)
        if different:
            self._go_back(at, different)
        return different is None

    def _go_back(self, at: Progress, different: Differing) -> None:
        """Resumes from the newest checkpoint and pauses, or ends the engine for its supervisor."""
        event = self._event(at, different)
        self.tools.profiler.end(at)
        self.tools.saver.finish()
        self.tools.publish(event)
        if self.tools.is_supervised:
            wrong: dict[int, list[int]] = {}
            for device in sorted(event.devices, key=lambda each: each.process) if event.is_certain else ():
                wrong.setdefault(device.process, []).append(device.id)
            raise WrongDevices(event.problem, wrong)
        newest = self.tools.saver.newest()
        at.replace_with(self.restorer.first(at.program, newest))
        ids = ", ".join(str(device.id) for device in event.devices)
        advice = f"resume to go on with all devices. If device {ids} differs again, start the run without it: "
        advice += "--supervise does so by itself"
        self.pausing.pause(at, f"{event.problem}: went back to step {at.done:,}; {advice}")

    def _event(self, at: Progress, different: Differing) -> DevicesDiffer:
        found = [at.program.placement.mesh.devices.flat[place] for place in different.devices]
        names = state_names(self.tools.compiler.task)
        arrays = [names[leaf] for leaf in different.leaves]
        devices = [
            WrongDevice(device.id, device.device_kind, device.process_index, self._host(device.process_index))
            for device in found
        ]
        return DevicesDiffer(
            step=at.unread_at,
            devices=devices,
            is_certain=different.is_certain,
            arrays=arrays,
            problem=_words(devices, different.is_certain, arrays, at.unread_at),
        )

    def _host(self, process: int) -> str:
        names = {host.process: host.name for host in self.tools.cluster.hosts}
        return names.get(process) or socket.gethostname()


def first_holders(shardings: Sequence[NamedSharding]) -> np.ndarray:
    """Returns int [devices, leaves]: the place in the mesh of the first device that holds the same shard."""
    mesh = shardings[0].mesh
    splits = [axes_in(sharding.spec) for sharding in shardings]
    known = {split: _first_holders(mesh, split) for split in set(splits)}
    return np.stack([known[split] for split in splits], axis=1)


def differing(words: np.ndarray, first: np.ndarray) -> Differing | None:
    """Returns the devices that differ; None if all replicas are equal.

    `words`: uint64 [devices, leaves], digests of what each device holds; `first`: `first_holders`.
    """
    is_equal = words == np.take_along_axis(words, first, axis=0)
    if is_equal.all():
        return None
    leaves = np.flatnonzero(~is_equal.all(axis=0)).tolist()
    wrong: set[int] = set()
    undecided: set[int] = set()
    for leaf in leaves:
        for holder in np.unique(first[:, leaf]):
            replicas = np.flatnonzero(first[:, leaf] == holder)
            found, counts = np.unique(words[replicas, leaf], return_counts=True)
            if 2 * counts.max() > len(replicas):
                wrong.update(replicas[words[replicas, leaf] != found[counts.argmax()]].tolist())
            else:
                undecided.update(replicas.tolist())
    return Differing(sorted(wrong or undecided), leaves, bool(wrong))


def _first_holders(mesh: Mesh | AbstractMesh, split: frozenset[str]) -> np.ndarray:
    """Returns int [devices]. Replicas differ only in their indices on the axes that do not split the array."""
    places = np.arange(mesh.size).reshape(tuple(mesh.shape.values()))
    first = tuple(slice(None) if axis in split else slice(1) for axis in mesh.axis_names)
    return np.broadcast_to(places[first], places.shape).ravel()


def rows_of(words: jax.Array) -> dict[int, bytes]:
    """Returns the rows of a result by device that are in this process, by place in the mesh."""
    return {shard.index[0].start or 0: np.asarray(shard.data).tobytes() for shard in words.addressable_shards}


def coverage(task: Task, preset: Preset, devices: Sequence[jax.Device]) -> list[str]:
    """Returns a warning if part of the state has no replicas under the run's preset, which fits; else nothing."""
    if not (every_steps := task.config.check_devices):
        return []
    shardings = jax.tree.leaves(place(task, preset, devices).state_shardings)
    arrays = jax.tree.leaves(task.abstract_state)
    first = first_holders(shardings)
    sizes = np.array([bytes_of(array.shape, array.dtype) for array in arrays], float)
    is_alone = (first == first[0]).sum(axis=0) == 1
    share = sizes[is_alone].sum() / sizes.sum()
    text = (
        f"--check-devices {every_steps}: under {preset.name}, {100 * share:.1f} % of the state is on one "
        "device only and is not compared: hsdp, for example, holds each shard on two or more"
    )
    return [text] if share else []


def _words(devices: list[WrongDevice], is_certain: bool, arrays: list[str], step: int) -> str:
    named = formatting.listed(
        [f"{device.id} ({device.kind}, process {device.process} on {device.host})" for device in devices], SHOWN
    )
    what = f"{formatting.counted(len(arrays), 'array')} ({formatting.listed(arrays, SHOWN)})"
    if is_certain:
        return f"after step {step:,}, device {named} does not hold what its replicas hold, in {what}"
    return f"after step {step:,}, one of devices {named} is wrong: these replicas differ in {what}"
