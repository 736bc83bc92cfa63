"""The curves of a run, read back: as CSV, by TensorBoard's own reader, and from what an offline wandb has kept."""

import asyncio
import csv
import json
import math
import os
import resource
import shutil
import struct
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.config import Destination, DestinationKind
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import lock, run_directory
from shardtui.engine.wire.descriptions import DeviceInfo
from shardtui.engine.wire.event_log import LogReader
from shardtui.engine.wire.events import Event, MetricsFailed
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.engine.wire.step_breakdown import PartTime
from shardtui.tui.cli.main import _parser
from shardtui.tui.cli.run_config import new_config, resumed
from shardtui.tui.client.metrics_process import MetricsProcess
from shardtui.tui.metrics.follower import Feed, follow
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import RunState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ..command import answered
from ..conftest import LEAST, READY, SHARDTUI, tiny_config
from ..processes import awaited
from ..recorded import record, recorded_run, restored, started, steps
from .test_cli import run, train

Curves = dict[str, list[tuple[int, float]]]
NOON = 1.75e9
SEQ = 10**6
"""The number of all events that are added later: nobody asks for them by number."""
STOPPED = wire.EngineStopped(step=4, reason="stopped")


def trained(step: int = 0) -> wire.TrainingStarted:
    return wire.TrainingStarted(preset="dp", step=step)


def evaluated(step: int, loss: float) -> wire.Evaluated:
    return wire.Evaluated(step=step, loss=loss, batches=1, seconds=0.1)


def recorded(*events: Event) -> RunDirectory:
    """Makes a run that trains from step 0 on, of these events a second apart."""
    directory = recorded_run()
    record(directory, *timed(started(), trained(), *events))
    return directory


def of_one_step(*more: Event) -> RunDirectory:
    return recorded(steps(1, 3.0), *more)


def timed(*events: Event, after: float = 0.0) -> list[Event]:
    return [msgspec.structs.replace(event, seq=SEQ, time=NOON + after + at) for at, event in enumerate(events)]


def append(directory: RunDirectory, *events: Event) -> None:
    with directory.events.open("ab") as file:
        file.write(b"".join(encode_json(event) + b"\n" for event in timed(*events, after=1000.0)))


def in_csv(path: Path) -> Curves:
    found: Curves = {}
    with path.open() as lines:
        for row in csv.DictReader(lines):
            step = int(row.pop("step"))
            for name, value in row.items():
                if value and name not in ("run", "time"):
                    found.setdefault(name, []).append((step, float(value)))
    return found


def in_tensorboard(directory: Path) -> Curves:
    reader = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    reader.Reload()
    return scalars_of(reader)


def scalars_of(reader: EventAccumulator) -> Curves:
    found = {tag: [(each.step, each.value) for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    return {tag: curve for tag, curve in found.items() if curve}  # it keeps the name of a curve that was taken back


def single(curves: Curves) -> Curves:
    """Returns the curves as TensorBoard has them, in single precision."""
    return {name: [(step, float(np.float32(value))) for step, value in curve] for name, curve in curves.items()}


def feed(directory: RunDirectory, kind: DestinationKind, place: Path | str) -> Feed:
    return Feed(Destination(kind=kind, place=str(place)), directory)


def exported(directory: RunDirectory, home: Path) -> Curves:
    """Writes a run in both ways. Returns its curves, which are the same."""
    result = answered("metrics", directory.name, f"--csv={home / 'a.csv'}", f"--tensorboard={home / 'logs'}")
    assert (result.returncode, result.stderr) == (0, "")
    found = in_csv(home / "a.csv")
    assert repr(in_tensorboard(home / "logs" / directory.name)) == repr(single(found))  # NaN equals no NaN
    return found


def losses(curves: Curves) -> list[tuple[int, float]]:
    return curves["train/loss"]


def test_every_scalar_is_a_curve(home: Path) -> None:
    part = PartTime(name="all-reduce over data: exposed", seconds=0.01, share=0.1)
    directory = recorded(
        msgspec.structs.replace(READY, devices=[DeviceInfo(0, "tpu", "TPU v4", 0)], flops_per_step=2.75e12),
        steps(2, 5.25, 5.125, seconds=0.25, metrics={"grad_norm": [0.1, None], "accuracy/top,5": [0.5, 0.25]}),
        wire.MemoryMeasured(source="allocator", bytes_in_use=5, peak_bytes=7, limit_bytes=None, bytes_by_device={}),
        evaluated(2, 5.0625),
        wire.PartsMeasured(step=2, preset="dp", step_seconds=0.1, parts=[part], pause_seconds=0.1),
        STOPPED,
    )
    assert exported(directory, home) == {
        "train/loss": [(1, 5.25), (2, 5.125)],
        "train/grad_norm": [(1, 0.1)],
        "train/accuracy/top,5": [(1, 0.5), (2, 0.25)],
        "speed/step_seconds": [(1, 0.25), (2, 0.25)],
        "speed/tokens_per_second": [(1, 512.0), (2, 512.0)],
        "speed/mfu": [(1, 0.04), (2, 0.04)],
        "speed/input_wait_share": [(2, 0.02)],
        "memory/bytes_in_use": [(2, 5.0)],
        "memory/peak_bytes": [(2, 7.0)],
        "eval/loss": [(2, 5.0625)],
        "parts/all-reduce over data: exposed": [(2, 0.01)],
    }
    first, last = csv.DictReader((home / "a.csv").read_text().splitlines())
    assert (first["run"], float(first["time"]), float(last["time"])) == ("tiny-1", NOON + 2.75, NOON + 3)
    result = answered("metrics", "tiny-1", f"--csv={home / 'a.csv'}")
    assert result.stdout == f"{home / 'a.csv'}: 11 curves up to step 2\n"


AGAIN = [
    *(steps(3, 9.0, 8.0, 7.0), evaluated(2, 1.0), STOPPED),
    *(started(), restored(3), trained(3), steps(6, 6.0, 5.0, 4.0), evaluated(6, 2.0)),
    *(started(), restored(4), trained(4), steps(5, 3.0), steps(6, 2.0), evaluated(6, 3.0)),
    *(restored(1), steps(2, 1.5), STOPPED),
]
"""It resumes where it was, crashes, goes on from an earlier checkpoint, and the user goes back further."""


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([steps(2, None, 1.0, nonfinite=["losses"]), steps(4, None, 2.0)], [(1, math.nan), (2, 1.0), (4, 2.0)]),
        (AGAIN, [(1, 9.0), (2, 1.5)]),
        ([steps(3, 9.0, 8.0, 7.0), evaluated(3, 1.0), steps(3, 6.0, 5.0)], [(1, 9.0), (2, 6.0), (3, 5.0)]),
    ],
    ids=["not finite, and none", "back and back again", "without a line of the restore"],
)
def test_each_step_has_its_last_value(home: Path, events: list[Event], expected: list[tuple[int, float]]) -> None:
    found = exported(recorded(*events, STOPPED), home)
    assert repr(losses(found)) == repr(expected)
    assert "eval/loss" not in found


def test_the_last_two_files_for_tensorboard_are_kept(home: Path) -> None:
    directory = of_one_step(STOPPED)
    exported(directory, home)
    (file,) = (home / "logs" / "tiny-1").iterdir()
    append(directory, started(), trained(), steps(1, 0.5))
    for is_kept in (True, False):
        assert losses(exported(directory, home)) == [(1, 0.5)]
        assert file.exists() == is_kept


def test_a_running_tensorboard_and_a_csv_follow_rewinds(home: Path) -> None:
    directory = recorded(steps(3, 9.0, 8.0, 7.0), evaluated(3, 1.0))
    file, logs = feed(directory, "csv", home / "a.csv"), feed(directory, "tensorboard", home / "logs")

    def carried() -> Curves:
        file.carry()
        logs.carry()
        reader.Reload()
        assert scalars_of(reader) == single(in_csv(home / "a.csv")) == in_tensorboard(home / "logs" / "tiny-1")
        return in_csv(home / "a.csv")

    reader = EventAccumulator(str(home / "logs" / "tiny-1"))
    assert losses(carried()) == [(1, 9.0), (2, 8.0), (3, 7.0)]
    append(directory, restored(1))
    found = carried()
    assert (losses(found), "eval/loss" in found) == ([(1, 9.0)], False)
    append(directory, steps(2, 4.0), evaluated(2, 0.5), steps(3, 3.0, metrics={"new": [1.0]}))
    found = carried()
    assert (found["eval/loss"], found["train/new"]) == ([(2, 0.5)], [(3, 1.0)])
    append(directory, trained(), steps(1, 2.5))
    assert losses(carried()) == [(1, 2.5)]
    later = feed(directory, "tensorboard", home / "logs")
    later.carry()
    append(directory, steps(2, 1.25))
    later.carry()
    reader.Reload()
    assert losses(scalars_of(reader)) == losses(in_tensorboard(home / "logs" / "tiny-1")) == [(1, 2.5), (2, 1.25)]
    assert [path.name for path in home.iterdir() if path.suffix == ".new"] == []


@st.composite
def histories(draw: st.DrawFn) -> list[list[Event]]:
    """Events of a run that goes back now and then, cut where they are read."""
    step, value, measured = 0, 100.0, 0
    parts: list[list[Event]] = [[]]
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("steps", "steps", "evaluated", "restored", "started", "cut")))
        if kind == "cut":
            parts.append([])
        elif kind == "evaluated" and step > measured:
            measured = step
            parts[-1].append(evaluated(step, value := value - 1))
        elif kind in ("restored", "started"):
            step = draw(st.integers(0, step))
            measured = min(measured, step)
            parts[-1] += [started(), restored(step), trained(step)] if kind == "started" else [restored(step)]
        elif kind == "steps":
            values = [value := value - 1 for _ in range(draw(st.integers(1, 3)))]
            step += len(values)
            parts[-1].append(steps(step, *values, metrics={"norm": values} if draw(st.booleans()) else {}))
    return parts


@given(parts=histories())
def test_what_is_written_is_what_the_views_show(home: Path, parts: list[list[Event]]) -> None:
    shutil.rmtree(home)
    directory = recorded()
    feeds = [feed(directory, "csv", home / "a.csv"), feed(directory, "tensorboard", home / "logs")]
    for part in parts:
        append(directory, *part)
        for each in feeds:
            each.carry()
    for each in feeds:
        each.close()
    state = RunState()
    for events in LogReader(directory.events).read():
        apply_all(state, events)
    shown: Curves = {
        "train/loss": list(enumerate(state.losses, 1)),
        "train/norm": list(enumerate(state.curves.get("norm", []), 1)),
        "eval/loss": [(step, state.evaluations.mean(step - 1, step) or math.nan) for step in range(1, state.step + 1)],
    }
    expected = {name: [(step, value) for step, value in curve if value == value] for name, curve in shown.items()}
    if (home / "a.csv").exists():
        for found in (in_csv(home / "a.csv"), in_tensorboard(home / "logs" / "tiny-1")):
            assert {name: found.get(name, []) for name in expected} == expected
    else:
        assert not any(expected.values())


def test_it_follows_until_the_run_and_its_supervisor_have_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtui.tui.metrics.follower.POLL_SECONDS", 0.0)
    directory = of_one_step()
    supervisor = lock.take(directory.supervisor_lock)
    looks = [[steps(2, 2.0)], [started(), restored(1), trained(1), steps(2, 1.5)], [STOPPED]]

    def is_live() -> bool:
        if looks:
            append(directory, *looks.pop(0))
        else:
            supervisor.close()
        return directory.is_supervised

    (done,) = follow([feed(directory, "csv", home / "a.csv")], is_live)
    assert losses(in_csv(home / "a.csv")) == [(1, 3.0), (2, 1.5)]
    assert done.summary == f"{home / 'a.csv'}: 3 curves up to step 2"


def test_ctrl_c_ends_it_with_what_it_has_read(home: Path) -> None:
    to = f"--csv={home / 'a.csv'}"
    with of_one_step().hold():
        command = [*SHARDTUI, "metrics", "tiny-1", to, "--follow"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            awaited((home / "a.csv").exists, "the file")
            process.send_signal(2)
            assert (process.communicate(timeout=60)[1], process.returncode) == ("", 130)
        assert losses(in_csv(home / "a.csv")) == [(1, 3.0)]
        result = answered("metrics", "tiny-1", to)
    said = "run tiny-1 goes on: with --follow, its next steps are written, too\n"
    assert (result.returncode, result.stderr) == (0, said)


def test_no_file_of_the_user_is_lost(home: Path) -> None:
    of_one_step(STOPPED)
    path = home / "a.csv"
    for content, says in (
        ("mine\n", "this file exists, and is not a file of curves: remove it, or choose another file"),
        ("run,step,time,train/loss\nbig,1,1.9e9,3.0\n", "has the curves of another run, big:"),
        ("run,step,time,train/loss\ntiny-1,1,1.7e9,3.0\n", "has the curves of another run, tiny-1:"),
    ):
        path.write_text(content)
        result = answered("metrics", "tiny-1", f"--csv={path}")
        assert result.returncode == 2
        assert says in result.stderr
        assert path.read_text() == content
    other = home / "logs" / "tiny-1" / "events.out.tfevents.1.host"
    other.parent.mkdir(parents=True)
    other.touch()
    result = answered("metrics", "tiny-1", f"--tensorboard={home / 'logs'}", f"--csv={path}")
    assert result.returncode == 2
    assert f"{other.parent}: has event files of another run, such as {other.name}: choose" in result.stderr
    assert path.name in result.stderr, "every problem is said"
    assert path.read_text() == content


def test_a_copy_of_an_event_file_stays(home: Path) -> None:
    of_one_step(STOPPED)
    export = ("metrics", "tiny-1", f"--tensorboard={home / 'logs'}")
    assert answered(*export).returncode == 0
    (file,) = (home / "logs" / "tiny-1").iterdir()
    copy = file.rename(file.with_name(f"{file.name}.old"))
    assert answered(*export).returncode == 0
    assert copy.exists() and file.exists()


def test_a_link_to_the_file_stays_one(home: Path) -> None:
    of_one_step(STOPPED)
    (home / "elsewhere").mkdir()
    (home / "a.csv").symlink_to(home / "elsewhere" / "b.csv")
    for _ in range(2):
        assert answered("metrics", "tiny-1", f"--csv={home / 'a.csv'}").returncode == 0
    assert (home / "a.csv").is_symlink()
    assert losses(in_csv(home / "elsewhere" / "b.csv")) == [(1, 3.0)]


@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_a_file_that_is_removed_or_replaced_is_not_written_any_more(home: Path, kind: DestinationKind) -> None:
    """As by another process for the same file, or by the user: what it would write nobody could read."""
    directory = of_one_step()
    place = home / "place"
    first, second = feed(directory, kind, place), feed(directory, kind, place)
    first.carry()
    second.carry()
    if kind == "tensorboard":
        shutil.rmtree(place)
    append(directory, steps(2, 2.0))
    with pytest.raises(UserError, match="cannot be written: it was removed or replaced meanwhile"):
        first.carry()
    if kind == "csv":
        second.carry()
        assert losses(in_csv(place)) == [(1, 3.0), (2, 2.0)]


def test_a_full_disk_ends_one_destination_and_keeps_what_was_there(home: Path) -> None:
    """A limit on the size of files makes writes fail as a full disk does."""
    directory = of_one_step(STOPPED)
    path = home / "a.csv"
    assert answered("metrics", "tiny-1", f"--csv={path}").returncode == 0
    before, limits = path.read_text(), resource.getrlimit(resource.RLIMIT_FSIZE)
    append(directory, restored(1), trained(1), *(steps(step, 1.0) for step in range(2, 40)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        result = answered("metrics", "tiny-1", f"--csv={path}", f"--tensorboard={home / 'logs'}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"shardtui: {path}: cannot be written: File too large",
        f"shardtui: {home / 'logs' / 'tiny-1'}: cannot be written: File too large",
    ]
    assert path.read_text() == before
    assert sorted(entry.name for entry in home.iterdir()) == ["a.csv", "logs", "state"]
    assert [*(home / "logs" / "tiny-1").iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["other", "--csv=a.csv"], "run other: no such run in "),
        (["tiny-1"], "metrics: no destination: add --csv FILE, --tensorboard DIR or --wandb PROJECT"),
        (["tiny-1", "--csv=none/a.csv"], "none/a.csv: there is no such directory: create "),
        (["tiny-1", "--csv=/dev/full"], "/dev/full: cannot be read: a character device, not a regular file: choose"),
        (["tiny-1", "--csv=/proc/a.csv"], "/proc/a.csv: cannot be written: No such file or directory"),
        (["tiny-1", "--tensorboard=/proc/a"], "/proc/a/tiny-1: cannot be written: No such file or directory"),
        (["tiny-1", "--tensorboard=gs://a/b"], "tensorboard:gs://a/b: curves are written to a path on this machine:"),
        (["empty-1", "--csv=a.csv"], "run empty-1: it has recorded no step yet: nothing was written"),
    ],
)
def test_what_cannot_be_written_is_said(home: Path, arguments: list[str], problem: str) -> None:
    of_one_step(STOPPED)
    run_directory.create(tiny_config(run="empty-1"))
    result = answered("metrics", *arguments)
    assert (result.returncode, result.stdout) == (1 if "cannot be written" in problem else 2, "")
    assert problem in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_package_is_named_with_its_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_step(STOPPED)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for kind in ("tensorboard", "wandb"):
        result = answered("metrics", "tiny-1", f"--{kind}=logs")
        assert result.returncode == 2
        assert f"needs the package {kind}: pip install 'shardtui[{kind}]'" in result.stderr


def test_a_run_keeps_its_destinations_and_a_resumed_one_may_have_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(*arguments: str) -> Namespace:
        return _parser("train").parse_args(["train", *arguments])

    monkeypatch.chdir(home)
    config = new_config(parsed("--steps=1", "--to=csv:a.csv", "--to=tensorboard:logs"))
    assert [each.words for each in config.metrics_to] == [f"csv:{home}/a.csv", f"tensorboard:{home}/logs"]
    directory = recorded_run("tiny-1")
    directory.write_config(tiny_config(metrics_to=config.metrics_to))

    def of_resumed(*arguments: str) -> tuple[Destination, ...]:
        found = resumed(directory, parsed("--resume=tiny-1", *arguments)).config
        assert found
        return found.metrics_to

    assert of_resumed() == config.metrics_to
    assert of_resumed("--to=none") == ()
    assert [each.words for each in of_resumed(f"--to=csv:{home}/b.csv")] == [f"csv:{home}/b.csv"]
    (home / "a.csv").write_text("mine")
    with pytest.raises(UserError, match="is not a file of curves"):
        of_resumed()
    for to, says in (
        (["--to=csv:a", "--to=csv:b"], f"--to csv:{home}/b: another one of this kind"),
        (["--to=csv"], "'csv' is not csv:FILE, tensorboard:DIR or wandb:PROJECT"),
    ):
        result = answered("train", "--steps=1", *to)
        assert (result.returncode, says in result.stderr) == (2, True)


def test_the_process_waits_for_an_engine_that_begins_and_ends_with_it(home: Path) -> None:
    directory = of_one_step(STOPPED)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        metrics = MetricsProcess(directory, Destination(kind="csv", place=str(home / "a.csv")), process.pid)
        awaited((home / "a.csv").exists, "the file")
        append(directory, started(), trained(1), steps(2, 2.0))
        awaited(lambda: len(losses(in_csv(home / "a.csv"))) == 2, "the second step")
        assert metrics.new_failure() is None
        assert "still writes the curves" in asyncio.run(metrics.wait(lambda: True))
    assert asyncio.run(metrics.wait(lambda: False)) == ""
    assert metrics.new_failure() is None
    assert directory.metrics_log("csv").read_text() == f"{home / 'a.csv'}: 3 curves up to step 2\n"


@pytest.mark.parametrize(
    ("kind", "place", "problem"),
    [
        ("tensorboard", "/proc/a", "/proc/a/tiny-1: cannot be written: No such file or directory"),
        ("csv", "a.csv", "its process ended with status 130: no output"),
    ],
    ids=["it fails", "it is ended before the run"],
)
def test_why_a_process_has_failed_is_said_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, kind: DestinationKind, place: str, problem: str
) -> None:
    monkeypatch.chdir(home)
    directory = of_one_step()
    with directory.hold():
        metrics = MetricsProcess(directory, Destination(kind=kind, place=place), os.getpid())
        if kind == "csv":
            awaited((home / "a.csv").exists, "the file")
            metrics.end()
        assert asyncio.run(metrics.wait(lambda: False)) == ""
        failure = metrics.new_failure()
        assert isinstance(failure, MetricsFailed) and failure.line == f"curves are not written: {problem}"
        assert metrics.new_failure() is None


@pytest.mark.core
def test_a_run_writes_its_curves_over_resumes_while_it_trains(home: Path) -> None:
    to = ["--to", f"csv:{home / 'a.csv'}", "--to", f"tensorboard:{home / 'logs'}"]
    first = train("--steps=4", "--checkpoint-every=2", "--run=least-1", *to, settings=LEAST)
    again = train("--resume=least-1", "--from-step=2", "--steps=6", settings=[])
    done = {event["step"]: event for event in first + again if event["type"] == "StepDone"}
    found = in_csv(home / "a.csv")
    assert losses(found) == [(step, done[step]["loss"]) for step in range(1, 7)]
    assert found["train/grad_norm"] == [(step, done[step]["metrics"]["grad_norm"]) for step in range(1, 7)]
    assert in_tensorboard(home / "logs" / "least-1") == single(found)
    without = run("train", "--resume=least-1", "--steps=8", "--to=tensorboard:/proc/a", "--json")
    assert without.returncode == 0, "training goes on without its curves"
    assert sum(json.loads(line)["type"] == "StepDone" for line in without.stdout.splitlines()) == 2
    why = "/proc/a/least-1: cannot be written: No such file or directory"  # an event, or after the end on stderr
    assert why in without.stdout + without.stderr


def in_wandb(path: Path) -> tuple[Any, dict[int, dict[str, float]]]:
    """Reads the records of a run, in the format of LevelDB's log, by wandb's own schema."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts, about, rows = path.read_bytes(), 7, list[bytes](), None, {}
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind not in (1, 4):  # the record goes on
            continue
        found = Record.FromString(b"".join(parts))
        parts = []
        if found.HasField("run"):
            about = found.run
        if found.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found.history.item}
            assert found.history.step.num not in rows
            rows[found.history.step.num] = items
    return about, rows


@pytest.mark.core
@pytest.mark.skipif(find_spec("wandb") is None, reason="needs the extra wandb; `.ci/run` has it")
def test_a_rewind_begins_another_run_of_wandb(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    directory = recorded(steps(2, 9.0, None, nonfinite=["losses"]), evaluated(2, 1.0))
    going = feed(directory, "wandb", "curves")
    going.carry()
    append(directory, steps(3, 7.0))
    going.carry()
    append(directory, restored(1), steps(2, 6.0))
    going.carry()
    going.close()
    sys.modules["wandb"].teardown()  # as at exit: its process closes a finished run's file after `finish` returned
    assert going.summary == "wandb project curves: 4 curves up to step 2"
    found = {run.run_id.rpartition("-")[0]: (run, rows) for run, rows in map(in_wandb, home.glob("wandb/*/*.wandb"))}
    assert sorted(found) == ["tiny-1", "tiny-1-rewind-1"]
    first, rows = found["tiny-1"]
    assert (first.project, first.run_group, first.display_name) == ("curves", "tiny-1", "tiny-1")
    assert repr([(step, row["train/loss"]) for step, row in rows.items()]) == "[(1, 9), (2, nan), (3, 7)]"
    assert rows[2]["eval/loss"] == 1.0
    assert [(step, row["train/loss"]) for step, row in found["tiny-1-rewind-1"][1].items()] == [(1, 9.0), (2, 6.0)]
