"""Formulas against compiled programs on eight devices, and what needs no compiler. The TPU compiler's own figures stand
in docs/planning.md."""

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import msgspec
import pytest
from shardtui.engine.analysis.traffic import Flow, flows
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.models.sizes import flops_per_token
from shardtui.engine.models.task import Task
from shardtui.engine.planning import cache as plan_cache
from shardtui.engine.planning.ahead_of_time import needed_bytes
from shardtui.engine.planning.estimate import Step, estimate_row
from shardtui.engine.planning.preview import weigh
from shardtui.engine.planning.ranking import Board, Cost, Row, Work, ranked, recommendation, timed
from shardtui.engine.planning.search import candidates, search
from shardtui.engine.program.program import Program, compile_program, place
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_file import preset_text
from shardtui.engine.spec.preset_reader import load_preset, load_presets, mesh_preset, parse_preset
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.commands import WeighPreset
from shardtui.tui.cli.compare_report import row_report
from shardtui.tui.cli.plan_report import plan_report
from shardtui.tui.state import board_rows
from shardtui.tui.widgets.what_follows import why_lines

from ..conftest import BATCHES, WIDE, tiny_config

GB = 1e9


def tpu_task(name: str, *settings: str) -> Task:
    model = load_model(name, settings)
    return Task(tiny_config(model_name=name, model=model.model, training=model.training), "tpu")


@pytest.fixture(scope="module")
def gpt3() -> Task:
    return tpu_task("gpt3-175b", "batch_size=64")


def test_arguments_are_those_of_the_compiled_programs(task: Task, programs: dict[str, Program]) -> None:
    for name, program in programs.items():
        memory = program.description.memory
        assert memory and Step(task, program.placement.preset, 8).argument_bytes == memory.arguments, name


def bytes_sent(moved: list[Flow]) -> int:
    return sum(flow.bytes_sent for flow in moved)


def test_presets_send_as_much_as_formulas_say_and_in_their_order(task: Task, programs: dict[str, Program]) -> None:
    names = [name for name in programs if not Step(task, programs[name].placement.preset, 8).unknown]
    assert programs.keys() - names == {"pitfall-first-dim"}
    formula = {name: bytes_sent(Step(task, programs[name].placement.preset, 8).flows) for name in names}
    compiled = {name: bytes_sent(flows(programs[name].description.collectives or [])) for name in names}
    assert formula == pytest.approx(compiled, rel=0.002)
    for one, other in combinations(names, 2):
        if formula[one] != formula[other]:
            assert (formula[one] < formula[other]) == (compiled[one] < compiled[other]), f"{one} and {other}"


def test_presets_hold_what_formulas_say(task: Task, programs: dict[str, Program]) -> None:
    for name, program in programs.items():
        step, memory = Step(task, program.placement.preset, 8), program.description.memory
        if not step.unknown:
            assert memory and sum(step.parts.values()) == pytest.approx(memory.peak, rel=0.12), name


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"remat": True}])
def test_what_the_cpu_makes_of_bfloat16_and_remat(changes: dict[str, Any]) -> None:
    task = Task(tiny_config(model=msgspec.structs.replace(WIDE, **changes), training=BATCHES), "cpu")
    step = Step(task, load_preset("fsdp"), 8)
    if "dtype" in changes and jax.__version_info__ >= (0, 12):
        assert "bfloat16 on CPU" in step.unknown
        return
    compiled = compile_program(task, place(task, load_preset("fsdp"), jax.devices())).description
    assert compiled.memory and compiled.collectives
    assert bytes_sent(step.flows) == pytest.approx(bytes_sent(flows(compiled.collectives)), rel=0.002)
    assert sum(step.parts.values()) == pytest.approx(compiled.memory.peak, rel=0.1)


def test_moments_that_are_split_less_take_the_gradient_gathered(task: Task) -> None:
    preset = load_preset("pitfall-replicated-moments")
    whole, split = (Step(task, each, 8) for each in (preset, load_preset("fsdp")))
    gathered = sum(flow.bytes_known for flow in whole.flows) - sum(flow.bytes_known for flow in split.flows)
    kept = 8 * sum(
        split.layout.local(weight.array.shape, weight.spec) for weight in split.layout.weights if weight.axes
    )
    assert gathered == 2 * 4 * kept, "by each of two moments, float32"


PRODUCT = "[overrides] split blocks.attention.out.kernel otherwise than the product that it is used in"
UNKNOWN = {
    'batch = "data"\nembed = "model"': "embed is split over model, which splits no tokens",
    'batch = "data"\nactivation_embed = "model"': "activation_embed is split over model",
    'batch = "data"\nkeys = "model"': "keys is split over model",
    'seq = ["data", "model"]\nheads = "model"': "heads and seq are both split over model",
    'batch = "model"\nmlp = ["data", "model"]': "mlp is split over data and model, which splits tokens in part",
    'batch = "model"\nlayers = "model"': "layers are split over model, but are no stages",
    'batch = "data"\n[overrides]\n"*.kernel" = ["model"]': PRODUCT,
    'mlp = "model"\n[overrides]\n"mu.*" = []': "[overrides] split moments of blocks.mlp.down.kernel otherwise than"
    " itself",
}


def text_of_dp() -> str:
    return preset_text(load_preset("dp"))


@pytest.mark.parametrize("rules", UNKNOWN)
def test_formulas_say_where_they_do_not_hold(rules: str, task: Task) -> None:
    text = f"[mesh]\ndata = 4\nmodel = 2\n[rules]\n{rules}\n"
    row = estimate_row(task, parse_preset(Path("x.toml"), text), 8, load_topology("v5e:2x4"))
    assert row.no_estimate == UNKNOWN[rules]
    assert (row.estimate, row.verdict, row.problems) == (None, "not known", [])
    assert board_rows.no_estimates([row]) == [f"x: no estimate: {UNKNOWN[rules]}"]
    assert plan_report(Board(model="m", topology="v5e:2x4", rows=[row])).rows[0].no_estimate == UNKNOWN[rules]
    assert row_report(row).no_estimate == UNKNOWN[rules]
    weighed = weigh(task, jax.devices(), WeighPreset(1, "x", text_of_dp(), text))
    assert [line.plain for line in why_lines(weighed, 200)] == [f"no estimate after: {UNKNOWN[rules]}"]
    told = weighed.after
    assert (told.no_estimate, told.peak_bytes, told.sent_bytes) == (UNKNOWN[rules], None, {})
    assert told.argument_bytes == Step(task, parse_preset(Path("x.toml"), text), 8).argument_bytes


def test_axes_of_one_device_split_nothing(task: Task) -> None:
    text = '[mesh]\ndata = 8\nmodel = 1\n[rules]\nbatch = "data"\nembed = "model"\nkeys = "model"\n'
    assert estimate_row(task, parse_preset(Path("x.toml"), text), 8, None).no_estimate == ""


def test_operations_of_all_devices_are_the_models(task: Task) -> None:
    """Where no device repeats what another one does, and nothing is computed again."""
    model = BATCHES.tokens_per_step * flops_per_token(WIDE, BATCHES.seq_len)
    for name in ("dp", "tp", "dp-tp2", "fsdp", "fsdp-tp2", "hsdp", "sp2", "dp-sp2"):
        assert 8 * Step(task, load_preset(name), 8).work.flops == pytest.approx(model, rel=0.02), name
    whole = 8 * Step(task, load_preset("data4-model2-whole.heads"), 8).work.flops
    assert whole > 1.3 * model, "attention is repeated"


def test_the_hand_calculation_for_gpt3(gpt3: Task) -> None:
    """175e9 half-precision parameters over 8-way model parallelism are 44 GB a device, before more is split."""
    hand = 175e9 * 2 / 8
    parts = Step(gpt3, load_preset("data8-model8"), 64).parts
    assert parts["kernel copies"] == pytest.approx(hand, rel=0.01)
    assert parts["parameters"] == pytest.approx(2 * hand, rel=0.01), "float32"
    assert parts["moments"] == pytest.approx(4 * hand, rel=0.01)
    split = Step(gpt3, load_preset("fsdp8-model8"), 64).parts
    assert split["kernel copies"] == pytest.approx(hand / 8, rel=0.01)
    assert parts["saved activations"] == split["saved activations"] == 96 * 8 * 2048 * 12288 * 2


def test_remat_trades_memory_for_operations() -> None:
    kept, again = (
        Step(tpu_task("gpt2", "batch_size=64", f"remat={remat}"), load_preset("dp"), 8) for remat in ("false", "true")
    )
    assert again.memory.saved_bytes < 0.02 * kept.memory.saved_bytes
    assert 1.15 * kept.work.flops < again.work.flops < 4 / 3 * kept.work.flops


def test_what_cannot_be_laid_out_is_a_row_with_every_reason(gpt3: Task) -> None:
    row = estimate_row(gpt3, load_preset("tp"), 64, load_topology("v5p:4x4x4"))
    assert row.verdict == "infeasible" and row.estimate is None
    assert any("heads 96 does not divide by 64" in problem for problem in row.problems)


@pytest.mark.parametrize(
    ("name", "mesh", "rules"),
    [
        ("data2-fsdp4", {"data": 2, "fsdp": 4}, {"batch": ("data", "fsdp"), "embed": ("fsdp",)}),
        ("model8", {"model": 8}, {"heads": ("model",), "mlp": ("model",), "vocab": ("model",)}),
        ("model2-data4-whole.vocab-whole.heads", {"model": 2, "data": 4}, {"batch": ("data",), "mlp": ("model",)}),
    ],
)
def test_a_preset_is_named_by_its_mesh(name: str, mesh: dict[str, int], rules: dict[str, tuple[str, ...]]) -> None:
    preset = load_preset(name)
    assert (preset.mesh, preset.rules, preset.reference) == (mesh, rules, name)
    assert list(preset.mesh) == list(mesh), "devices fill it in this order"


@pytest.mark.parametrize("name", ["data0", "expert2", "data2-data4", "data", "data2-", "model2-whole.batch", "2", ""])
def test_names_of_no_mesh(name: str) -> None:
    assert mesh_preset(name) is None


def test_every_mesh_of_a_slice_is_tried_once() -> None:
    names = [preset.name for preset in candidates(64)]
    assert len(names) == len(set(names))
    meshes = {frozenset((load_preset(name)).mesh.items()) for name in names}
    assert len(meshes) == 28, "64 = 2^6 has so many ways over three axes: 8 over 2"
    assert all(math.prod(load_preset(name).mesh.values()) == 64 for name in names)


def test_search_finds_meshes_that_fit_and_that_no_preset_has(gpt3: Task) -> None:
    topology = load_topology("v5p:4x4x4")
    known, _ = load_presets()
    found = search(gpt3, topology, known)
    rows = [estimate_row(gpt3, preset, 64, topology) for preset in known]
    assert found == ranked(found)
    assert found[0].verdict == "fits"
    assert (found[0].step_seconds or 0) <= (ranked(rows)[0].step_seconds or 0)
    assert not {row.preset for row in found} & {row.preset for row in rows}


def cost(peak: int, seconds: float) -> Cost:
    return Cost(argument_bytes=1, peak_bytes=peak, capacity_bytes=10, collectives=[], step_seconds=seconds)


def test_what_fits_is_ranked_by_time_and_what_does_not_by_what_it_lacks() -> None:
    rows = [
        Row(preset="impossible", mesh={}, problems=["heads"]),
        Row(preset="far too large", mesh={}, estimate=cost(30, 1.0)),
        Row(preset="slow", mesh={}, estimate=cost(5, 2.0)),
        Row(preset="fits by formula only", mesh={}, estimate=cost(9, 0.5), compiled=cost(11, 0.5)),
        Row(preset="fast", mesh={}, estimate=cost(9, 1.0)),
    ]
    assert [row.preset for row in ranked(rows)] == [
        "fast",
        "slow",
        "fits by formula only",
        "far too large",
        "impossible",
    ]
    assert recommendation(rows, "v5e:2x4").startswith("fast: 1.0 s a step")
    assert "2.00 × as fast as slow" in recommendation(rows, "v5e:2x4")
    assert "comes closest and lacks 1 B" in recommendation(rows[:2] + rows[3:4], "v5e:2x4")
    assert "none of these can be laid on" in recommendation(rows[:1], "v5e:2x4")


def test_a_step_takes_as_long_as_what_bounds_it() -> None:
    topology, mesh = load_topology("v5p:4x4x4"), {"data": 16, "model": 4}
    moved = Flow(kind="all-reduce", axes=["model"], count=1, bytes_per_device=8, bytes_known=8, bytes_sent=12 * 10**9)
    work = Work(flops=459e12, memory_bytes=2765e9 / 2, model_flops=0.5 * 64 * 459e12, tokens=640)
    compute = timed(msgspec.structs.replace(cost(1, 0), collectives=[moved]), work, topology, mesh)
    assert (compute.compute_seconds, compute.memory_seconds, compute.network_seconds) == (1.0, 0.5, 12 / 200)
    assert (compute.bound, compute.step_seconds, compute.tokens_per_second) == ("compute", 1.0, 640)
    assert compute.flop_utilisation == 0.5
    more = msgspec.structs.replace(moved, bytes_sent=400 * 10**9)
    network = timed(msgspec.structs.replace(compute, collectives=[more]), work, topology, mesh)
    assert (network.bound, network.step_seconds) == ("network", 2.0)


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("RESOURCE_EXHAUSTED: … Used 20.00G of 15.75G hbm. Exceeded hbm capacity by 4.25G.", 20 * 2**30),
        ("… the total memory required for HLO temporaries (41.5G) exceeds available HBM (31.25G).", 41.5 * 2**30),
        ("… the total memory required for HLO temporaries (1.25T) exceeds available HBM (31.25G).", 1.25 * 2**40),
        ("RESOURCE_EXHAUSTED: something else", None),
    ],
)
def test_what_the_compiler_says_of_a_program_that_is_too_large(message: str, needed: float | None) -> None:
    assert needed_bytes(message) == needed


def test_answers_of_the_compiler_are_kept_for_what_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, preset = tiny_config(), load_preset("dp")
    assert plan_cache.kept(config, preset, "v5e:2x4") is None
    plan_cache.keep(config, preset, "v5e:2x4", cost(5, 1.0))
    assert plan_cache.kept(config, preset, "v5e:2x4") == cost(5, 1.0)
    assert plan_cache.kept(config, preset, "v5e:4x4") is None
    assert plan_cache.kept(config, load_preset("tp"), "v5e:2x4") is None
    other: RunConfig = tiny_config(model=WIDE, training=BATCHES)
    assert plan_cache.kept(other, preset, "v5e:2x4") is None
    for file in (tmp_path / "shardtui" / "plan").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    assert plan_cache.kept(config, preset, "v5e:2x4") is None, "cut off"


def test_a_preset_of_no_name_is_refused_with_what_there_is(home: Path) -> None:
    with pytest.raises(Invalid, match="name a mesh of data, fsdp, model such as fsdp4-model2"):
        load_preset("fsdp4-modle2")
