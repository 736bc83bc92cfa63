"""`shardtui plan` and the Plan view: estimates of the real engine, and compilations that fail in every way."""

import io
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.base import formatting
from shardtui.engine.base.encoding import encode_json
from shardtui.engine.hlo.module import parse
from shardtui.engine.hlo.peak_memory import peak_memory
from shardtui.engine.hlo.step_cost import StepCost
from shardtui.engine.hlo.traffic import Flow
from shardtui.engine.planning import answers
from shardtui.engine.planning import compilers as plan_cache
from shardtui.engine.planning.ranking import Row
from shardtui.engine.profiling.predicted import predicted_breakdown
from shardtui.engine.spec.model_choice import choose_model
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_files import is_pitfall
from shardtui.engine.spec.preset_reader import load_preset, load_presets
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import EngineStarted, EngineStopped, TrainingStarted
from shardtui.tui.app import ShardtuiApp
from shardtui.tui.cli.plan import board_tables
from shardtui.tui.cli.plan_report import plan_report
from shardtui.tui.client.planner import usual_presets
from shardtui.tui.messages import EventsArrived
from shardtui.tui.screens.plan import PlanScreen
from shardtui.tui.terminal.export import screen_text
from shardtui.tui.terminal.plain_table import plain_console
from shardtui.tui.widgets.preset_board import RowDetails
from shardtui.tui.widgets.table import Table
from textual.pilot import Pilot
from textual.widgets import DataTable, Input

from ..command import answered
from ..compilers import HANGS, KILLED, Compilers
from ..conftest import SETTINGS, tiny_config
from ..recorded import record, started, steps
from ..schemas import checked
from ..tui.test_app import shown, until

SLICE = "v5e:2x4"
V5E = f"--topology={SLICE}"
TINY = [*SETTINGS, V5E]
TRACED = f"{Path(__file__).parents[2]}/docs/examples/dot_relu_dot.py:DotReluDot"
FSDP = parse((Path(__file__).parents[1] / "hlo/tpu-fsdp.hlo").read_text())
Shown = tuple[ShardtuiApp, Pilot[None]]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return answered("plan", *arguments)


def planned(*arguments: str) -> dict[str, Any]:
    result = run("--json", *arguments)
    assert result.returncode == 0, result.stderr
    return checked("plan", result.stdout)


def add_preset_for_sixteen(home: Path) -> None:
    folder = home / "config/shardtui/presets/parallelism"
    folder.mkdir(parents=True)
    (folder / "sixteen.toml").write_text('[mesh]\nmodel = 16\n[rules]\nmlp = "model"\n')


def built_in_presets() -> list[Preset]:
    return [preset for preset in load_presets()[0] if not is_pitfall(preset.name)]


def kept(**changes: Any) -> StepCost:
    sizes: dict[str, Any] = {"argument_bytes": 1000, "peak_bytes": 100_000, "capacity_bytes": 10**9}
    return StepCost(basis="compiled", **sizes | changes)


def keep_all(cost: StepCost) -> None:
    """Stores the answer of the compiler for every preset."""
    for preset in built_in_presets():
        plan_cache.store_cost(tiny_config(), preset, load_topology(SLICE), cost)


def test_json_has_the_estimates_and_a_preset_may_be_a_file(home: Path) -> None:
    assert not any(name.startswith("pitfall") for name in usual_presets(tiny_config())[0])
    board = planned(*TINY, "--estimate", "--preset=fsdp-tp2", "--preset=dp")
    assert (board["schema"], board["model"], board["topology"]) == (4, "nano", "v5e:2x4")
    rows = {row["preset"]: row for row in board["rows"]}
    fsdp = rows["fsdp-tp2"]
    assert (fsdp["mesh"], fsdp["verdict"], fsdp["compiled"]) == ({"fsdp": 4, "model": 2}, "fits", None)
    estimate = fsdp["estimate"]
    assert 0 < estimate["argument_bytes"] < estimate["peak_bytes"] < estimate["capacity_bytes"]
    assert {"step_seconds", "tokens_per_second", "flop_utilisation"} <= estimate.keys()
    assert {tuple(flow["axes"]) for flow in estimate["collectives"]} >= {("fsdp",), ("model",)}
    assert fsdp["bound"] in ("compute", "memory", "network")
    assert [(wired["axes"], wired["size"]) for wired in fsdp["wiring"]] == [(["fsdp"], 4), (["model"], 2)]
    add_preset_for_sixteen(home)
    (board_of_sixteen,) = answers.plan(tiny_config(), "v5e:2x4", "sixteen")
    (sixteen,) = msgspec.json.decode(encode_json(plan_report(board_of_sixteen)))["rows"]
    assert (sixteen["verdict"], sixteen["estimate"], sixteen["bound"]) == ("infeasible", None, None)
    assert "needs 16 devices, 8 found" in sixteen["problems"][0]
    fitting = [row["estimate"]["step_seconds"] for row in board["rows"] if row["verdict"] == "fits"]
    assert fitting == sorted(fitting), "best first"
    assert board["recommendation"].startswith(board["rows"][0]["preset"])
    own = home / "own.toml"
    own.write_text('[mesh]\nrows = 2\ncolumns = -1\n[rules]\nbatch = "rows"\nmlp = "columns"\n')
    assert planned(*TINY, "--estimate", f"--preset={own}")["rows"][0]["mesh"] == {"rows": 2, "columns": 4}


def test_text_output(home: Path) -> None:
    result = run(*TINY, "--estimate", "--preset=fsdp-tp2", "--preset=hsdp")
    text = result.stdout
    assert (result.returncode, result.stderr) == (0, "")
    assert "nano on v5e:2x4: 8 × 16.9 GB, 8 × 16 tokens per step" in text
    assert re.search(r"fsdp-tp2 +fits +.*traced", text)
    assert re.search(r"model +2 +line y +50 GB/s", text)
    assert re.search(r"→ (hsdp|fsdp-tp2): .* per step, bound by", text)


@pytest.mark.parametrize("width", [80, 138, 160])
def test_no_figure_is_truncated(width: int) -> None:
    flows = [
        Flow(kind="all-reduce", axes=axes, count=1, bytes_per_device=1, bytes_known=1, bytes_sent=300_000_000)
        for axes in (["data"], ["data", "fsdp"])
    ]
    cost = kept(
        peak_bytes=48_200_000_000,
        capacity_bytes=16_900_000_000,
        collectives=flows,
        network_seconds=0.0123,
        step_seconds=0.0123,
        tokens_per_second=151_000.0,
        flop_utilisation=0.49,
    )
    rows = [Row(preset="data2-fsdp8", mesh={"data": 2, "fsdp": 8}, estimate=cost, compiled=cost)]
    console = plain_console(width=width, file=io.StringIO(), record=True)
    console.print(*board_tables(rows, "title", console))
    text = console.export_text()
    assert "…" not in text
    figures = ("too large by 31.3 GB", "48.2 GB, 285 %", "12 ms", "151 k", "49 %", "data × fsdp 300 MB", "peak 0 %")
    assert [figure for figure in figures if figure not in text] == []


@pytest.mark.core
def test_slices_say_which_axis_crosses_them_and_topologies_are_compared_by_chip_hour_and_dollar(home: Path) -> None:
    arguments = ("--topology=v5e:2x4", "--slices=2", "--estimate", "--set=batch_size=64", "--preset=hsdp")
    board = planned(*arguments, "--preset=data1-model16", "--set=heads=16")
    assert (board["topology"], board["slices"]) == ("v5e:2x4", 2)
    rows = {row["preset"]: row for row in board["rows"]}
    hsdp, tensor = rows["hsdp"], rows["data1-model16"]
    assert (hsdp["topology"], hsdp["slices"], hsdp["mesh"]) == ("v5e:2x4", 2, {"data": 2, "fsdp": 8})
    assert [(wired["slices"], wired["dcn_rate"]) for wired in hsdp["wiring"]] == [(2, 3.125e9), (1, None)]
    networks = {(tuple(flow["axes"]), flow["network"]) for flow in hsdp["estimate"]["collectives"]}
    assert networks == {(("data",), "dcn"), (("fsdp",), "ici")}
    assert hsdp["findings"] == []
    (finding,) = tensor["findings"]
    assert (finding["code"], finding["axes"]) == ("S111", ["model"])
    assert finding["bytes_per_device"] > 0
    text = run(*arguments).stdout
    assert "nano on 2 × v5e:2x4: 16 × 16.9 GB" in text
    assert re.search(r"data +2 +DCN, 2 slices +DCN 3\.12 GB/s", text)
    # Of tpu7x a chip is two devices.
    arguments = ("--topology=v5e:2x4", "--topology=tpu7x:2x2x1", "--estimate", "--set=batch_size=64", "--preset=fsdp")
    board = planned(*arguments, "--price=v5e=2")
    assert board["topology"] == "v5e:2x4"
    v5e, tpu7x = board["rows"]
    assert (v5e["topology"], tpu7x["topology"]) == ("v5e:2x4", "tpu7x:2x2x1")
    assert v5e["tokens_per_chip_hour"] == pytest.approx(v5e["estimate"]["tokens_per_second"] * 3600 / 8)
    assert v5e["tokens_per_dollar"] == pytest.approx(v5e["tokens_per_chip_hour"] / 2)
    assert tpu7x["tokens_per_chip_hour"] == pytest.approx(tpu7x["estimate"]["tokens_per_second"] * 3600 / 4)
    assert tpu7x["tokens_per_dollar"] is None
    text = run(*arguments).stdout
    assert re.search(r"best of each topology, predicted\s+.*tokens/chip-hour", text, re.S)
    assert "tokens/$" not in text
    refused = run(*arguments, "--price=v4=3")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--price v4=3: no --topology has that chip: the chips are tpu7x, v5e" in refused.stderr


def test_without_the_compiler_one_line_says_how_to_install_it(home: Path, compilers: Compilers) -> None:
    compilers.remove()
    result = run(*TINY, "--preset=dp")
    assert result.returncode == 0
    assert result.stderr.count("\n") == 1
    assert "the TPU compiler is not installed: run `pip install 'shardtui[tpu]'` (needs no TPU)" in result.stderr
    assert "traced" in result.stdout


@pytest.mark.core
def test_progress_and_failures_are_reported(home: Path, compilers: Compilers) -> None:
    compilers.install(KILLED)
    result = run(*TINY, "--preset=dp", "--preset=fsdp")
    assert result.returncode == 0
    assert re.findall(r"compiling (?:dp|fsdp), (\d of \d)", result.stderr) == ["1 of 2", "2 of 2"]
    assert "not compiled: its process was ended by SIGKILL" in result.stderr
    assert re.search(r"^(dp, fsdp|fsdp, dp): not compiled: its process was ended by SIGKILL", result.stdout, re.M)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topology=v9:4x4"], ["--topology v9:4x4: no such devices: give a TPU generation or GPU"]),
        (["--topology=v5p:4x4"], ["2 dims, but a v5p slice has 3: give 4x4x4"]),
        ([V5E, "--model=nope"], ["--model nope: no such model"]),
        ([V5E, "--batch-size=0", "--seq-len=-1"], ["--batch-size 0: must be at", "--seq-len -1: must"]),
        ([V5E, "--slices=0"], ["--slices 0: must be at least 1"]),
        (["--topology=v4:2x2x2", "--slices=2"], ["no bandwidth between v4 slices is published"]),
        (
            ["--topology=v5e:3x4", "--slices=2", "--preset=data3-model8"],
            ["mesh data 3 × model 8 cannot be laid over 2 slices: data (3) and 2 slices do not divide each other"],
        ),
        (["--topology=v5e:3x3", "--preset=dp-tp2"], ["needs a multiple of 2 devices, 9 found"]),
        (["--topology=v5e:9", "--preset=nope", "--set=layers=0"], ["1 dim,", "no such preset", "layers 0: must be"]),
        ([V5E, "--preset=own.toml"], ["own.toml: no such file"]),
        ([], ["the following arguments are required: --topology"]),
        ([V5E, "--minutes=5", "--goal=least-traffic"], ["--minutes 5", "--goal least-traffic: applies to a search"]),
        ([V5E, "--estimate", "--memory", "--search"], ["--memory needs the compiler's schedule if it searches"]),
        ([V5E, "--search", "--minutes=0"], ["'0' is not a number of minutes, such as 10"]),
        ([V5E, "--search", "--goal=fastest"], ["invalid choice: 'fastest'"]),
        ([V5E, "--search", "--goal=fits-largest-batch", "--batch-size=8"], ["the search chooses the batch: omit"]),
        ([V5E, "--search", "--save=a b"], ["--save a b: give a name of 1 to 64 letters"]),
        ([V5E, "--search", "--save=x", "--topology=v4:2x2x1"], ["--save x: each topology has a preset of its own"]),
        ([V5E, "--fit"], ["--fit compiles up to 16 programs for a preset: name one with --preset"]),
        ([V5E, "--fit", "--preset=dp", "--search"], ["settings of the presets alone: leave out --search"]),
        ([V5E, "--fit", "--preset=dp", "--estimate"], ["--fit needs the compiler: leave out --estimate"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_usage_is_refused_at_once(home: Path, arguments: list[str], says: list[str]) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert all(text in result.stderr for text in says)


@asynccontextmanager
async def plan_view(size: tuple[int, int] = (140, 40), **changes: object) -> AsyncIterator[Shown]:
    """Shows the view of a run that ended before it had a device: a plan only needs its config."""
    directory = run_directory.create(tiny_config(run="planned", **changes))
    events = [EngineStarted(protocol=1, pid=1, config=directory.config), EngineStopped(step=0, reason="stopped")]
    record(directory, *events)
    async with shown(directory, False, size) as (app, pilot):
        await until(lambda: app.state.is_over, "the history")
        await pilot.press("7")
        await until(lambda: isinstance(app.screen, PlanScreen) and app.screen.query(DataTable), "the view")
        yield app, pilot


def view(app: ShardtuiApp) -> PlanScreen:
    assert isinstance(app.screen, PlanScreen)
    return app.screen


async def request_plan(app: ShardtuiApp, pilot: Pilot, topology: str = SLICE) -> None:
    await pilot.press("t")
    await pilot.pause()
    app.screen.query_one("#topology", Input).value = topology
    await pilot.press("enter")


async def compiled(app: ShardtuiApp, pilot: Pilot, preset: str) -> None:
    """Requests a plan whose answers are kept, and opens what enter shows of a preset."""
    await request_plan(app, pilot)
    await until(lambda: view(app).status == "compiled", "the end")
    view(app).board.table.select(preset)
    await pilot.press("enter")


async def cancelled(app: ShardtuiApp, pilot: Pilot, compilers: Compilers) -> None:
    await pilot.press("K")
    await until(lambda: "cancelled" in screen_text(app) and compilers.all_gone(0), "the end of all compilers")


def words(app: ShardtuiApp) -> str:
    return " ".join(screen_text(app).split())


def column(app: ShardtuiApp, name: str) -> list[str]:
    table = app.screen.query_one(Table)
    at = table.names.index(name)
    return [str(cells[at]) for cells in table.found_rows.values()]


@pytest.mark.core
async def test_the_view_plans_without_a_compiler(home: Path, compilers: Compilers) -> None:
    compilers.remove()
    add_preset_for_sixteen(home)
    async with plan_view((140, 40)) as (app, pilot):

        def details() -> str:
            return "\n".join(line.plain for line in app.screen.query_one(RowDetails).lines)

        assert "press t to choose a slice" in screen_text(app)
        assert app.screen.query_one("#batch", Input).value == "8", "the run's batch size"
        await request_plan(app, pilot)
        await until(lambda: "pip install 'shardtui[tpu]'" in screen_text(app), "the board")
        assert set(column(app, "preset")) == {preset.name for preset in built_in_presets()} | {"sixteen"}
        fits = [verdict == "fits" for verdict in column(app, "verdict")]
        assert fits == sorted(fits, reverse=True), "what fits, then what is infeasible"
        assert "nano on v5e:2x4" in screen_text(app)
        await until(lambda: f"→ {column(app, 'preset')[0]}: " in screen_text(app), "the recommendation")
        app.screen.query_one(DataTable).move_cursor(row=column(app, "preset").index("fsdp-tp2"))
        links = re.compile(r"model 2 +line y, 50 GB/s; sends .* per step, traced")
        await until(lambda: links.search(details()), "the links of fsdp-tp2")
        assert re.search(r"step .* the maximum of compute .*, memory .*, network ", details())
        app.screen.query_one(DataTable).move_cursor(row=column(app, "preset").index("sixteen"))
        await until(lambda: "needs 16 devices, 8 found" in screen_text(app).replace("\n", " "), "its problem")


async def test_invalid_input_says_why_and_stays_in_its_field(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    async with plan_view() as (app, pilot):
        app.screen.query_one("#batch", Input).value = "many"
        await request_plan(app, pilot, "v5p:4x4")
        await until(lambda: "2 dims, but a v5p slice has 3" in screen_text(app), "the problem of the slice")
        assert "batch 'many': must be a number of sequences" in screen_text(app)
        field = app.screen.query_one("#topology", Input)
        assert app.focused is field
        field.value = ""
        await pilot.press("e", "x")
        assert (field.value, list(home.glob("*.svg")), len(app.screen_stack)) == ("ex", [], 1)
        await pilot.press("escape", "1")
        await until(lambda: app.current_mode == "watch", "a digit leaves the view again")


async def test_no_plan_begins_by_itself_while_a_slice_is_typed(home: Path) -> None:
    async with plan_view() as (app, pilot):
        await pilot.press("t", "ctrl+u", *"v5e:4x4")
        app.post_message(EventsArrived([started(), TrainingStarted(preset="dp")]))
        await until(lambda: app.state.preset, "a live run")
        await pilot.press("x", "4")
        field = app.screen.query_one("#topology", Input)
        assert (field.value, app.focused, view(app).planner) == ("v5e:4x4x4", field, None)
        await pilot.press("escape")
        app.post_message(EventsArrived([steps(1, 2.0)]))
        await until(lambda: app.state.step, "a step")
        assert app.focused is view(app).board.table.rows, "it is not taken back to the slice, which does not exist"


@pytest.mark.slow
async def test_compiling_continues_in_other_views_and_ends_with_the_ui(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    plan_cache.store_cost(tiny_config(), load_preset("dp"), load_topology(SLICE), kept(step_seconds=1e-7))
    async with plan_view() as (app, pilot):
        await request_plan(app, pilot)
        await until(lambda: compilers.started, "the first compilation")
        plan = view(app)
        first = plan.planner and plan.planner.compiling
        assert first
        await until(lambda: re.search(r"compiling [\w-]+, [1-9] s, 1 of", screen_text(app)), "its seconds")
        await pilot.press("1")
        await until(lambda: app.current_mode == "watch", "another view")
        plan.action_skip()
        await until(lambda: len(compilers.started) > 1, "the next compilation, from another view")
        await pilot.press("7")
        await until(lambda: f"{first.preset}" in column(app, "preset"), "the view again")
        assert plan.board.rows[first.preset].problems == ["not compiled: cancelled"]
        await cancelled(app, pilot, compilers)
        await until(lambda: "compiling" not in column(app, "from"), "rows without a compilation")
        await request_plan(app, pilot)
        await until(lambda: len(compilers.started) > 2, "another board")
        await pilot.press("d")
    await until(lambda: compilers.all_gone(0), "the end of all compilers")


@pytest.mark.slow
async def test_a_search_in_the_view_keeps_the_batch(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    async with plan_view((80, 24)) as (app, pilot):
        await pilot.press("n")
        await until(lambda: compilers.started, "the first compilation")
        await until(lambda: "left" in screen_text(app), "the time left")
        assert "tokens/s traced, not compiled" in words(app)
        rows = view(app).board.rows
        assert any(row.settings for row in rows.values())
        assert {row.tokens for row in rows.values()} == {8 * 16}, "the batch of the field"
        assert next(iter(rows.values())).preset in column(app, "preset")
        assert any(cell.endswith("remat=true") for cell in column(app, "preset"))
        await cancelled(app, pilot, compilers)


async def test_a_traced_step_says_what_fills_the_memory(home: Path, compilers: Compilers) -> None:
    compilers.remove()
    model = choose_model(TRACED, ("batch_size=8",))
    async with plan_view(model_name=TRACED, model=model.model, training=model.training, data=None) as (app, pilot):
        await request_plan(app, pilot)
        await until(lambda: "traced only" in screen_text(app), "the board")
        view(app).board.table.select("dp")
        await pilot.press("enter")
        await until(lambda: "dp: memory of a step, predicted" in screen_text(app), "what fills the memory")
        assert "at the peak" in words(app)
        assert "traced: nothing was compiled" in words(app)
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, PlanScreen), "the plan")


def test_the_command_says_what_fills_the_memory_of_a_traced_step(home: Path) -> None:
    result = run(f"--model={TRACED}", V5E, "--preset=dp", "--estimate", "--memory")
    assert (result.returncode, result.stderr) == (0, "")
    assert "dp: largest buffers at the peak, predicted" in result.stdout
    (row,) = planned(f"--model={TRACED}", V5E, "--preset=dp", "--estimate")["rows"]
    assert row["estimate"]["peak_buffers"] and row["estimate"]["at_peak"]["bytes"] == row["estimate"]["peak_bytes"]


@pytest.mark.slow
async def test_enter_predicts_where_the_time_of_a_compiled_step_goes(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    breakdown = predicted_breakdown(FSDP, {"data": 8}, load_topology(SLICE))
    peak = peak_memory(FSDP, [])
    assert peak
    keep_all(kept(step_seconds=1e-7, breakdown=breakdown, at_peak=peak.memory, peak_buffers=peak.buffers))
    async with plan_view() as (app, pilot):
        await compiled(app, pilot, "dp")
        step = formatting.seconds(breakdown.step_seconds)
        await until(lambda: f"dp on v5e:2x4: a step of {step}, predicted" in screen_text(app), "the prediction")
        await until(lambda: breakdown.operations[0].name in screen_text(app), "the operations")
        await pilot.press("t")
        await until(lambda: "compute" in screen_text(app), "the timeline")
        await pilot.press("m")
        largest = formatting.size(peak.buffers[0].bytes)
        await until(lambda: largest in screen_text(app), "the buffers")
        assert f"at the peak, {formatting.percent(peak.memory.at)} through the program" in words(app)
        assert "rebuilt from the order of the program" in words(app)


@pytest.mark.slow
async def test_enter_compiles_what_makes_a_preset_fit(home: Path, compilers: Compilers) -> None:
    """All presets are too large as asked, and half the batch fits; more micro-batches hang, until `K` cancels them."""
    compilers.install(HANGS)
    target = load_topology(SLICE)
    memory = target.chip.memory
    large = StepCost(basis="traced", argument_bytes=1, peak_bytes=2 * memory, capacity_bytes=memory)
    keep_all(large)
    peak = peak_memory(FSDP, [])
    assert peak
    fits = msgspec.structs.replace(large, peak_bytes=5_000_000, tokens_per_second=1e6, at_peak=peak.memory)
    half = msgspec.structs.replace(tiny_config().training, batch_size=4)
    plan_cache.store_cost(tiny_config(training=half), load_preset("tp"), target, fits)
    async with plan_view((80, 24)) as (app, pilot):
        await compiled(app, pilot, "tp")
        await until(lambda: len(compilers.started) == 1, "the first compilation that no cache answers")
        await until(lambda: "tp fits with batch_size=4, not with 8" in words(app), "its limit")
        rows = view(app).board.rows
        assert {row.preset for row in rows.values()} == {"tp"}
        assert rows["tp batch_size=4"].verdict == "fits"
        assert "tp batch_size=4" in column(app, "preset")
        assert "left" in screen_text(app)
        await cancelled(app, pilot, compilers)
        await pilot.press("escape")
        await until(lambda: "dp" in column(app, "preset") and view(app).status == "compiled", "the plan before")
