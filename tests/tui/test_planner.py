"""The planner on real engine processes. None compiles a full program."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.base.machine import most_compilations
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.step_cost import StepCost
from shardtui.engine.hlo.traffic import Flow
from shardtui.engine.planning import compilers as plan_cache
from shardtui.engine.planning.compilers import slot
from shardtui.engine.planning.ranking import Board, Measured, Row
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset import Indivisible
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.descriptions import DeviceInfo, PresetInfo
from shardtui.tui.cli.plan import progress
from shardtui.tui.cli.plan_report import plan_report
from shardtui.tui.client import planner as planner_module
from shardtui.tui.client.engine_process import NoAnswer
from shardtui.tui.client.planner import Planner, estimates, usual_presets
from shardtui.tui.state import board_rows
from shardtui.tui.state.step_words import overlap_words
from shardtui.tui.widgets.plan_request import progress_text
from shardtui.tui.widgets.preset_board import detail_lines

from ..compilers import ABORTS, FAILS, HANGS, KILLED, Compilers
from ..conftest import READY, least_config, tiny_config
from .test_app import until

SLICE = "v5e:2x4"


async def compiled_by(planner: Planner) -> list[str]:
    """Follows a planner to its end. Returns the presets in the order in which they were compiled."""
    compiled = [planner.compiling.preset async for _ in planner.boards() if planner.compiling]
    assert planner.compiling is None
    return compiled


async def planned(*presets: str, config: RunConfig | None = None, topology: str = SLICE) -> tuple[Board, list[str]]:
    """Returns the last board, and the presets in the order in which they were compiled."""
    planner = Planner(config or tiny_config(), topology, presets, compiles=True)
    compiled = await compiled_by(planner)
    return planner.board, compiled


async def test_a_plan_says_that_it_waits_for_other_plans(home: Path, compilers: Compilers) -> None:
    compilers.install("pass")
    planner = Planner(tiny_config(), SLICE, ["dp"], compiles=True)
    with contextlib.ExitStack() as others:
        for _ in range(most_compilations()):
            others.enter_context(slot(print))
        plan = asyncio.create_task(compiled_by(planner))
        await until(lambda: planner.is_waiting, "the wait")
        assert progress_text(planner).startswith("waiting for other plans, ")
        assert progress(planner).startswith("waiting for other plans to compile for ")
        others.close()
        await asyncio.wait_for(plan, 120)
    assert "the TPU compiler does not know this slice" in planner.board.rows[0].problems[0]


async def test_a_run_has_estimates_of_the_presets_that_are_asked_for(home: Path) -> None:
    def info(name: str) -> PresetInfo:
        preset = load_preset(name)
        return PresetInfo(
            name=name, summary="", teaches="", source=preset.source, mesh=dict(preset.mesh), fits=True, problems=[]
        )

    presets = [info("dp"), info("fsdp")]
    ready = msgspec.structs.replace(
        READY, devices=[DeviceInfo(at, "cpu", "cpu", 0) for at in range(8)], presets=presets
    )
    rows = await estimates(least_config(), ready, presets[1:])
    assert [(name, row.estimate is not None) for name, row in rows.items()] == [("fsdp", True)]


@pytest.mark.core
async def test_the_best_estimate_is_compiled_first_and_the_others_follow_a_crashed_compiler(
    home: Path, compilers: Compilers
) -> None:
    crashes = {
        "dp": (ABORTS, "its process was ended by SIGABRT: "),
        "fsdp": (KILLED, "its process was ended by SIGKILL, as the system does when memory runs out: no output"),
        "tp": (FAILS, "its process ended with status 1: no such luck"),
    }
    compilers.install(f"exec({ {preset: behaviour for preset, (behaviour, _) in crashes.items()} }[sys.argv[4]])")
    board, compiled = await planned("tp", "dp", "fsdp4-model16", "fsdp")
    rows = {row.preset: row for row in board.rows}
    assert rows["fsdp4-model16"].problems[0].startswith("fsdp4-model16: mesh fsdp=4 × model=16 needs 64 devices")
    assert compiled == sorted(crashes, key=lambda preset: rows[preset].step_seconds or 0)
    assert len(compilers.started) == 3
    for preset, (_, why) in crashes.items():
        row = rows[preset]
        assert row.problems[0].startswith(f"not compiled: {why}")
        assert (row.verdict, row.compiled) == ("fits", None)


@pytest.mark.slow
async def test_presets_that_are_far_too_large_are_compiled_only_if_named(home: Path, compilers: Compilers) -> None:
    compilers.install(KILLED)
    model = load_model("gpt2-xl", ("batch_size=64",))
    config = tiny_config(model_name="gpt2-xl", model=model.model, training=model.training)
    board, compiled = await planned(config=config, topology="v5e:2x2")
    assert {row.verdict for row in board.rows if row.preset in ("dp", "fsdp")} == {"too large"}
    assert "dp" not in compiled
    assert (await planned("dp", config=config, topology="v5e:2x2"))[1] == ["dp"]


@pytest.mark.core
async def test_the_last_trace_is_shown_to_who_is_busy_when_it_ends(home: Path) -> None:
    planner = Planner(tiny_config(), SLICE, ("dp",), compiles=False)
    async for _ in planner.boards():
        await asyncio.sleep(4)
    assert planner.board and [bool(row.estimate) for row in planner.board.rows] == [True]


@pytest.mark.core
async def test_after_a_cancelled_compilation_the_next_one_follows(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    planner = Planner(tiny_config(), SLICE, ("dp", "fsdp"), compiles=True)
    left: list[float | None] = []
    async for _ in planner.boards():
        if planner.compiling:
            left.append(planner.seconds_left)
            asyncio.get_running_loop().call_later(1.0, planner.cancel)
    unknown, as_long_as_the_first, *end = left
    assert (unknown, end) == (None, [])
    assert as_long_as_the_first and 0.5 < as_long_as_the_first < 30
    assert [row.problems for row in planner.board.rows] == [["not compiled: cancelled"]] * 2
    assert compilers.all_gone(0)


@pytest.mark.core
async def test_several_presets_are_compiled_at_a_time_and_end_with_the_planner(
    home: Path, compilers: Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers.install(HANGS)
    monkeypatch.setattr(planner_module, "has_room", lambda running: running < 2)
    planner = Planner(tiny_config(), SLICE, ("dp", "fsdp", "tp"), compiles=True)
    task = asyncio.create_task(compiled_by(planner))
    await until(lambda: len(planner.running) == 2, "two compilations")
    assert [(each.number, each.count) for each in planner.running] == [(1, 3), (2, 3)]
    planner.cancel()
    await until(lambda: [each.number for each in planner.running] == [2, 3], "the third one")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (planner.running, planner.compiling) == ([], None)
    assert planner.board and compilers.all_gone(0)


def test_a_compilation_ends_when_its_parent_is_killed(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    command = [sys.executable, "-m", "shardtui.tui", "plan", f"--topology={SLICE}", "--preset=dp"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    compilers.wait_for(1)
    process.kill()
    process.wait()
    assert compilers.all_gone()


async def test_a_cached_answer_is_used(home: Path, compilers: Compilers) -> None:
    compilers.install(KILLED)
    sizes: dict[str, Any] = {"argument_bytes": 1000, "peak_bytes": 200_000, "capacity_bytes": 10**9}
    kept = StepCost(basis="compiled", collectives=[], step_seconds=1.0, **sizes)
    plan_cache.store_cost(tiny_config(), load_preset("fsdp"), load_topology(SLICE), kept)
    board, _ = await planned("fsdp")
    (row,) = board.rows
    assert row.compiled == kept
    found = board_rows.errors(row)
    assert found.peak == pytest.approx(row.estimate.peak_bytes / 200_000 - 1)
    assert found.sent is None, "nothing is sent, so the error is undefined"


@pytest.mark.slow
async def test_a_slice_unknown_to_the_compiler_is_tried_once(home: Path, compilers: Compilers) -> None:
    compilers.install("print('shardtui: --topology v5e:2x4: no such slice', file=sys.stderr); sys.exit(2)")
    board, compiled = await planned("dp", "fsdp")
    assert len(compiled) == 1
    (tried,) = [row for row in board.rows if row.preset == compiled[0]]
    assert tried.problems == ["not compiled: --topology v5e:2x4: no such slice"]


def test_the_preset_of_the_run_is_planned(home: Path) -> None:
    assert "pitfall-same-axis" in usual_presets(tiny_config(preset="pitfall-same-axis"))[0]
    _, wrong = usual_presets(tiny_config(preset="/no/such.toml"))
    assert wrong == ["--preset /no/such.toml: no such file"]


async def test_an_invalid_request_and_a_crashed_engine_raise_different_errors(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no such devices") as refused:
        await planned(topology="v9:4")
    assert not isinstance(refused.value, NoAnswer)
    (home / "sitecustomize.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(home))
    with pytest.raises(NoAnswer, match="ended by SIGABRT"):
        await planned("dp")


def flow(axes: list[str], sent: int, **fields: Any) -> Flow:
    values: dict[str, Any] = {"kind": "all-reduce", "count": 1, "bytes_per_device": sent, "bytes_known": sent}
    return Flow(axes=axes, bytes_sent=sent, **values | fields)


def test_rows_as_text() -> None:
    moved = [flow(["data"], 600), flow(["model"], 10_000), flow(["data"], 400), flow(["data", "model"], 5)]
    sizes: dict[str, Any] = {"argument_bytes": 1, "peak_bytes": 12_000_000_000, "capacity_bytes": 8_000_000_000}
    row = Row(preset="mine", mesh={"data": 2}, estimate=StepCost(basis="traced", collectives=moved, **sizes))
    assert board_rows.verdict(row) == "too large by 4 GB"
    assert board_rows.peak_of_capacity(row) == "12 GB, 150 %"
    assert board_rows.most_sent(row) == ["model 10 kB", "data 1 kB"]
    assert board_rows.estimate_errors(row) == []
    sizes["peak_bytes"] = 10_000_000_000
    smaller = StepCost(basis="compiled", collectives=[flow(["data"], 11_000)], **sizes)
    compiled = msgspec.structs.replace(row, compiled=smaller)
    assert board_rows.estimate_errors(compiled) == ["peak +20 %", "sent 0 %"]
    assert board_rows.source(compiled) == "compiled"
    scheduled = msgspec.structs.replace(row, compiled=msgspec.structs.replace(smaller, scheduled_seconds=0.2))
    assert board_rows.scheduled(scheduled) == "predicted 200 ms by the compiler's schedule and its estimates"
    assert board_rows.scheduled(compiled) == board_rows.scheduled(row) == ""
    assert [board_rows.percent(part) for part in (0.0001, -0.0042, 0.5)] == ["0 %", "−0.4 %", "+50 %"]
    others = [Row(preset=name, mesh={}, problems=[f"{name}: heads 3", f"{name}: own {name}"]) for name in ("a", "b")]
    assert board_rows.problems(others) == ["a, b: heads 3", "a: own a", "b: own b"]


def test_what_is_overlapped_is_shown_of_compiled_programs_only() -> None:
    ring = flow(["data"], 7_500, kind="collective-permute")
    known = msgspec.structs.replace(ring, bytes_overlapped=0)
    hidden = flow(["model"], 2_500, bytes_overlapped=2_500)
    by_trace, by_compiler = (
        StepCost(basis="traced", argument_bytes=1, peak_bytes=2, capacity_bytes=3, collectives=[each, hidden])
        for each in (ring, known)
    )
    estimated = Row(preset="mine", mesh={"data": 2, "model": 2}, estimate=by_trace)
    compiled = msgspec.structs.replace(estimated, compiled=by_compiler)
    assert (board_rows.overlapped(estimated), board_rows.overlapped(compiled)) == ([], ["25 % overlapped"])
    board = Board(model="nano", topology=SLICE, rows=[estimated, compiled])
    assert sorted(str(row.overlapped_share) for row in plan_report(board).rows) == ["0.25", "None"]
    texts = ["\n".join(line.plain for line in detail_lines(row, 60)) for row in (estimated, compiled)]
    assert ["25 % overlapped with computation" in text for text in texts] == [False, True]
    said = " ".join(texts[1].split())
    assert "sends 7.5 kB per step; none overlapped with computation; traced 7.5 kB" in said, "over data"
    assert "sends 2.5 kB per step; 100 % overlapped with computation; traced 2.5 kB" in said, "over model"
    assert any(line.startswith("collective-permute ") for line in texts[0].splitlines()), "named in full"
    assert overlap_words([known]) == "none overlapped with computation"


def test_details_begin_with_what_was_measured() -> None:
    quartiles = {"lower_quartile_seconds": 0.2, "upper_quartile_seconds": 0.22}
    ends = {"fastest_seconds": 0.19, "slowest_seconds": 1.5}
    measured = Measured(steps=9, step_seconds=0.21, tokens_per_second=12_345.6, bytes_in_use=None, **quartiles, **ends)
    (line,) = detail_lines(Row(preset="dp", mesh={"data": 2}, counted="examples", measured=measured), 120)
    said = "210 ms, middle 50 % of 9 steps 200…220 ms, all 190 ms…1.5 s; 12,346 examples/s"
    assert line.plain.split(maxsplit=1) == ["measured", said]


@pytest.mark.parametrize(
    ("indivisible", "says"),
    [
        ([Indivisible("batch", 24, 16)], "batch 24 ÷ 16 devices"),
        ([Indivisible("batch", 16, 64), Indivisible("embed", 3, 2)], "batch 16 < 64 devices"),
        ([Indivisible("heads", 12, 8)], "heads 12 ÷ 8 devices"),
        ([], "infeasible"),
    ],
)
def test_the_short_verdict_names_a_dim_that_does_not_divide(indivisible: list[Indivisible], says: str) -> None:
    row = Row(preset="dp", mesh={"data": 64}, problems=["dp: it does not fit"], indivisible=indivisible)
    assert board_rows.short_verdict(row) == board_rows.verdict(row) == says
