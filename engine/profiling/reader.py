"""Reads a trace: the planes of devices, of the host and of the programs."""

import re
from pathlib import Path

from .gpu_plane import read_gpu
from .host_plane import read_host
from .program_plane import read_programs
from .tpu_plane import read_tpu
from .trace import ProgramTrace, Trace
from .xspace import read_planes

DEVICE = re.compile(r"/device:(TPU|GPU):(\d+)$")
OTHER_PLANES = re.compile(r"/host:|/device:CUSTOM|#")
"""Planes without operations of devices."""


def read_trace(path: Path) -> Trace:
    """Reads an `.xplane.pb`. Raises Invalid if it cannot be read."""
    trace, numbered = Trace(), set[int]()
    for plane in read_planes(path):
        device = DEVICE.match(plane.name)
        if plane.name == "/host:metadata":
            read_programs(plane, trace)
        elif plane.name == "/host:CPU":
            read_host(plane, trace)
        elif plane.name == "Task Environment":
            start = plane.stats(plane.message).get("profile_start_time")
            trace.epoch = start if isinstance(start, int) else None
        elif device:
            (read_tpu if device[1] == "TPU" else read_gpu)(plane, int(device[2]), trace)
        elif not OTHER_PLANES.match(plane.name):
            trace.skipped.append(plane.name)
        if device:
            numbered |= {int(device[2])}
    for program in trace.programs.values():
        _align(program, numbered)
    return trace


def _align(program: ProgramTrace, devices: set[int]) -> None:
    """Numbers runs that each device counts by itself alike: those that begin at about the same time are one run."""
    begins = {
        device: sorted({each.run: each.begin for each in sorted(program.devices[device], reverse=True)}.values())
        for device in devices & program.devices.keys()
    }
    earliest = min(begins.values(), default=[])
    for device, own in begins.items():
        shift = min(range(len(earliest)), key=lambda at, first=own[0]: abs(earliest[at] - first))
        least = min(each.run for each in program.devices[device])
        program.devices[device] = [each._replace(run=each.run - least + shift) for each in program.devices[device]]
