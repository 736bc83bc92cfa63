"""The rates of a run's devices: from all steps that were measured on such devices, in this run and in others."""

import logging
from collections.abc import Sequence

import jax

from ..base.versions import versions
from ..profiling.known_steps import Devices, devices_of, load, store
from ..wire.account import Account
from ..wire.rates import KindOfWork, Rates

_logger = logging.getLogger("shardtui")


def known_rates(devices: Sequence[jax.Device]) -> Rates | None:
    """Returns the rates of these devices; None if no step was measured on such."""
    return load(_described(devices)).rates


def learned_rates(devices: Sequence[jax.Device], work: Sequence[KindOfWork], account: Account) -> Rates | None:
    """Keeps the account of another step, and returns the rates that follow. `work`: of its program."""
    known = load(_described(devices)).including(work, account)
    try:
        store(known)
    except OSError:
        _logger.warning("cannot keep what was measured for predictions", exc_info=True)
    return known.rates


def _described(devices: Sequence[jax.Device]) -> Devices:
    return devices_of(devices[0].device_kind, len(devices), devices[0].platform, versions())
