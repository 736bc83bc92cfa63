"""Compares traced costs with programs compiled for eight CPU devices, and tests what needs no compiler.

docs/planning-measured.md compares them with the TPU compiler.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import msgspec
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.step_cost import StepCost, Work, network_seconds, timed
from shardtui.engine.hlo.traffic import Flow, flows
from shardtui.engine.models.flops import flops_by_scope
from shardtui.engine.models.task import Task
from shardtui.engine.planning import compilers as plan_cache
from shardtui.engine.planning.ahead_of_time import needed_bytes
from shardtui.engine.planning.estimate import estimate_row
from shardtui.engine.planning.finalists import next_row
from shardtui.engine.planning.goal import ranked
from shardtui.engine.planning.networks import by_network
from shardtui.engine.planning.ranking import Board, Row
from shardtui.engine.planning.step_trace import StepTrace, arguments, traced_cost, traced_work
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_program, trace_step
from shardtui.engine.spec.config import RunConfig, UserModel
from shardtui.engine.spec.model_choice import user_model
from shardtui.engine.spec.preset import Indivisible, Preset
from shardtui.engine.spec.preset_reader import load_preset, mesh_preset, parse_preset
from shardtui.engine.spec.preset_writer import preset_text
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.collective import CollectiveInfo
from shardtui.engine.wire.events import PresetCompiled
from shardtui.tui.cli.plan_report import plan_report
from shardtui.tui.state import board_rows
from shardtui.tui.state.recommendation import recommendation

from ..conftest import BATCHES, LEAST_MODEL, WIDE, built_in_task, tiny_config
from ..models.families import FAMILIES
from ..programs import KINDS


def preset_of(mesh_and_rules: str) -> Preset:
    return parse_preset(Path("x.toml"), f"[mesh]\n{mesh_and_rules}\n")


def bytes_sent(compiled: PresetCompiled) -> int:
    return sum(flow.bytes_sent for flow in flows(compiled.collectives or []))


def traced(task: Task, preset: Preset) -> StepCost:
    return traced_cost(task, preset, 8, None, jax.devices())


def by_kind(cost: StepCost) -> dict[tuple[str, ...], int]:
    """Returns the bytes sent, but for sums of single numbers."""
    return {(flow.kind, *flow.axes): flow.bytes_sent for flow in cost.collectives or () if flow.bytes_sent > 1000}


DIGITS = f"{Path(__file__).parents[2]}/docs/examples/digits.py:CNN"
"""A model that makes batches of its own."""


def test_examples_of_own_batches_are_not_counted_as_tokens() -> None:
    model, training = user_model(DIGITS, ("batch_size=64",))
    task = Task(tiny_config(model=model, training=training, data=None), "tpu")
    row = estimate_row(task, load_preset("dp"), 8, load_topology("v5e:2x4"))
    assert row.estimate and row.step_seconds
    assert (row.tokens, row.counted) == (64, "examples")
    assert row.estimate.tokens_per_second == pytest.approx(64 / row.step_seconds)
    assert "examples/s" in [column.name for column in board_rows.columns(counted=board_rows.counted_in([row]))]
    other = next_row([too_large(row, 100)], task.config, load_preset("dp"), 8)
    assert other and (other.tokens, other.settings) == (32, {"batch_size": 32})


def too_large(row: Row, capacity: int) -> Row:
    cost = msgspec.structs.replace(row.estimate, peak_bytes=2 * capacity, capacity_bytes=capacity)  # type: ignore[type-var]
    return msgspec.structs.replace(row, compiled=cost)


FEW = ("dp", "fsdp-tp2", "dp-tp2-pp2")
OTHER_TRAFFIC = ("sp2", "dp-sp2", "pitfall-first-dim")
"""Of which the CPU's compiler sums what the sequence splits in another way, or moves what no rule names."""


@pytest.mark.parametrize("names", [FEW, pytest.param(tuple(KINDS), marks=pytest.mark.slow)], ids=("some", "all"))
def test_traces_predict_memory_and_bytes_sent(
    task: Task, programs: Mapping[str, Program], names: tuple[str, ...]
) -> None:
    for name in names:
        compiled = programs[name].description
        cost, memory = traced(task, programs[name].placement.preset), compiled.memory
        assert memory and cost.argument_bytes == memory.arguments, name
        assert cost.peak_bytes == pytest.approx(memory.peak, rel=0.25 if name == "pp2" else 0.2), name
        assert name in OTHER_TRAFFIC or cost.bytes_sent == pytest.approx(bytes_sent(compiled), rel=0.01), name


def check_by_compiler(task: Task, preset: Preset, rel: float) -> tuple[StepCost, PresetCompiled]:
    """Compares memory, and returns the trace and the compiled program."""
    cost, compiled = traced(task, preset), compile_program(place(task, preset, jax.devices())).description
    assert compiled.memory and cost.argument_bytes == compiled.memory.arguments
    assert cost.peak_bytes == pytest.approx(compiled.memory.peak, rel=rel)
    return cost, compiled


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), [("fsdp-tp2", 2), ("fsdp", 2), ("dp-tp2-pp2", 4)])
def test_traces_follow_the_cpu_compiler_with_remat(name: str, layers: int) -> None:
    model = msgspec.structs.replace(WIDE, layers=layers, remat=True)
    task = Task(tiny_config(model=model, training=BATCHES), "cpu")
    cost, compiled = check_by_compiler(task, load_preset(name), rel=0.3)
    assert cost.bytes_sent == pytest.approx(bytes_sent(compiled), rel=0.01)


OTHER_LAYOUTS = (
    'batch = "data"\nembed = "model"',
    'mlp = "model"\n[overrides]\n"mu.*" = []',
    'batch = "data"\nactivation_embed = "model"',
    'seq = ["data", "model"]\nheads = "model"',
    'batch = "model"\nmlp = ["data", "model"]',
    'mlp = [["model"], []]',
)


@pytest.mark.slow
@pytest.mark.parametrize("rules", OTHER_LAYOUTS)
def test_any_layout_is_traced(rules: str, task: Task) -> None:
    check_by_compiler(task, preset_of(f"data = 4\nmodel = 2\n[rules]\n{rules}"), rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("data4-model2", ["remat=true"]),
        ("fsdp", []),
        ("fsdp2-seq4", ["remat=true"]),
        ("data2-model4", []),
        ("data4-pipeline2", ["remat=true"]),
        ("fsdp4-model2", ["accumulate_steps=2"]),
    ],
)
def test_a_trace_on_a_small_mesh_with_another_batch_is_one_on_the_whole_mesh(name: str, settings: list[str]) -> None:
    """What sends and computes is equal; what stays in memory may be decided otherwise where both are close."""
    slice_, preset = load_topology("v5e:2x4"), load_preset(name)
    task = built_in_task("gpt2", "batch_size=32", *settings)
    small = traced_cost(task, preset, 8, slice_, jax.devices())
    mesh = preset.sizes(8)
    whole = StepTrace(task, preset, jax.devices(), None).sized(task, mesh, slice_)
    cost = whole.cost(mesh, arguments(task, preset, 8), slice_)
    assert by_kind(small) == pytest.approx(by_kind(cost), rel=1e-6)
    assert (small.argument_bytes, small.compute_seconds) == (cost.argument_bytes, pytest.approx(cost.compute_seconds))
    assert small.peak_bytes == pytest.approx(cost.peak_bytes, rel=0.1)
    assert small.memory_seconds == pytest.approx(cost.memory_seconds, rel=0.1)


def test_a_trace_takes_few_devices_and_what_cannot_be_traced_says_why() -> None:
    task, slice_ = built_in_task("gpt2", "batch_size=64"), load_topology("v5p:4x4x4")
    row = estimate_row(task, load_preset("dp"), 64, slice_)
    assert row.estimate and (row.estimate.basis, row.no_estimate) == ("traced", "")
    many = estimate_row(task, load_preset("data4-seq16"), 64, slice_)
    why = "the trace needs 32 simulated devices, 8 found"
    assert (many.estimate, many.verdict, many.problems, many.no_estimate) == (None, "not known", [], why)
    assert board_rows.all_caveats([many]) == [f"data4-seq16: no estimate: {why}"]
    assert plan_report(Board(model="m", topology="v5p:4x4x4", rows=[many])).rows[0].no_estimate == why


def test_a_step_that_prints_is_traced_for_what_is_here_and_else_says_why_not(tmp_path: Path) -> None:
    source = Path(LEAST_MODEL.rpartition(":")[0]).read_text()
    (tmp_path / "model.py").write_text(source.replace("return", 'jax.debug.print("{}", tokens[0])\n        return'))
    config = tiny_config(model=user_model(f"{tmp_path}/model.py:LeastModel")[0])
    assert estimate_row(Task(config, "cpu"), load_preset("dp"), 8, None).estimate
    row = estimate_row(Task(config, "tpu"), load_preset("dp"), 8, load_topology("v5e:2x4"))
    assert (row.estimate, row.problems) == (None, [])
    assert row.no_estimate.startswith("the step cannot be lowered for a tpu that is not here: ")
    assert row.no_estimate.endswith("leave out what calls back to Python, such as jax.debug.print")


def work(task: Task, name: str) -> float:
    return 8 * traced_work(task, load_preset(name), jax.devices()).flops


@pytest.mark.core
def test_flops_are_those_of_the_model_where_no_device_repeats_anothers(task: Task) -> None:
    assert work(task, "dp-tp2") == pytest.approx(task.flops_per_step, rel=0.02)
    assert work(task, "data4-model2-whole.heads") > 1.3 * task.flops_per_step, "attention is repeated"


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_flops_are_those_of_the_jaxpr(family: str, remat: bool) -> None:
    kv_heads = WIDE.heads // 2 if FAMILIES[family].is_grouped else 0
    model = msgspec.structs.replace(FAMILIES[family], **SIZES, kv_heads=kv_heads, remat=remat)
    task = Task(tiny_config(model=model, training=BATCHES), "cpu")
    placement = place(task, load_preset("dp"), jax.devices())
    counted = sum(filter(None, flops_by_scope(trace_step(placement).jaxpr).values()))
    assert work(task, "dp") == pytest.approx(counted, rel=0.02)


def test_kernels_count_the_blocks_of_scores_that_they_compute() -> None:
    """Splash attention computes those on the diagonal and below: forward 2 products, backward 7."""
    sizes = ("batch_size=64", "seq_len=1024")
    plain, splash = (
        work(built_in_task("gpt2", *sizes, f"attention={kernel}"), "dp") / 8 for kernel in ("plain", "auto")
    )
    products = 2 * 64 * 12 * 8 * 12 * 1024 * 1024
    assert plain - splash == pytest.approx(products * (6 - (2 + 7) * 0.75), rel=0.01)
    local, everywhere = (
        built_in_task("gemma3-4b", "batch_size=8", f"window={window}").model.computed_scores for window in (1024, 4096)
    )
    assert everywhere == (1 + 512 / 4096) / 2
    blocks = sum(min(block + 1, 3) for block in range(8))  # of 512: its own, and two for the 1,023 positions before
    assert local == pytest.approx((29 * blocks * 512**2 / 4096**2 + 5 * everywhere) / 34)


SIZES = {"embed": WIDE.embed, "heads": WIDE.heads, "mlp": WIDE.mlp, "context": WIDE.context, "layers": 4}


def test_axes_of_size_1_are_in_no_collective(task: Task) -> None:
    rules = 'batch = ["extra", "data"]\nvocab = "model"\nheads = ["extra", "model"]\nmlp = "model"'
    found = traced(task, preset_of(f"data = 4\nextra = 1\nmodel = 2\n[rules]\n{rules}")).collectives or []
    assert {axis for flow in found for axis in flow.axes} == {"data", "model"}


def test_a_peak_that_is_too_small_to_be_trusted_is_said_and_problems_are(task: Task) -> None:
    row = estimate_row(task, load_preset("dp"), 8, None)
    assert ["a small peak" in line for line in board_rows.caveats(row)] == [True]
    assert board_rows.caveats(msgspec.structs.replace(row, compiled=row.estimate)) == []
    wrong = parse_preset(Path("x.toml"), preset_text(load_preset("dp")) + '[overrides]\n"*.kernel" = 3\n')
    assert estimate_row(task, wrong, 8, None).problems == list(wrong.problems) != []


@pytest.mark.slow
def test_each_order_of_a_mesh_has_its_links() -> None:
    task, slice_ = built_in_task("gpt2", "batch_size=32"), load_topology("v5p:2x2x4")
    presets = [mesh_preset(name) for name in ("data4-fsdp2-model2", "model2-fsdp2-data4")]
    one, other = (estimate_row(task, preset, 16, slice_) for preset in presets if preset)
    assert one.estimate and other.estimate and presets[1]
    assert one.estimate.parts == other.estimate.parts
    assert one.estimate.network_seconds != other.estimate.network_seconds
    assert ["fsdp", "data"] in [flow.axes for flow in other.estimate.collectives or ()]


@pytest.mark.parametrize(
    ("name", "mesh", "rules"),
    [
        ("data2-fsdp4", {"data": 2, "fsdp": 4}, {"batch": ("data", "fsdp"), "embed": ("fsdp",)}),
        ("model8", {"model": 8}, {"heads": ("model",), "mlp": ("model",), "vocab": ("model",)}),
        ("model2-data4-whole.vocab-whole.heads", {"model": 2, "data": 4}, {"batch": ("data",), "mlp": ("model",)}),
        ("fsdp4-seq2", {"fsdp": 4, "seq": 2}, {"batch": ("fsdp",), "embed": ("fsdp", "seq"), "seq": ("seq",)}),
        ("expert4-data2", {"expert": 4, "data": 2}, {"batch": ("data", "expert"), "experts": ("expert",)}),
        (
            "data4-pipeline2-microbatches.8",
            {"data": 4, "pipeline": 2},
            {"batch": ("data",), "vocab": ("pipeline",), "layers": ("pipeline",)},
        ),
    ],
)
def test_mesh_names_are_presets(name: str, mesh: dict[str, int], rules: dict[str, tuple[str, ...]]) -> None:
    preset = load_preset(name)
    found = {logical: preset.axes(logical) for logical in preset.rules}
    assert (preset.mesh, found, preset.reference) == (mesh, rules, name)
    assert list(preset.mesh) == list(mesh), "the order in which devices fill the mesh"
    assert preset.microbatches == (8 if "microbatches" in name else None)


@pytest.mark.parametrize(
    "name", ["data0", "rows2", "data2-data4", "data", "data2-", "model2-whole.batch", "data2-microbatches.4", "2", ""]
)
def test_invalid_mesh_names_are_no_presets(name: str) -> None:
    assert mesh_preset(name) is None


def cost(peak: int, seconds: float) -> StepCost:
    """Returns a cost on a device of 10 bytes."""
    costs: dict[str, Any] = {"argument_bytes": 1, "peak_bytes": peak, "capacity_bytes": 10, "step_seconds": seconds}
    return StepCost(basis="traced", collectives=[], **costs)


def test_presets_rank_by_time_or_missing_memory_and_carry_what_does_not_divide() -> None:
    rows = [
        Row(preset="impossible", mesh={}, problems=["heads"]),
        Row(preset="far too large", mesh={}, estimate=cost(30, 1.0)),
        Row(preset="slow", mesh={}, estimate=cost(5, 2.0)),
        Row(preset="fits by its trace only", mesh={}, estimate=cost(9, 0.5), compiled=cost(11, 0.5)),
        Row(preset="fast", mesh={}, estimate=cost(9, 1.0)),
        Row(preset="slower than its trace", mesh={}, estimate=cost(5, 0.1), compiled=cost(5, 3.0)),
    ]
    assert [row.preset for row in ranked(rows)] == [rows[n].preset for n in (4, 2, 5, 3, 1, 0)]
    assert recommendation(rows, "v5e:2x4").startswith("fast: 1.0 s per step")
    assert "2.00 × as fast as slow" in recommendation(rows, "v5e:2x4")
    assert "comes closest, 11 B of 10 B per device, 1 B too large" in recommendation(rows[:2] + rows[3:4], "v5e:2x4")
    assert "none of these fit on" in recommendation(rows[:1], "v5e:2x4")
    small = built_in_task("gpt2", "batch_size=16")
    rows = [estimate_row(small, load_preset(name), 64, None) for name in ("dp", "tp", "dp-tp2")]
    assert all(row.verdict == "infeasible" and row.problems for row in rows)
    assert rows[0].indivisible == [Indivisible("batch", 16, 64)]
    assert {dim.logical_axis for dim in rows[1].indivisible} >= {"heads"}, "12 heads, 64 devices"
    assert any("heads 12 does not divide by 64" in problem for problem in rows[1].problems)
    assert rows[2].indivisible == [Indivisible("batch", 16, 32)]
    both = preset_of('data = 64\n[rules]\nbatch = "data"\nnone_such = "data"')
    assert estimate_row(small, both, 64, None).indivisible == []


def test_a_step_takes_as_long_as_what_bounds_it_also_over_slices() -> None:
    topology, mesh = load_topology("v5p:4x4x4"), {"data": 16, "model": 4}
    collective = Flow(
        kind="all-reduce", axes=["model"], count=1, bytes_per_device=8, bytes_known=8, bytes_sent=12 * 10**9
    )
    work = Work(flops=459e12, memory_bytes=2765e9 / 2, model_flops=0.5 * 64 * 459e12, tokens=640)
    compute = timed(msgspec.structs.replace(cost(1, 0), collectives=[collective]), work, topology, mesh)
    assert (compute.compute_seconds, compute.memory_seconds, compute.network_seconds) == (1.0, 0.5, 12 / 200)
    assert (compute.bound, compute.step_seconds, compute.tokens_per_second) == ("compute", 1.0, 640)
    assert compute.flop_utilisation == 0.5
    more = msgspec.structs.replace(collective, bytes_sent=400 * 10**9)
    network = timed(msgspec.structs.replace(compute, collectives=[more]), work, topology, mesh)
    assert (network.bound, network.step_seconds) == ("network", 2.0)

    topology, mesh = load_topology("2*v5p:4x4x4"), {"replica": 2, "fsdp": 64}
    crossing = msgspec.structs.replace(collective, axes=["replica"], bytes_sent=125 * 10**8, network="dcn")
    inside = msgspec.structs.replace(crossing, axes=["fsdp"], network="ici")
    assert network_seconds([crossing], topology, mesh) == 2.0
    assert network_seconds([inside], topology, mesh) == 125e8 / 600e9


def test_what_crosses_slices_is_sent_in_parts() -> None:
    """Of 8 devices in each of two slices; the compiler makes the same, see test_megascale.py."""
    mesh, moved = {"data": 16, "model": 2}, 1024

    def parts(kind: str, *axes: str) -> list[tuple[str, list[str], int, int, str | None]]:
        group = math.prod(mesh[axis] for axis in axes)
        sizes: Any = {"group_size": group, "count": 1, "bytes_each": moved, "bytes_per_device": moved}
        rest: Any = {"dtype": "f32", "shapes": [], "op_name": "", "source": "", "written": False}
        info = CollectiveInfo(kind=kind, axes=list(axes), **sizes, **rest)
        found = by_network([info], mesh, load_topology("2*v5e:4x4"))
        return [(each.kind, each.axes, each.bytes_known, each.bytes_sent, each.network) for each in found]

    assert parts("all-reduce", "data") == [
        ("reduce-scatter", ["data"], 1024, 896, "ici"),
        ("all-gather", ["data"], 1024, 896, "ici"),
        ("all-reduce", ["data"], 128, 128, "dcn"),
    ]
    assert parts("all-gather", "data") == [
        ("all-gather", ["data"], 1024, 896, "ici"),
        ("all-gather", ["data"], 128, 64, "dcn"),
    ]
    assert parts("all-to-all", "data") == [("all-to-all", ["data"], 1024, 512, "dcn")]
    assert parts("all-reduce", "model") == [("all-reduce", ["model"], 1024, 1024, "ici")]


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("RESOURCE_EXHAUSTED: … Used 20.00G of 15.75G hbm. Exceeded hbm capacity by 4.25G.", 20 * 2**30),
        ("… the total memory required for HLO temporaries (41.5G) exceeds available HBM (31.25G).", 41.5 * 2**30),
        ("… the total memory required for HLO temporaries (1.25T) exceeds available HBM (31.25G).", 1.25 * 2**40),
        ("RESOURCE_EXHAUSTED: something else", None),
    ],
)
def test_needed_memory_is_read_from_out_of_memory_messages(message: str, needed: float | None) -> None:
    assert needed_bytes(message) == needed


def test_compiler_answers_are_cached_by_all_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, preset = tiny_config(), load_preset("dp")
    small, large = load_topology("v5e:2x4"), load_topology("v5e:4x4")
    assert plan_cache.load_cost(config, preset, small) is None
    plan_cache.store_cost(config, preset, small, cost(5, 1.0))
    assert plan_cache.load_cost(config, preset, small) == cost(5, 1.0)
    assert plan_cache.load_cost(config, preset, large) is None
    assert plan_cache.load_cost(config, load_preset("tp"), small) is None
    other: RunConfig = tiny_config(model=WIDE, training=BATCHES)
    assert plan_cache.load_cost(other, preset, small) is None
    mine = tiny_config(model=UserModel(reference="lm.py:make", directory="/"))
    plan_cache.store_cost(mine, preset, small, cost(6, 1.0), "module @step { a }")
    assert plan_cache.load_cost(mine, preset, small, "module @step { a }") == cost(6, 1.0)
    assert plan_cache.load_cost(mine, preset, small, "module @step { b }") is None, "another program"
    for name, value in {"ENGINE": tmp_path, "OPTIONS": ["--xla_some=true", None]}.items():
        with monkeypatch.context() as changed:
            changed.setattr(plan_cache, name, value)
            assert plan_cache.load_cost(config, preset, small) is None
    for file in (tmp_path / "shardtui" / "plan").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    assert plan_cache.load_cost(config, preset, small) is None, "truncated"


def test_an_unknown_preset_name_is_refused_with_a_hint(home: Path) -> None:
    with pytest.raises(UserError, match="axes data, fsdp, expert, seq, model, pipeline, such as fsdp4-model2"):
        load_preset("fsdp4-modle2")
