"""`plan --search`: candidates, their estimates, which to compile next, and the command with compilers that fail."""

import asyncio
import json
import math
import re
import shlex
import signal
import subprocess
from functools import partial
from pathlib import Path

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.hlo.step_cost import StepCost
from shardtui.engine.models.task import Task
from shardtui.engine.planning import compilers as plan_cache
from shardtui.engine.planning.candidates import layout_key, meshes, orders
from shardtui.engine.planning.estimate import estimate_row
from shardtui.engine.planning.finalists import (
    MOST_BATCHES,
    MOST_PROGRAMS,
    batch_limits,
    expected_figure,
    next_batch,
    next_row,
    next_to_compile,
)
from shardtui.engine.planning.goal import Goal, SearchRequest, figure, pick, ranked
from shardtui.engine.planning.ranking import Choice, Row
from shardtui.engine.planning.search import Search
from shardtui.engine.planning.step_trace import traced_cost
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_config import KEPT
from shardtui.engine.spec.preset import Preset
from shardtui.engine.spec.preset_reader import load_preset, mesh_preset, read_preset
from shardtui.engine.spec.topology import crossing, load_topology
from shardtui.engine.wire.descriptions import PeakMemory
from shardtui.tui.cli.plan import Asked, plan
from shardtui.tui.client.planner import Planner
from shardtui.tui.state.recommendation import recommendation

from ..compilers import FAILS, HANGS, KILLED, Compilers
from ..conftest import SETTINGS, SHARDTUI, built_in_task, tiny_config, tiny_model
from ..schemas import checked
from .test_plan import planned, run

SLICE, SLICE_OF_ONE = "v5e:2x4", "v5e:1x1"
TINY = [*SETTINGS, f"--topology={SLICE}", "--search"]


EACH_SETTING = ("batch_size", "remat", "accumulate_steps")


def found_by(task: Task, topology: str, *kept: str, goal: Goal = "tokens-per-second") -> list[Row]:
    return Search(task, load_topology(topology), SearchRequest(goal=goal, kept=list(kept), minutes=60)).rows([])


def test_every_mesh_of_up_to_three_axes_is_tried_once_and_chatty_axes_stay_inside_a_slice() -> None:
    found = list(meshes(64))
    assert len(found) == len({frozenset(mesh.items()) for mesh in found})
    assert all(math.prod(mesh.values()) == 64 for mesh in found)
    axes, factors = 6, 6
    assert len(found) == sum(math.comb(axes, n) * math.comb(factors - 1, n - 1) for n in (1, 2, 3))
    topology = load_topology("2*v5p:4x4x4")
    inside = orders({"data": 4, "model": 8, "seq": 4}, topology)
    assert inside and all(crossing(order, 2) == ["data"] for order in inside)
    assert [list(order) for order in orders({"data": 1, "model": 128}, topology)]
    assert orders({"model": 128}, topology) == [{"model": 128}], "it cannot"


@pytest.mark.slow
def test_a_search_over_slices_keeps_tensor_axes_off_dcn_and_is_as_good_as_the_best_preset() -> None:
    task, topology = built_in_task("gpt3-175b", "batch_size=64"), load_topology("v5p:4x4x4")
    found = found_by(task, f"2*{topology.name}", *EACH_SETTING)
    assert found[0].verdict == "fits"
    assert all([*row.mesh] == ["model"] for row in found if row.findings), "of one axis, which has to cross slices"
    assert any("model" in row.mesh and not row.findings for row in found)
    found = found_by(task, topology.name, *EACH_SETTING)
    known = ranked([estimate_row(task, load_preset(name), 64, topology) for name in ("fsdp", "fsdp-tp4", "fsdp-tp8")])
    assert found == ranked(found, "tokens-per-second")
    assert found[0].verdict == "fits"
    assert 0 < (found[0].step_seconds or 0) <= (known[0].step_seconds or 0)
    assert all(row.settings == {} for row in found), "all settings are kept"


@pytest.mark.slow
def test_presets_with_a_layout_of_their_own_are_candidates() -> None:
    """`fsdp` is laid out like `fsdp8`, and `fsdp-1d` like no mesh."""
    task, request = Task(tiny_config(), "tpu"), SearchRequest(kept=[*EACH_SETTING])
    search = Search(task, load_topology("v5e:2x4"), request)
    names = {row.preset for row in search.rows([load_preset(name) for name in ("fsdp", "fsdp-1d")])}
    assert {"fsdp8", "fsdp-1d"} <= names
    assert "fsdp" not in names


@pytest.mark.slow
def test_a_search_whose_time_is_over_has_one_candidate_and_says_so() -> None:
    request = SearchRequest(goal="tokens-per-second", kept=list(EACH_SETTING), minutes=0)
    search = Search(Task(tiny_config(), "tpu"), load_topology(SLICE), request)
    (row,) = search.rows([])
    assert row.verdict == "fits"
    assert not search.has_all_estimates


@pytest.mark.slow
def test_accumulated_gradients_are_counted() -> None:
    tasks = [built_in_task("gpt2", "batch_size=64", f"accumulate_steps={count}") for count in (1, 4)]
    whole, parts = (
        traced_cost(task, load_preset("fsdp"), 8, load_topology("v5e:2x4"), jax.devices()) for task in tasks
    )
    assert parts.argument_bytes == whole.argument_bytes
    assert parts.compute_seconds == pytest.approx(whole.compute_seconds, rel=0.01)
    assert parts.peak_bytes < whole.peak_bytes / 2
    once, often = ({flow.kind: flow.bytes_sent for flow in cost.collectives or ()} for cost in (whole, parts))
    assert often["all-gather"] > 3.9 * once["all-gather"]


@pytest.mark.slow
def test_settings_that_are_free_are_chosen_and_a_kept_batch_that_does_not_fit_is_accumulated() -> None:
    task = built_in_task("gpt2", "batch_size=16")
    settings = [row.settings for row in found_by(task, SLICE_OF_ONE)]
    assert len({each.get("batch_size") for each in settings}) > 1
    assert not any("accumulate_steps" in each for each in settings), "the batch is as large as fits"
    large = found_by(built_in_task("gpt2", "batch_size=112"), SLICE_OF_ONE, "batch_size", "accumulate_steps")
    assert {True, "save_out_proj"} <= {row.settings.get("remat") for row in large}
    task = built_in_task("gpt2", "batch_size=256")
    found = found_by(task, SLICE_OF_ONE, "batch_size", "remat")
    assert found[0].verdict == "fits"
    assert found[0].settings["accumulate_steps"] > 1  # pyright: ignore[reportOperatorIssue]
    assert {row.tokens for row in found} == {256 * 1024}
    once = estimate_row(task, load_preset(found[0].preset), 1, load_topology(SLICE_OF_ONE))
    assert once.verdict == "too large"


@pytest.mark.slow
def test_the_largest_batch_fits_and_least_traffic_sends_fewest_bytes() -> None:
    task, topology = built_in_task("gpt2", "batch_size=16"), load_topology("v5e:1x2")
    found = found_by(task, topology.name, "remat", goal="fits-largest-batch")
    best = found[0]
    assert (best.verdict, best.tokens) == ("fits", max(row.tokens for row in found))
    size = best.settings["batch_size"]
    assert isinstance(size, int) and size > 16
    preset = load_preset(best.preset.partition("-microbatches")[0])
    more = estimate_row(built_in_task("gpt2", f"batch_size={size + 8}"), preset, 2, topology)
    assert more.verdict == "too large"
    goals = ("least-traffic", "tokens-per-second")
    least, fastest = (found_by(task, "v5e:2x2", *EACH_SETTING, goal=goal) for goal in goals)
    sent = figure(least[0], "least-traffic")
    assert sent == least[0].estimate.bytes_sent / (16 * 1024)  # type: ignore[union-attr]
    assert all(sent <= (figure(row, "least-traffic") or 0) for row in fastest)


def pipeline_of(name: str) -> Preset:
    preset = mesh_preset(name)
    assert preset is not None
    return preset


def test_a_step_of_other_micro_batches_is_another_one() -> None:
    names = ("pipeline2", "pipeline2-microbatches.2", "pipeline2-microbatches.4")
    assert len({layout_key(pipeline_of(name), 2) for name in names}) == len(names)


@pytest.mark.slow
def test_other_micro_batches_of_a_pipeline_have_estimates_of_their_own() -> None:
    task, topology = Task(tiny_config(), "tpu"), load_topology("v5e:1x2")
    request = SearchRequest(goal="tokens-per-second", kept=list(EACH_SETTING), minutes=10)
    rows = Search(task, topology, request).rows([pipeline_of("pipeline2")])
    pipelines = [row for row in rows if row.pipeline]
    assert len(pipelines) > 1
    for row in pipelines:
        alone = estimate_row(task, pipeline_of(row.preset), 2, topology)
        assert row.cost and alone.cost and row.cost.peak_bytes == alone.cost.peak_bytes
        assert row.step_seconds == alone.step_seconds


def candidate(
    name: str, rate: float, peak: int = 5, compiled: tuple[float, int] | None = None, **settings: Choice
) -> Row:
    """Returns a row with an estimated rate and peak on a device of 10 bytes, and with those of its program."""

    def cost(rate: float, peak: int) -> StepCost:
        sizes = {"argument_bytes": 1, "peak_bytes": peak, "capacity_bytes": 10}
        return StepCost(basis="traced", step_seconds=1.0, tokens_per_second=rate, **sizes)

    mesh, known = load_preset(name).mesh, cost(*compiled) if compiled else None
    return Row(preset=name, mesh=mesh, settings=settings, tokens=100, estimate=cost(rate, peak), compiled=known)


def test_the_most_promising_candidate_is_compiled_next_and_the_pick_fits() -> None:
    rows = [candidate("fsdp8", 100, compiled=(50, 5)), candidate("data8", 90), candidate("data4-model2", 30)]
    chosen = next_to_compile(rows, "tokens-per-second")
    assert chosen and chosen.preset == "data8", "corrected by a half, but that may be half of what it is"
    assert next_to_compile([rows[0], rows[2]], "tokens-per-second") is None
    assert expected_figure([rows[0], candidate("data8", 80)], "tokens-per-second") == 40
    compiled = [candidate("fsdp8", 100, compiled=(50, 5)), candidate("data4-model2", 100, compiled=(90, 5))]
    left = [candidate("fsdp8", 150, remat=True), candidate("data2-model4", 101)]
    chosen = next_to_compile([*compiled, *left], "tokens-per-second")
    assert chosen == left[1], "half of 150 is less than 90 % of 101"
    rows = [candidate("fsdp8", 100, compiled=(50, 5)), candidate("fsdp8", 99, remat=True), candidate("data8", 60)]
    chosen = next_to_compile(rows, "tokens-per-second")
    assert chosen == rows[2]
    rows = [candidate("fsdp8", 100, 9, compiled=(0, 18), batch_size=64), candidate("fsdp8", 90, 8, batch_size=32)]
    smaller = candidate("fsdp8", 50, 4, batch_size=16)
    assert next_to_compile([*rows, smaller], "tokens-per-second") == smaller
    assert next_to_compile(rows, "tokens-per-second") == rows[1], "nothing fits: that which comes closest"
    assert next_to_compile([rows[0]], "tokens-per-second") is None
    too_large, slow = candidate("fsdp8", 200, compiled=(200, 11)), candidate("data8", 60, compiled=(55, 5))
    estimated = candidate("data4-model2", 300)
    assert pick([too_large, estimated, slow], "tokens-per-second") == slow
    assert pick([too_large, estimated], "tokens-per-second") == estimated
    assert pick([too_large], "tokens-per-second") is None


@pytest.mark.slow
def test_the_preset_that_a_search_chose_is_saved_by_name_and_train_takes_it(home: Path) -> None:
    board = planned(*TINY, "--set=remat=false", "--estimate", "--save=mine", "--minutes=3")
    (search,) = board["searches"]
    assert (search["topology"], search["goal"], search["ended"]) == (SLICE, "tokens-per-second", "estimates only")
    assert search["estimated"] > search["finalists"] == len(board["rows"]) > 10
    best, chosen = board["rows"][0], search["chosen"]
    assert (chosen["preset"], chosen["settings"]) == (best["preset"], best["settings"])
    assert "batch_size" not in chosen["settings"], "it was given"
    assert chosen["file"] == str(home / "config/shardtui/presets/parallelism/mine.toml")
    preset = read_preset(Path(chosen["file"]))
    assert (preset.problems, preset.mesh) == ((), best["mesh"])
    assert preset.rules == load_preset("mine").rules == load_preset(chosen["preset"]).rules
    command = shlex.split(chosen["command"])
    assert command[:4] == ["shardtui", "train", "--model", "nano"]
    assert command[command.index("--preset") + 1] == "mine"
    words = [*SHARDTUI, *command[1:-1], "2", "--json", "--checkpoint-minutes=0"]
    trained = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert trained.returncode == 0, trained.stderr
    steps = [event for event in map(json.loads, trained.stdout.splitlines()) if event["type"] == "StepDone"]
    assert [event["step"] for event in steps] == [1, 2]
    refused = run(*TINY, "--save=mine")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "mine.toml already exists: choose another name, or remove it" in refused.stderr


@pytest.mark.slow
def test_what_comes_closest_is_said(home: Path) -> None:
    result = run("--model=gpt3-175b", "--topology=v5e:2x4", "--search", "--estimate", "--batch-size=8", "--minutes=0.5")
    assert result.returncode == 1
    words = " ".join(result.stdout.split())
    assert "none fits on v5e:2x4: " in words
    assert "comes closest" in words
    assert re.search(r", \d[\d.,]* [GT]B too large: use more chips, or a smaller batch", words)
    assert "train with it" not in words


@pytest.mark.slow
def test_a_search_ends_with_its_minutes(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    (search,) = planned(*TINY, "--minutes=0.3")["searches"]
    assert (search["ended"], search["compiled"], search["curve"]) == ("out of time", 0, [])
    assert search["chosen"]["basis"] == "traced"
    assert search["expected"] == pytest.approx(search["chosen"]["figure"])
    assert compilers.started
    assert compilers.all_gone(0)


@pytest.mark.slow
def test_a_search_goes_on_after_compilations_that_fail(home: Path, compilers: Compilers) -> None:
    compilers.install(KILLED)
    result = run(*TINY, "--minutes=0.5")
    assert result.returncode == 0
    assert len(compilers.started) > 1
    assert "not compiled: its process was ended by SIGKILL" in " ".join(result.stdout.split())
    assert "train with it: shardtui train --model nano" in result.stdout


@pytest.mark.slow
def test_an_interrupted_search_prints_the_best_so_far(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    command = [*SHARDTUI, "plan", *TINY, "--minutes=1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    compilers.wait_for(1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    (search,) = json.loads(output)["searches"]
    assert search["ended"] == "interrupted"
    chosen = search["chosen"]
    assert Path(chosen["file"]).exists()
    command = shlex.split(chosen["command"])
    assert command[command.index("--preset") + 1] == chosen["file"]
    assert "Traceback" not in errors
    assert compilers.all_gone(0)


CAPACITY = load_topology(SLICE).chip.memory


def batches_tried(fixed: int, each: float, asked: int, least: int) -> dict[int, int]:
    """Compiles batch sizes of a step that holds `fixed` + `each` × size bytes until there is no next one."""
    found = {asked: int(fixed + each * asked)}
    while size := next_batch(found, CAPACITY, least):
        assert size not in found and size % least == 0
        found[size] = int(fixed + each * size)
    return found


@given(st.integers(1, 64), st.integers(1, 4096), st.floats(0, 0.9), st.floats(1.01, 40))
def test_a_batch_that_memory_grows_with_is_found_to_the_last_multiple(
    least: int, groups: int, fixed: float, over: float
) -> None:
    asked = least * groups
    each = (over - fixed) * CAPACITY / asked
    found = batches_tried(int(fixed * CAPACITY), each, asked, least)
    fitting = [size for size, peak in found.items() if peak <= CAPACITY]
    assert len(found) <= MOST_BATCHES + 1
    largest = int((CAPACITY - fixed * CAPACITY) / each) // least * least
    assert abs(max(fitting, default=0) - largest) <= least * (groups > 1), "up to rounding"


def config_of(**training: int) -> RunConfig:
    return tiny_config(training=TrainingConfig(**{"batch_size": 64, "seq_len": 16, **training}))


def cost_of(part: float, rate: float = 1.0) -> StepCost:
    """A cost by the compiler: `part` of the memory of a device."""
    return StepCost(
        basis="compiled",
        argument_bytes=1,
        peak_bytes=int(part * CAPACITY),
        capacity_bytes=CAPACITY,
        at_peak=PeakMemory(bytes=9, at=part, op_name="", source="") if part <= 1 else None,
        step_seconds=0.5 if part <= 1 else None,
        tokens_per_second=rate if part <= 1 else None,
    )


def keep(config: RunConfig, preset: str, part: float) -> None:
    plan_cache.store_cost(config, load_preset(preset), load_topology(SLICE), cost_of(part))


def keep_all() -> None:
    """`fsdp` with 64 sequences is twice too large, and fits with 24."""
    for size in range(8, 72, 8):
        keep(config_of(batch_size=size), "fsdp", 0.25 + size / 64 * 1.75)
    keep(config_of(accumulate_steps=2), "fsdp", 1.125)
    for policy, kept in KEPT.items():
        keep(tiny_config(model=tiny_model(remat=policy), training=config_of().training), "fsdp", 0.6 + len(kept) / 5)


def fitted(config: RunConfig) -> list[Row]:
    planner = Planner(config, SLICE, ["fsdp"], compiles=True, search=SearchRequest(is_mesh_fixed=True))

    async def follow() -> None:
        async for _ in planner.boards():
            pass

    asyncio.run(follow())
    assert planner.board
    return planner.board.rows


@pytest.mark.core
def test_the_largest_batch_and_each_change_that_may_help_are_compiled(home: Path, compilers: Compilers) -> None:
    compilers.install(FAILS)
    keep_all()
    rows = fitted(config_of())
    assert {row.preset for row in rows} == {"fsdp"}
    assert rows[0].settings == {} and len(rows) <= MOST_PROGRAMS
    sizes = [row.settings["batch_size"] for row in rows if "batch_size" in row.settings]
    assert sizes == [32, 24]
    assert batch_limits(rows) == {"fsdp": (24, 32)}
    assert {row.settings.get("batch_size", 64): row.tokens for row in rows} == {64: 1024, 32: 512, 24: 384}
    fits = {str(value): row.verdict for row in rows for value in row.settings.values()}
    assert fits["2"] == "too large", "more micro-batches"
    assert [policy for policy in KEPT if fits.get(policy) == "fits"] == list(KEPT)[:4]
    assert "minimal" not in fits, "it keeps all that a policy keeps which is too large"
    said = recommendation(rows, SLICE, "fits-largest-batch")
    assert said.startswith("fsdp remat=")
    assert "; fsdp fits with batch_size=24, not with 32; with the same batch as asked, remat=" in said


def row_of(part: float | None = None, tokens: int = 1024, **settings: bool | int | str) -> Row:
    compiled = None if part is None else cost_of(part)
    return Row(preset="fsdp", mesh={"fsdp": 8}, settings=settings, tokens=tokens, laid_out=True, compiled=compiled)


def test_one_batch_is_compiled_at_a_time_and_the_smallest_is_named_if_none_fits() -> None:
    preset = load_preset("fsdp")
    first, half = row_of(2.0), row_of(tokens=512, batch_size=32)
    assert next_row([first], config_of(), preset, 8) == half
    beside = next_row([first, half], config_of(), preset, 8)
    assert beside and beside.settings == {"accumulate_steps": 2}
    known = [first, row_of(0.9, 512, batch_size=32)]
    after = next_row(known, config_of(), preset, 8)
    assert after and 32 < int(after.settings["batch_size"]) < 64
    assert next_row([row_of()], config_of(), preset, 8) is None, "as asked it is not compiled yet, or cannot be"
    assert next_row([row_of(0.5)], config_of(), preset, 8) is None, "as asked it fits"
    rows = [row_of(2.0), row_of(1.5, 128, batch_size=8)]
    assert batch_limits(rows) == {"fsdp": (None, 8)}
    said = recommendation(rows, SLICE, "tokens-per-second")
    assert said.startswith(f"none fits on {SLICE}: fsdp batch_size=8 comes closest")
    assert said.endswith("fsdp: no batch size that was compiled fits, the smallest of them 8")
    found = batches_tried(CAPACITY + 1, 1.0, 64, 8)
    assert min(found) == 8


@pytest.mark.slow
def test_the_command_prints_both(home: Path, compilers: Compilers, capsys: pytest.CaptureFixture[str]) -> None:
    compilers.install(FAILS)
    keep_all()
    search = SearchRequest(is_mesh_fixed=True, goal="fits-largest-batch")
    asked = partial(
        Asked, compiles=True, search=search, place=None, train=["train"], breakdowns=False, memory=True, prices={}
    )
    assert plan(config_of(), [SLICE], ["fsdp"], asked(as_json=True)) == 0
    out, err = capsys.readouterr()
    report = checked("plan", out)
    rows, (search,) = report["rows"], report["searches"]
    assert {row["preset"] for row in rows} == {"fsdp"}
    assert [row["largest_batch"] for row in rows if not row["settings"]] == [24]
    best = max((row for row in rows if row["verdict"] == "fits"), key=lambda row: row["tokens"])
    assert search["chosen"]["settings"].keys() == best["settings"].keys() == {"remat"}
    assert (search["ended"], search["compiled"], search["finalists"]) == ("done", len(rows), len(rows))
    assert "compiling fsdp batch_size=32, 2 of 16" in err
    assert plan(config_of(), [SLICE], ["fsdp"], asked(as_json=False)) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "largest buffers at the peak" in text
    assert "fsdp fits with batch_size=24, not with 32; with the same batch as asked, remat=" in text
    assert "train with it: train --preset" in text
