"""A run on another host. `ssh` is a script here that runs the command in a shell, as sshd does; tests/long/remote.py
has a real one."""

import asyncio
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.commands import Pause, Stop
from shardtui.engine.wire.events import AnyEvent, Disconnected, EngineStopped, Reconnected, StepsDone
from shardtui.engine.wire.framing import VERSION
from shardtui.tui.cli.run import attach_command
from shardtui.tui.client.engine_client import EngineClient
from shardtui.tui.client.remote_client import RemoteClient
from shardtui.tui.state.availability import why_not
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import Phase, RunState
from shardtui.tui.widgets.status_bar import status_line

from ..conftest import SHARDTUI, paced_config
from ..recorded import recorded_run, steps, switched
from .test_app import until
from .test_engine_client import SECONDS
from .test_engine_client import until as until_event

STOPPED = EngineStopped(step=1300, reason="stopped")
PROGRAM = f"{sys.executable} -m shardtui.tui"


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the place of ssh, which first prints what is in this file. The host `gone` is never there,
    and none is while there is a file of that name."""
    script, banner = tmp_path / "bin" / "ssh", tmp_path / "banner"
    script.parent.mkdir()
    banner.write_text("")
    script.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n'
        f'if [ "$2" = gone ] || [ -e {tmp_path}/gone ]; then echo "ssh: no route to host" >&2; exit 255; fi\n'
        f'shift 2\ncat {banner}\nexec sh -c "$*"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return banner


async def connected(run: str, program: str = PROGRAM) -> RemoteClient:
    client = RemoteClient("tpu-vm", run, program)
    await client.connect()
    return client


async def all_events(stream: AsyncIterator[list[AnyEvent]]) -> list[AnyEvent]:
    async with asyncio.timeout(SECONDS):
        return [event async for events in stream for event in events]


async def test_an_ended_run_is_read_as_on_its_host_below_what_a_shell_prints(
    home: object, ssh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh.write_text("welcome \x1b[2J to tpu-vm\n")
    directory = recorded_run("old-1", steps(1300, 1.2), switched("dp", "fsdp"), STOPPED)
    client = await connected("old-1")
    here, there = await all_events(EngineClient(directory).events()), await all_events(client.events())
    await client.close()
    assert there == here
    assert "welcome \\x1b[2J to tpu-vm" in capsys.readouterr().err
    assert (client.directory.name, client.is_behind) == ("tpu-vm:old-1", False)


async def test_a_lost_connection_is_a_state_after_which_only_what_was_missed_follows(home: object, ssh: Path) -> None:
    directory = run_directory.create(paced_config())
    own = EngineClient(directory)
    own.start_engine()
    watching = asyncio.ensure_future(all_events(own.events()))
    await until(lambda: directory.is_alive, "the engine")
    client = await connected("")
    assert client.directory.name == f"tpu-vm:{directory.name}", "the newest that trains"
    stream, state = aiter(client.events()), RunState(host="tpu-vm")
    seen: list[AnyEvent] = []

    async def follow(kind: type[AnyEvent]) -> AnyEvent:
        async with asyncio.timeout(SECONDS):
            async for events in stream:
                seen.extend(events)
                apply_all(state, events)
                if isinstance(last := next((each for each in events if isinstance(each, kind)), None), kind):
                    return last
        raise AssertionError(f"it ended without {kind.__name__}")

    await follow(StepsDone)
    gone = ssh.with_name("gone")
    gone.touch()
    os.kill(client._ssh.pid, signal.SIGKILL)  # type: ignore[union-attr]
    lost = await follow(Disconnected)
    assert (lost.reason, lost.reconnects) == ("tpu-vm: ssh has ended with exit code -9", True)  # type: ignore[attr-defined]
    assert state.phase is Phase.DISCONNECTED
    assert why_not("pause", state) == "no connection to tpu-vm: connecting again"
    assert "reconnecting 12 s" in status_line(state, 80, lost.time + 12).plain
    still = await follow(Disconnected)
    assert (still.reason, still.time) == ("tpu-vm: ssh: no route to host", lost.time)  # type: ignore[attr-defined]
    gone.unlink()
    await follow(Reconnected)
    assert (state.phase, state.problems) == (Phase.TRAINING, [])
    await client.send(Pause())
    await follow(wire.Paused)
    assert why_not("restart", state).startswith("the run is on tpu-vm: `shardtui --resume ")
    await client.send(Stop())
    await follow(EngineStopped)
    assert [events async for events in stream] == []
    await client.close()
    kept = [event for event in seen if not isinstance(event, Disconnected | Reconnected)]
    assert [event for event in kept if event.seq] == [event for event in await watching if event.seq]
    with pytest.raises(UserError, match="start its engine on tpu-vm"):
        client.start_engine()


@pytest.mark.core
async def test_a_run_that_is_resumed_there_is_followed(home: object, ssh: Path) -> None:
    directory = recorded_run("old-1", steps(3, 1.2), STOPPED)
    client = await connected("old-1")
    await all_events(client.events())
    resumed = asyncio.ensure_future(client.resumed_elsewhere(7))
    engine = EngineClient(directory)
    engine.start_engine()
    async with asyncio.timeout(SECONDS):
        await resumed
    stream = aiter(client.events())
    await until_event(wire.EngineStarted, stream)
    await until_event(StepsDone, stream)
    await client.send(Stop())
    await until_event(EngineStopped, stream)
    await client.close()
    assert await engine.wait_for_exit()


@pytest.mark.parametrize(
    ("run", "program", "problem"),
    [
        ("old-2", PROGRAM, r"tpu-vm: run old-2: no such run in .*: did you mean old-1\?"),
        ("", PROGRAM, "tpu-vm: no run is training"),
        ("old-1", "no-such-program", "tpu-vm: no-such-program: not found there: install it, or name it with --command"),
        ("old-1", "echo no route to host >&2; exit 255;", "tpu-vm: no route to host"),
        ("old-1", "exit 255;", "tpu-vm: ssh has ended with exit code 255"),
        ("old-1", f"printf 'shardtui-stream {VERSION} \\033[2J'; exit 3;", "tpu-vm: ssh has ended with exit code 3"),
        ("old-1", "echo shardtui-stream 999 old-1;", f"this viewer speaks protocol {VERSION}, the engine .* 999: up"),
    ],
)
async def test_what_keeps_it_from_connecting_is_said(
    home: object, ssh: Path, run: str, program: str, problem: str
) -> None:
    recorded_run("old-1", STOPPED)
    with pytest.raises(UserError, match=problem):
        await connected(run, program)


@pytest.mark.parametrize("name", [":nano-1", "-oProxyCommand=x:nano-1", "vm:../x"])
def test_a_name_that_ssh_would_take_for_something_else_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtui.tui.cli.run.require_terminal", lambda _: None)
    with pytest.raises(UserError, match=r"not a host|a name has 1 to 64"):
        attach_command(Namespace(run=name, program="shardtui"))


async def test_stream_needs_pipes_and_attach_needs_ssh(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    found = subprocess.run([*SHARDTUI, "stream"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "stdin or stdout is not a pipe, as ssh makes them: `shardtui attach` shows a run" in found.stderr
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="ssh: no such command: install OpenSSH's client"):
        await connected("old-1")
