"""Connects a process to the others of its run with `jax.distributed`."""

import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
from jax._src.distributed import global_state  # jax has no public name for this state
from jaxlib import _jax  # type: ignore[attr-defined] # nor for the address of CPU collectives

from ..base.advice import first_line
from ..base.user_error import UserError
from ..spec.config import Membership, RunConfig
from ..wire.run_directory import RunDirectory
from .address import LOOPBACK_ADDRESS, is_local
from .outcomes import NotMet
from .seal import JOIN_SECONDS, Seal, given_secret, require_secret, shared_secret

HEARTBEAT_SECONDS = 10
"""A process without a heartbeat for this long is lost."""


def process_index() -> int:
    return global_state.process_id


def connect(membership: Membership, config: RunConfig) -> bool:
    """Connects to the other processes. Returns False if no membership was requested and jax finds no cluster. Raises
    NotMet if they cannot connect within `JOIN_SECONDS`, UserError if other hosts could and there is no secret."""
    if membership.coordinator is not None:
        require_secret(membership.coordinator, membership, config)
    _refuse_taken_port(membership)
    if is_local(membership.coordinator):
        _listen_on_loopback()
    jax.config.update("jax_enable_recoverability", True)  # process 0 survives the death of another, and reports it
    jax.config.update("jax_enable_preemption_service", False)  # it would replace our SIGTERM handler
    joining = ThreadPoolExecutor(max_workers=1, thread_name_prefix="joining").submit(
        jax.distributed.initialize,
        membership.coordinator,
        membership.processes,
        membership.process,
        initialization_timeout=2 * JOIN_SECONDS,  # after which jax aborts the process
        coordinator_bind_address=membership.coordinator if is_local(membership.coordinator) else None,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    try:
        joining.result(timeout=JOIN_SECONDS)
    except TimeoutError as error:
        raise NotMet(
            f"--coordinator {membership.coordinator or 'found by jax'}: {membership.processes or 'the'} processes did "
            f"not meet there within {JOIN_SECONDS} s: start `shardtui engine` on every host with the same "
            "--coordinator and --num-processes, different --process-id from 0, and check that the hosts can reach "
            "this port"
        ) from error
    except (RuntimeError, ValueError) as error:  # jax's error of the service is a RuntimeError
        if membership == Membership() and isinstance(error, ValueError):
            return False
        if membership.coordinator is None:
            why = f"the cluster that jax detected: {error}: give --coordinator, --num-processes and --process-id"
        else:
            why = f"--coordinator {membership.coordinator}: {first_line(str(error))}"
        raise NotMet(why) from error
    if membership.coordinator is None:
        require_secret(global_state.coordinator_address, membership, config)
    return True


def seal(membership: Membership, directory: RunDirectory, config: RunConfig) -> Seal:
    """Returns the run's seal. Call it once process 0 has created the run directory. Raises UserError."""
    given = given_secret(membership)
    if given is None:
        given = shared_secret(directory, config, global_state.coordinator_address, is_first=process_index() == 0)
    return Seal(given)


def _listen_on_loopback() -> None:
    """Makes CPU collectives listen on loopback: other hosts may reach the address that jax uses by default."""
    _jax.make_gloo_tcp_collectives = partial(_jax.make_gloo_tcp_collectives, hostname=LOOPBACK_ADDRESS)


def _refuse_taken_port(membership: Membership) -> None:
    """Raises UserError if the port is taken; the coordination service would end the process instead."""
    if membership.process != 0 or membership.coordinator is None or membership.coordinator.startswith("unix:"):
        return
    host, _, port = membership.coordinator.rpartition(":")
    try:
        with socket.create_server(("", int(port))):
            pass
    except OSError as error:
        raise UserError(
            f"--coordinator {membership.coordinator}: port {port} of this machine cannot be used: {error.strerror}: "
            f"choose another port, or end the program that listens on {host}:{port}"
        ) from error
