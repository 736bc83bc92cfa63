"""How a process finds the others of its run, by `jax.distributed`."""

import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
from jax._src.distributed import global_state  # no public name says what jax has joined
from jaxlib import _jax  # type: ignore[attr-defined] # nor where CPU collectives listen

from ..base.advice import in_a_line
from ..base.invalid import Invalid
from ..spec.config import Membership, Restart, RunConfig
from ..wire.run_directory import RunDirectory
from .seal import JOIN_SECONDS, Seal, given_secret, is_local, secret_problem, shared_secret

HEARTBEAT_SECONDS = 10
"""A process that gives no sign of life for so long is lost."""
HERE = "127.0.0.1"


def number() -> int:
    """Of this process, once it is connected."""
    return global_state.process_id


def connect(membership: Membership, config: RunConfig) -> bool:
    """Joins the other processes; False where nothing was asked for and there are none. Raises Invalid where they cannot
    be found, or do not fit, within `JOIN_SECONDS`, and where others could reach them and they have no secret."""
    if membership.coordinator is not None:
        _refuse_open(membership, config)
    _refuse_taken_port(membership)
    if is_local(membership.coordinator):
        _keep_collectives_here()
    jax.config.update("jax_enable_recoverability", True)  # process 0 lives on where another one dies, and says so
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    joining = ThreadPoolExecutor(max_workers=1, thread_name_prefix="joining").submit(
        jax.distributed.initialize,
        membership.coordinator,
        membership.processes,
        membership.process,
        initialization_timeout=2 * JOIN_SECONDS,  # where that is over, the process is aborted
        coordinator_bind_address=membership.coordinator if is_local(membership.coordinator) else None,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    try:
        joining.result(timeout=JOIN_SECONDS)
    except TimeoutError as error:
        raise Invalid(_too_few(membership)) from error
    except (RuntimeError, ValueError) as error:  # jax's own error of the service is a RuntimeError
        if membership == Membership() and isinstance(error, ValueError):
            return False
        raise Invalid(_why_alone(membership, error)) from error
    _refuse_open(membership, config)
    return True


def join(membership: Membership, directory: RunDirectory, restart: Restart) -> Seal:
    """Connects to the other processes of a run on this machine, and gives its seal. Raises Invalid."""
    config = restart.config or directory.config
    connect(membership, config)
    return seal(membership, directory, config)


def seal(membership: Membership, directory: RunDirectory, config: RunConfig) -> Seal:
    """Of the run, once this process is connected and the first one has made its directory. Raises Invalid."""
    given = given_secret(membership)
    if given is None:
        given = shared_secret(directory, config, global_state.coordinator_address, is_first=number() == 0)
    return Seal(given)


def _refuse_open(membership: Membership, config: RunConfig) -> None:
    """Raises Invalid where other hosts reach the coordinator and the run has no secret."""
    coordinator = membership.coordinator or global_state.coordinator_address
    if problem := secret_problem(coordinator, membership, config):
        raise Invalid(problem)


def _keep_collectives_here() -> None:
    """jax has CPU processes listen for each other at the address of the host's name, which other hosts may reach."""
    _jax.make_gloo_tcp_collectives = partial(_jax.make_gloo_tcp_collectives, hostname=HERE)


def _refuse_taken_port(membership: Membership) -> None:
    """The service would end the process. Raises Invalid."""
    if membership.process != 0 or membership.coordinator is None or membership.coordinator.startswith("unix:"):
        return
    host, _, port = membership.coordinator.rpartition(":")
    try:
        with socket.create_server(("", int(port))):
            pass
    except OSError as error:
        raise Invalid(
            f"--coordinator {membership.coordinator}: port {port} of this machine cannot be served: {error.strerror}: "
            f"choose another port, or end what serves {host}:{port}"
        ) from error


def _too_few(membership: Membership) -> str:
    return (
        f"--coordinator {membership.coordinator or 'found by jax'}: {membership.processes or 'the'} processes did not "
        f"meet there within {JOIN_SECONDS} s: start `shardtui engine` on every host with the same --coordinator and "
        "--num-processes, --process-id from 0 up, and see that the hosts reach this port"
    )


def _why_alone(membership: Membership, error: Exception) -> str:
    if membership.coordinator is None:
        return f"the cluster that jax found: {error}: give --coordinator, --num-processes and --process-id"
    return f"--coordinator {membership.coordinator}: {in_a_line(str(error))}"
