"""The steps that were measured on this machine's devices, kept in a file for each kind of devices, and their rates."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ..base.atomic_write import write_atomically
from ..base.directories import cache_directory
from ..base.regular_file import read_regular
from ..wire.account import Account
from ..wire.rates import KindOfWork, Rates
from .fit import error, fitted, other_seconds
from .samples import MeasuredStep, measured_step

MAX_PROGRAMS = 32
"""Programs whose steps are kept: those measured last."""
UNREADABLE = (OSError, msgspec.DecodeError, UnicodeDecodeError)


class Devices(Struct, frozen=True):
    """The devices that steps ran on, and what compiled them: with others, rates differ."""

    kind: str
    """As jax reports it."""
    count: int
    """How many."""
    versions: dict[str, str]
    """Versions of jax and jaxlib."""
    cores: int | None
    """Cores that they share if they are simulated; null for accelerators."""


class KnownStep(Struct, frozen=True):
    """A measured step, and the work of its program."""

    step: MeasuredStep
    """Its times."""
    work: list[KindOfWork]
    """Its work, by its program's text."""


class KnownSteps(Struct, frozen=True):
    """All that was measured on some devices."""

    devices: Devices
    """The devices."""
    steps: list[KnownStep] = []
    """One for each program, the one measured last at the end."""

    @property
    def rates(self) -> Rates | None:
        """The rates that follow; None if nothing was measured."""
        if not self.steps:
            return None
        steps = [known.step for known in self.steps]
        return Rates(
            device=self.devices.kind,
            devices=self.devices.count,
            versions=self.devices.versions,
            accounts=len(steps),
            rates=list(fitted(steps).values()),
            other_seconds=other_seconds(steps),
            error=error(steps, {known.step.program: known.work for known in self.steps}),
        )

    def including(self, work: Sequence[KindOfWork], account: Account) -> "KnownSteps":
        """Returns these with the step of another account, which replaces an older one of the same program."""
        program = hashlib.sha256(msgspec.json.encode(work)).hexdigest()[:16]
        step = measured_step(program, account, work, self.devices.cores is not None)
        others = [known for known in self.steps if known.step.program != program]
        return KnownSteps(self.devices, [*others, KnownStep(step, list(work))][-MAX_PROGRAMS:])


def devices_of(kind: str, count: int, platform: str, versions: Mapping[str, str]) -> Devices:
    """Returns the description of a run's devices. `versions`: of all packages, by name."""
    kept = {name: versions[name] for name in ("jax", "jaxlib") if name in versions}
    return Devices(kind, count, kept, len(os.sched_getaffinity(0)) if platform == "cpu" else None)


def load(devices: Devices) -> KnownSteps:
    """Returns what is kept for these devices; nothing if the file is missing or damaged."""
    try:
        found = msgspec.json.decode(read_regular(_file(devices)), type=KnownSteps)
    except UNREADABLE:
        return KnownSteps(devices)
    return found if found.devices == devices else KnownSteps(devices)


def store(known: KnownSteps) -> None:
    """Writes it. Raises OSError; an older file stays intact."""
    file = _file(known.devices)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(known))


def _file(devices: Devices) -> Path:
    name = hashlib.sha256(msgspec.json.encode(devices)).hexdigest()[:32]
    return cache_directory() / "rates" / f"{name}.json"
