"""Compares the formulas with programs compiled for eight CPU devices, and tests what needs no compiler.

docs/planning-measured.md compares them with the TPU compiler.
"""

import json
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import jax
import msgspec
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.hlo.traffic import Flow, flows
from shardtui.engine.models.flops import flops_by_scope
from shardtui.engine.models.sizes import flops_per_token
from shardtui.engine.models.task import Task
from shardtui.engine.planning import compilers as plan_cache
from shardtui.engine.planning.ahead_of_time import needed_bytes
from shardtui.engine.planning.estimate import Step, estimate_row, preview
from shardtui.engine.planning.networks import by_network
from shardtui.engine.planning.ranking import Board, Row, StepCost, Work, network_seconds, ranked, timed
from shardtui.engine.planning.step_trace import StepTrace
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_program, trace_step
from shardtui.engine.spec.config import RunConfig, UserModel
from shardtui.engine.spec.preset import Indivisible
from shardtui.engine.spec.preset_reader import load_preset, mesh_preset, parse_preset
from shardtui.engine.spec.preset_writer import preset_text
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.commands import PreviewPreset
from shardtui.tui.cli.plan_report import plan_report
from shardtui.tui.state import board_rows
from shardtui.tui.state.recommendation import recommendation
from shardtui.tui.widgets.preset_diff import no_estimate_lines

from ..conftest import BATCHES, WIDE, built_in_task, tiny_config
from ..models.families import FAMILIES
from ..programs import KINDS

GB = 1e9


def bytes_sent(collectives: list[Flow]) -> int:
    return sum(flow.bytes_sent for flow in collectives)


@pytest.mark.parametrize(
    "names", [("dp", "fsdp-tp2", "dp-tp2-pp2"), pytest.param(tuple(KINDS), marks=pytest.mark.slow)], ids=("some", "all")
)
def test_formulas_predict_memory_and_bytes_sent_and_their_order(
    task: Task, programs: Mapping[str, Program], names: tuple[str, ...]
) -> None:
    for name in names:
        step, memory = Step(task, programs[name].placement.preset, 8), programs[name].description.memory
        assert memory and step.argument_bytes == memory.arguments, name
        assert step.unknown or sum(step.parts.values()) == pytest.approx(memory.peak, rel=0.12), name
    known = [name for name in names if not Step(task, programs[name].placement.preset, 8).unknown]
    assert {*names} - {*known} == {"pitfall-first-dim"} & {*names}
    formula = {name: bytes_sent(Step(task, programs[name].placement.preset, 8).flows) for name in known}
    compiled = {name: bytes_sent(flows(programs[name].description.collectives or [])) for name in known}
    assert formula == pytest.approx(compiled, rel=0.002)
    for one, other in combinations(known, 2):
        if formula[one] != formula[other]:
            assert (formula[one] < formula[other]) == (compiled[one] < compiled[other]), f"{one} and {other}"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fsdp-tp2", {"remat": True}),
        pytest.param("fsdp", {"dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param("fsdp", {"remat": True}, marks=pytest.mark.slow),
        pytest.param("dp-tp2-pp2", {"remat": True, "layers": 4}, marks=pytest.mark.slow),
    ],
)
def test_formulas_follow_the_cpu_compiler_on_bfloat16_and_remat(name: str, changes: dict[str, Any]) -> None:
    preset = load_preset(name)
    task = Task(tiny_config(model=msgspec.structs.replace(WIDE, **changes), training=BATCHES), "cpu")
    step = Step(task, preset, 8)
    if "dtype" in changes and jax.__version_info__ >= (0, 12):
        assert "bfloat16 on CPU" in step.unknown
        return
    compiled = compile_program(task, place(task, preset, jax.devices())).description
    assert compiled.memory and compiled.collectives
    assert bytes_sent(step.flows) == pytest.approx(bytes_sent(flows(compiled.collectives)), rel=0.002)
    assert sum(step.parts.values()) == pytest.approx(compiled.memory.peak, rel=0.1)


IDLE = "[mesh]\nfsdp = {}\nmodel = {}\n[rules]\nbatch = 'fsdp'\n"
GATHERED = IDLE + "embed = 'fsdp'\n"


@pytest.mark.parametrize(
    ("text", "attention", "is_covered"),
    [
        pytest.param(GATHERED.format(4, 2), "auto", True, marks=pytest.mark.slow),
        (GATHERED.format(2, 4), "auto", False),
        pytest.param(
            GATHERED.format(2, 4) + "heads = 'model'\nvocab = 'model'\n", "auto", False, marks=pytest.mark.slow
        ),
        pytest.param(IDLE.format(4, 2), "splash", True, marks=pytest.mark.slow),
        pytest.param(
            IDLE.format(4, 2).replace("fsdp", "seq").replace("batch", "seq"), "ring", True, marks=pytest.mark.slow
        ),
    ],
)
def test_devices_that_repeat_each_others_products_send_what_the_formula_says_or_it_says_nothing(
    text: str, attention: str, is_covered: bool
) -> None:
    """Over axes that split no product the partitioner splits kernels, if these axes are not smaller than those that
    gather the kernel, and attention by a kernel sums equal gradients."""
    training = msgspec.structs.replace(BATCHES, seq_len=128)
    model = msgspec.structs.replace(WIDE, attention=attention, heads=4, context=128)
    task, preset = Task(tiny_config(model=model, training=training), "cpu"), parse_preset(Path("x.toml"), text)
    step = Step(task, preset, 8)
    compiled = compile_program(task, place(task, preset, jax.devices())).description
    sent = bytes_sent(flows(compiled.collectives or []))
    assert (bytes_sent(step.flows) == pytest.approx(sent, rel=0.01)) == is_covered
    assert step.unknown == "" or not is_covered
    assert is_covered or "is all-gathered over fsdp, in a product that model does not split" in step.unknown


def test_gathers_of_moments_flops_and_axes_of_size_1_are_counted_by_formula(task: Task) -> None:
    preset = load_preset("pitfall-replicated-moments")
    replicated, split = (Step(task, each, 8) for each in (preset, load_preset("fsdp")))
    gathered = sum(flow.bytes_known for flow in replicated.flows) - sum(flow.bytes_known for flow in split.flows)
    elements = 8 * sum(
        split.layout.local_elements(weight.array.shape, weight.spec) for weight in split.layout.weights if weight.axes
    )
    assert gathered == 2 * 4 * elements, "by each of two moments, in float32"
    text = '[mesh]\ndata = 8\nmodel = 1\n[rules]\nbatch = "data"\nembed = "model"\nkeys = "model"\n'
    assert estimate_row(task, parse_preset(Path("x.toml"), text), 8, None).no_estimate == ""
    # Holds if no device repeats another's work and nothing is recomputed.
    model = BATCHES.tokens_per_step * flops_per_token(WIDE, BATCHES.seq_len)
    for name in ("dp", "tp", "dp-tp2", "fsdp", "fsdp-tp2", "hsdp", "sp2", "dp-sp2"):
        assert 8 * Step(task, load_preset(name), 8).work.flops == pytest.approx(model, rel=0.02), name
    unsplit_heads = 8 * Step(task, load_preset("data4-model2-whole.heads"), 8).work.flops
    assert unsplit_heads > 1.3 * model, "attention is repeated"
    fine, wrong = (parse_preset(Path("x.toml"), text_of_dp() + end) for end in ("", '[overrides]\n"*.kernel" = 3\n'))
    assert (fine.layout, fine.problems) == (wrong.layout, ()) and wrong.problems
    assert estimate_row(task, fine, 8, None).estimate
    assert estimate_row(task, wrong, 8, None).problems == list(wrong.problems)


def test_axes_of_size_1_are_in_no_collective(task: Task) -> None:
    """Rules of heads and MLP that name different axes of size 1 split alike: their all-reduces are one row."""
    text = '[mesh]\ndata = 4\nextra = 1\nmodel = 2\n[rules]\nbatch = ["extra", "data"]\nvocab = "model"\n'
    one, other = (
        parse_preset(Path("x.toml"), text + rules)
        for rules in ('heads = "model"\nmlp = "model"\n', 'heads = ["extra", "model"]\nmlp = "model"\n')
    )
    flows_of_one, flows_of_other = (Step(task, preset, 8).flows for preset in (one, other))
    assert flows_of_one == flows_of_other
    assert {axis for flow in flows_of_one for axis in flow.axes} == {"data", "model"}


MLP = "mlp is split over data and model, only some of which split the tokens"
MATMUL = "[overrides] split blocks.attention.out.kernel differently from the matmul that uses it"
UNKNOWN = {
    'batch = "data"\nembed = "model"': "embed is split over model, which does not split the tokens",
    'batch = "data"\nactivation_embed = "model"': "activation_embed is split over model",
    'batch = "data"\nkeys = "model"': "keys is split over model",
    'seq = ["data", "model"]\nheads = "model"': "heads and seq are both split over model",
    'batch = "model"\nmlp = ["data", "model"]': MLP,
    'batch = "model"\nlayers = "model"': "layers are split over model, but not into pipeline stages",
    'batch = "data"\n[overrides]\n"*.kernel" = ["model"]': MATMUL,
    'mlp = "model"\n[overrides]\n"mu.*" = []': "[overrides] split blocks.mlp.down.kernel and its moments differently",
}
TRACED = ('batch = "data"\nembed = "model"', 'mlp = "model"\n[overrides]\n"mu.*" = []')


def text_of_dp() -> str:
    return preset_text(load_preset("dp"))


def test_a_peak_that_is_too_small_to_be_trusted_is_said(task: Task) -> None:
    row = estimate_row(task, load_preset("dp"), 8, None)
    assert ["a small peak" in line for line in board_rows.caveats(row)] == [True]
    assert board_rows.caveats(msgspec.structs.replace(row, compiled=row.estimate)) == []


@pytest.mark.parametrize("rules", UNKNOWN)
def test_uncovered_layouts_have_no_estimate_but_a_reason(rules: str, task: Task) -> None:
    text = f"[mesh]\ndata = 4\nmodel = 2\n[rules]\n{rules}\n"
    preset, slice_ = parse_preset(Path("x.toml"), text), load_topology("v5e:2x4")
    row = estimate_row(task, preset, 8, slice_)
    assert row.no_estimate == UNKNOWN[rules]
    assert (row.estimate, row.verdict, row.problems) == (None, "not known", [])
    assert board_rows.all_caveats([row]) == [f"x: no estimate: {UNKNOWN[rules]}"]
    assert plan_report(Board(model="m", topology="v5e:2x4", rows=[row])).rows[0].no_estimate == UNKNOWN[rules]
    previewed = preview(task, jax.devices(), PreviewPreset(1, "x", text_of_dp(), text))
    assert [line.plain for line in no_estimate_lines(previewed, 200)] == [f"no estimate after: {UNKNOWN[rules]}"]
    after = previewed.after
    assert (after.no_estimate, after.peak_bytes, after.sent_bytes) == (UNKNOWN[rules], None, {})
    assert after.argument_bytes == Step(task, parse_preset(Path("x.toml"), text), 8).argument_bytes


@pytest.mark.parametrize(
    "rules", [rules if rules in TRACED else pytest.param(rules, marks=pytest.mark.slow) for rules in UNKNOWN]
)
def test_uncovered_layouts_are_estimated_by_their_trace(rules: str, task: Task) -> None:
    preset = parse_preset(Path("x.toml"), f"[mesh]\ndata = 4\nmodel = 2\n[rules]\n{rules}\n")
    traced = estimate_row(task, preset, 8, load_topology("v5e:2x4"), "traced")
    assert traced.estimate and (traced.no_estimate, traced.estimate.basis) == ("", "traced")
    assert traced.estimate.argument_bytes == Step(task, preset, 8).argument_bytes and traced.estimate.step_seconds


def test_what_cannot_be_traced_keeps_its_rough_cost() -> None:
    task = built_in_task("gpt2", "batch_size=64")
    row = estimate_row(task, load_preset("dp"), 64, load_topology("v5p:4x4x4"), "traced")
    assert row.estimate and (row.estimate.basis, row.no_estimate) == ("rough", ""), "only 8 devices are simulated"


def test_each_order_of_a_mesh_has_its_estimate_and_gpt3_the_memory_of_the_hand_calculation() -> None:
    """Their steps are the same one, but not their links."""
    task, slice_ = built_in_task("gpt2", "batch_size=32"), load_topology("v5p:2x2x4")
    presets = [mesh_preset(name) for name in ("data4-fsdp2-model2", "model2-fsdp2-data4")]
    one, other = (estimate_row(task, preset, 16, slice_) for preset in presets if preset)
    assert one.estimate and other.estimate and presets[1]
    assert one.estimate.parts == other.estimate.parts
    assert one.estimate.network_seconds != other.estimate.network_seconds
    assert other.estimate == Step(task, presets[1], 16).cost(slice_, presets[1].sizes(16))
    assert ["fsdp", "data"] in [flow.axes for flow in other.estimate.collectives or ()]
    remat = Task(tiny_config(model=msgspec.structs.replace(WIDE, remat=True), training=BATCHES), "cpu")
    text = '[mesh]\ndata = 4\nmodel = 2\n[rules]\nbatch = "data"\nsaved_embed = "model"\n'
    unlike, like = (parse_preset(Path("x.toml"), text + rule) for rule in ("", 'heads = "model"\n'))
    assert Step(remat, unlike, 8).unknown == "saved_embed is split over model, unlike heads"
    assert Step(remat, like, 8).unknown == ""
    # With 8-way model parallelism alone, 175e9 half-precision parameters take 44 GB per device.
    gpt3, hand = built_in_task("gpt3-175b", "batch_size=64"), 175e9 * 2 / 8
    parts = Step(gpt3, load_preset("data8-model8"), 64).parts
    assert parts["kernel copies"] == pytest.approx(hand, rel=0.01)
    assert parts["parameters"] == pytest.approx(2 * hand, rel=0.01), "float32"
    assert parts["moments"] == pytest.approx(4 * hand, rel=0.01)
    split = Step(gpt3, load_preset("fsdp8-model8"), 64).parts
    assert split["kernel copies"] == pytest.approx(hand / 8, rel=0.01)
    assert parts["saved activations"] == split["saved activations"] == 96 * 8 * 2048 * 12288 // 8 * 2


PLAIN, REMAT = ("batch_size=32",), ("batch_size=32", "remat=true")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dp-tp2", REMAT),
        *(
            pytest.param(name, settings, marks=pytest.mark.slow)
            for name, settings in (("dp", PLAIN), ("dp", REMAT), ("fsdp", PLAIN), ("fsdp", REMAT), ("dp-tp2", PLAIN))
        ),
    ],
)
def test_the_trace_of_the_built_in_model_agrees_with_the_formulas(name: str, settings: tuple[str, ...]) -> None:
    task, preset, slice_ = built_in_task("gpt2", *settings), load_preset(name), load_topology("v5e:2x4")
    traced = StepTrace(task, preset, jax.devices()).cost(slice_)
    cost = Step(task, preset, 8).cost(slice_, preset.sizes(8))
    assert traced.peak_bytes == pytest.approx(cost.peak_bytes, rel=0.25)
    assert traced.bytes_sent == pytest.approx(cost.bytes_sent, rel=0.3)
    assert traced.step_seconds == pytest.approx(cost.step_seconds, rel=0.35), "the trace reads arrays again for norms"


@pytest.mark.parametrize(("seq", "held", "computed"), [(1024, 1, 0.75), (2048, 5 / 8, 5 / 8)])
def test_splash_attention_saves_no_scores_and_plain_attention_blocks(seq: int, held: float, computed: float) -> None:
    """Both leave out blocks above the diagonal; plain attention of 1,024 positions is one block."""
    sizes = ("batch_size=64", f"seq_len={seq}", f"context={seq}")
    plain, splash = (
        Step(built_in_task("gpt2", *sizes, f"attention={kernel}"), load_preset("dp"), 8) for kernel in ("plain", "auto")
    )
    layers, scores, padding = 12, 8 * 12 * seq * seq, 8 * 12 * seq * (128 - 64)
    saved = layers * (scores * held * (4 + 2) - 4 * padding * 2)
    assert plain.memory.saved_bytes - splash.memory.saved_bytes == saved
    products = 2 * 64 * scores * layers
    assert plain.work.flops - splash.work.flops == pytest.approx(products * (6 * held - (2 + 7) * computed), abs=1)


def test_only_tiles_that_are_not_filled_make_copies_of_a_gathered_table() -> None:
    """One of 768 columns: 96 on each of 8 devices, 384 on each of 2; a tile of a TPU has 128 lanes."""
    copies = []
    for platform, devices in (("tpu", 8), ("tpu", 2), ("gpu", 8)):
        step = Step(built_in_task("gpt2", "batch_size=64", platform=platform), load_preset("fsdp"), devices)
        rows = 50304  # the vocabulary, padded
        logits = 64 // devices * 1024 * rows * 2
        copies.append((step.memory.logits_bytes - logits) / (rows * 768 * 2))
    assert copies == [4, 2, 2]


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
    assert (preset.mesh, preset.rules, preset.reference) == (mesh, rules, name)
    assert list(preset.mesh) == list(mesh), "the order in which devices fill the mesh"
    assert preset.microbatches == (8 if "microbatches" in name else None)


@pytest.mark.parametrize(
    "name", ["data0", "rows2", "data2-data4", "data", "data2-", "model2-whole.batch", "data2-microbatches.4", "2", ""]
)
def test_invalid_mesh_names_are_no_presets(name: str) -> None:
    assert mesh_preset(name) is None


def cost(peak: int, seconds: float) -> StepCost:
    """Returns a cost on a device of 10 bytes."""
    return StepCost(argument_bytes=1, peak_bytes=peak, capacity_bytes=10, collectives=[], step_seconds=seconds)


def test_presets_rank_by_time_or_missing_memory_and_carry_what_does_not_divide() -> None:
    rows = [
        Row(preset="impossible", mesh={}, problems=["heads"]),
        Row(preset="far too large", mesh={}, estimate=cost(30, 1.0)),
        Row(preset="slow", mesh={}, estimate=cost(5, 2.0)),
        Row(preset="fits by formula only", mesh={}, estimate=cost(9, 0.5), compiled=cost(11, 0.5)),
        Row(preset="fast", mesh={}, estimate=cost(9, 1.0)),
    ]
    assert [row.preset for row in ranked(rows)] == [rows[n].preset for n in (4, 2, 3, 1, 0)]
    assert recommendation(rows, "v5e:2x4").startswith("fast: 1.0 s per step")
    assert "2.00 × as fast as slow" in recommendation(rows, "v5e:2x4")
    assert "comes closest, 1 B per device too large" in recommendation(rows[:2] + rows[3:4], "v5e:2x4")
    assert "none of these fit on" in recommendation(rows[:1], "v5e:2x4")
    small = built_in_task("gpt2", "batch_size=16")
    rows = [estimate_row(small, load_preset(name), 64, None) for name in ("dp", "tp", "dp-tp2")]
    assert all(row.verdict == "infeasible" and row.problems for row in rows)
    assert rows[0].indivisible == [Indivisible("batch", 16, 64)]
    assert {dim.logical_axis for dim in rows[1].indivisible} >= {"heads"}, "12 heads, 64 devices"
    assert any("heads 12 does not divide by 64" in problem for problem in rows[1].problems)
    assert rows[2].indivisible == [Indivisible("batch", 16, 32)]
    both = parse_preset(Path("both.toml"), '[mesh]\ndata = 64\n[rules]\nbatch = "data"\nnone_such = "data"\n')
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
    flow = Flow(kind="all-reduce", axes=["replica"], count=1, bytes_per_device=1, bytes_known=1, bytes_sent=125 * 10**8)
    crossing = msgspec.structs.replace(flow, network="dcn")
    inside = msgspec.structs.replace(flow, axes=["fsdp"], network="ici")
    assert network_seconds([crossing], topology, mesh) == 2.0
    assert network_seconds([inside], topology, mesh) == 125e8 / 600e9
    # Of 8 devices in each of two slices; the compiler makes the same, see test_megascale.py.
    mesh, moved = {"data": 16, "model": 2}, 1024

    def parts(kind: str, *axes: str) -> list[tuple[str, list[str], int, int, str | None]]:
        flow = Flow(kind=kind, axes=list(axes), count=1, bytes_per_device=moved, bytes_known=moved, bytes_sent=1)
        found = by_network([flow], mesh, load_topology("2*v5e:4x4"))
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
    assert parts("all-reduce", "model") == [("all-reduce", ["model"], 1024, 1, "ici")]


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


RECORDED = Path(__file__).parents[2] / "docs" / "data" / "long" / "estimates-families.json"
SIZES = {"embed": WIDE.embed, "heads": WIDE.heads, "mlp": WIDE.mlp, "context": WIDE.context, "layers": 4}


def wide_task(family: str, **changes: Any) -> Task:
    """Returns a task of a family in the sizes of `WIDE`, so that formulas can be judged by it."""
    kv_heads = WIDE.heads // 2 if FAMILIES[family].is_grouped else 0
    model = msgspec.structs.replace(FAMILIES[family], **SIZES, kv_heads=kv_heads, **changes)
    return Task(tiny_config(model=model, training=BATCHES), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_have_the_arguments_and_what_data_parallelism_sends(family: str) -> None:
    task = wide_task(family)
    for name in ("dp", "fsdp"):
        step = Step(task, load_preset(name), 8)
        compiled = compile_program(task, place(task, load_preset(name), jax.devices())).description
        assert compiled.memory and compiled.collectives
        assert step.argument_bytes == compiled.memory.arguments, name
        sent = sum(flow.bytes_sent for flow in flows(compiled.collectives))
        assert sum(flow.bytes_sent for flow in step.flows) == pytest.approx(sent, rel=0.002), name


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_count_the_operations_of_the_jaxpr(family: str, remat: bool) -> None:
    task = wide_task(family, remat=remat)
    placement = place(task, load_preset("dp"), jax.devices())
    counted = sum(filter(None, flops_by_scope(trace_step(task, placement).jaxpr).values()))
    assert 8 * Step(task, load_preset("dp"), 8).work.flops == pytest.approx(counted, rel=0.02)


QWEN = ("batch_size=16", "seq_len=2048")


def tpu_step(name: str, preset: str, devices: int, *settings: str) -> Step:
    return Step(built_in_task(name, *settings), load_preset(preset), devices)


def test_kernels_are_gathered_and_their_gradients_reduced_over_a_whole_slice() -> None:
    """As counted in the text of qwen3-0.6b under fsdp on v5p:2x2x2, libtpu 0.0.42.1."""
    sent = {flow.kind: flow.bytes_sent for flow in tpu_step("qwen3-0.6b", "fsdp", 8, *QWEN).flows}
    assert sent.keys() == {"all-gather", "all-reduce"}, "the compiler slices afterwards"
    assert sent == {"all-gather": pytest.approx(2020e6, rel=1e-3), "all-reduce": pytest.approx(2086e6, rel=1e-3)}


def test_scores_before_the_window_are_left_out() -> None:
    local, everywhere = (
        tpu_step("gemma3-4b", "fsdp", 8, "batch_size=8", f"window={window}") for window in (1024, 4096)
    )
    assert everywhere.layout.computed_scores == (1 + 512 / 4096) / 2
    blocks = sum(min(block + 1, 3) for block in range(8))  # of 512: its own, and two for the 1,023 positions before
    windowed = blocks * 512**2 / 4096**2
    full, layers = everywhere.layout.computed_scores, 34
    assert local.layout.computed_scores == pytest.approx((29 * windowed + 5 * full) / layers)


@pytest.mark.slow
def test_recorded_estimates_are_those_of_the_formulas_and_near_the_compiler() -> None:
    peaks, sent = list[float](), list[float]()
    for entry in json.loads(RECORDED.read_text()).values():
        for name, topology, preset, settings, peak, compiled, off, _, moved, _, moved_off in entry["rows"]:
            peaks.append(abs(off))
            sent.append(abs(moved_off))
            if not name.startswith("hf:"):
                step = tpu_step(name, preset, load_topology(topology).devices, *settings.split())
                assert sum(step.parts.values()) == peak == pytest.approx(compiled * (1 + off)), name
                assert sum(flow.bytes_sent for flow in step.flows) == moved, name
    assert len(peaks) >= 8
    assert median(peaks) <= 0.05 and median(sent) <= 0.02
