"""Checks the machine and its devices in this process, one after the other."""

from collections.abc import Iterator
from functools import partial

import jax

from ..base import formatting
from ..program.presets import list_presets
from ..spec.model_choice import choose_model
from ..wire.checkup import Check, Examination, examined
from .devices import check_devices, check_digests, check_rates, check_topology
from .kernels import check_attention, check_experts
from .machine import MACHINE

COMPUTING = {"attention": check_attention, "experts": check_experts, "digests": check_digests, "links": check_rates}


def examine(examination: Examination) -> Iterator[Check]:
    """Yields each check before it runs, and after it: a process that ends in between says by which check it does."""
    for name, look in MACHINE.items():
        yield from examined(name, look)
    devices: list[jax.Device] = []
    yield from examined("devices", partial(check_devices, examination, devices))
    if not devices:
        return
    yield from examined("topology", partial(check_topology, devices))
    yield from examined("presets", partial(check_presets, examination, len(devices)))
    for name, compute in COMPUTING.items() if examination.computes else ():
        yield from examined(name, partial(compute, devices))


def check_presets(examination: Examination, devices: int) -> Check:
    """Finds the presets that fit these devices with the smallest model."""
    model = choose_model("nano", (f"batch_size={4 * devices}",))
    listing = list_presets(model.config("doctor", devices=examination.devices))
    others = [preset.name for preset in listing.presets if not preset.fits]
    fitting = len(listing.presets) - len(others)
    found = f"{fitting} of {len(listing.presets)} fit {formatting.counted(devices, 'device')}"
    found += f", all but {formatting.listed(others, 4)}: `shardtui presets` says why" if others else ""
    numbers = {"presets that fit": float(fitting)}
    if listing.problems:
        return Check(verdict="warning", found=f"{found}; not read: {'; '.join(listing.problems)}", numbers=numbers)
    return Check(found=found, numbers=numbers)
