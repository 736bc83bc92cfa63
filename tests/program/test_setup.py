"""The devices of a run of several processes."""

import sys
from subprocess import run

PROGRAM = """
from types import SimpleNamespace
from shardtui.engine.base.user_error import UserError
from shardtui.engine.program import setup
from tests.conftest import tiny_config

for platform, devices in (("tpu", None), ("tpu", 24), ("tpu", 16), ("cpu", None)):
    setup.find_devices = lambda count: [SimpleNamespace(id=number, platform=platform) for number in range(count or 48)]
    try:
        print(len(setup.devices_and_task(tiny_config(devices=devices), processes=12)[0]))
    except UserError as error:
        print(error)
"""


def test_only_simulated_devices_and_those_asked_for_are_split_evenly() -> None:
    """In a process of its own, since devices are set up before jax looks for them."""
    found = run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    refused = "--devices {} cannot be split evenly among 12 processes: give a multiple of 12"
    assert found.stdout.splitlines() == ["48", "24", refused.format(16), refused.format(8)]
