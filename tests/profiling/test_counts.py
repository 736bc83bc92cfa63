"""Traces of real steps on eight simulated devices: every collective has its events, as often as the text says."""

from collections import Counter
from pathlib import Path

import jax
import pytest
from shardtui.engine.data.batches import Batches
from shardtui.engine.data.source import read_corpus
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.models.task import Task
from shardtui.engine.profiling.breakdown import read_breakdown
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program
from shardtui.engine.spec.config import RunConfig, UserModel
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.inputs import DeviceBatches
from shardtui.engine.wire.step_breakdown import TICKS, StepBreakdown
from shardtui.tui.state.bottleneck import flow_times

from .. import second_reader

STEPS = 2
SMALL = ("batch_size=8", "seq_len=64", "layers=2")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
USERS = UserModel(
    reference=f"{EXAMPLES}/transformer.py:language_model",
    directory=str(EXAMPLES),
    arguments={"blocks": 2, "dropout": 0.0},
)
CASES = [
    pytest.param(("nano", "fsdp-tp2"), marks=pytest.mark.core),
    *(
        pytest.param(case, marks=pytest.mark.slow)
        for case in (("nano-moe", "ep2-tp2"), ("nano", "dp"), ("nano", "dp-tp2-pp2"), ("nano", "sp2"), ("user's", "dp"))
    ),
]
Measured = tuple[Program, StepBreakdown]


def traced(task: Task, program: Program, folder: Path) -> StepBreakdown:
    """Traces steps, cut cleanly, and reads them."""
    config = task.config
    batches = Batches(read_corpus(__file__), config.training.batch_size, config.training.seq_len, config.seed)
    state, feed = compile_initial_state(program.placement)(), DeviceBatches(task.model.batches or batches, 1)
    inputs = [feed.batch(at, program) for at in range(STEPS + 1)]
    state, _ = program.step(state, inputs[0])
    jax.block_until_ready(state)
    with jax.profiler.trace(folder):
        for batch in inputs[1:]:
            state, _ = program.step(state, batch)
        jax.block_until_ready(state)
    (path,) = folder.rglob("*.xplane.pb")
    return read_breakdown(path, program.description.mesh.axes, program.step.as_text() or "")


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    name, preset = request.param
    known = load_model("nano" if name == "user's" else name, SMALL)
    model = USERS if name == "user's" else known.model
    task = Task(RunConfig(run="a", model_name=name, model=model, training=known.training, preset=preset), "cpu")
    program = compile_program(place(task, load_preset(preset), jax.devices()))
    return program, traced(task, program, tmp_path_factory.mktemp("trace"))


def test_what_the_text_says_ran_as_often_and_the_parts_add_up_to_the_step(measured: Measured) -> None:
    program, breakdown = measured
    inventory = program.description.collectives or []
    said = Counter((each.kind, tuple(each.axes), each.count, each.bytes_per_device) for each in inventory)
    ran = Counter((each.kind, tuple(each.axes), each.count, each.bytes) for each in breakdown.collectives)
    assert said and ran == said
    assert breakdown.steps == STEPS
    flops = second_reader.flops(program.step.as_text() or "")
    found = sum(each.flops or 0.0 for each in breakdown.operations)
    assert 0.99 * flops < found <= 1.000001 * flops, "the shortest operations are not listed"
    assert len(breakdown.devices) == 8
    for device in breakdown.devices:
        assert sum(device.seconds) == pytest.approx(breakdown.step_seconds, rel=1e-3)
    assert sum(part.seconds for part in breakdown.parts) == pytest.approx(breakdown.step_seconds, rel=1e-3)
    assert breakdown.skipped == []
    parts = {part.name: part.seconds for part in breakdown.parts}
    sums = {(flow.kind, tuple(flow.axes)): flow for flow in flow_times(breakdown)}
    for flow in flows(inventory):
        found = sums[flow.kind, tuple(flow.axes)]
        assert (found.count, found.bytes) == (flow.count, flow.bytes_per_device)
        name = f"{flow.kind} over {' × '.join(flow.axes)}"
        assert parts.get(f"{name}: waiting", 0.0) == pytest.approx(found.waiting_seconds)
        assert parts.get(f"{name}: exposed", 0.0) == pytest.approx(found.exposed_seconds)
    waiting = sum(each.waiting_seconds for each in breakdown.collectives) * len(breakdown.devices)
    late = sum(wait.seconds for wait in breakdown.waits) * (len(breakdown.devices) - 1)
    assert 0 < waiting <= late * 1.000001


def test_operations_have_rates_and_sources_and_the_timeline_agrees_with_the_parts(measured: Measured) -> None:
    program, breakdown = measured
    for each in breakdown.operations:
        assert (each.flops is not None) <= (each.part == "matrix products"), each
        assert each.bytes is not None and each.bytes > 0, each
        assert (each.flops_share, each.bandwidth_share, each.roofline_seconds) == (None, None, None)
    products = [each for each in breakdown.operations if each.flops]
    for each in products[:5]:
        assert (each.flops_per_second or 0.0) * each.seconds == pytest.approx(each.flops, rel=1e-3)
    assert 0 < max(each.flops_per_second or 0.0 for each in products) < 1e13, "FLOP/s of a device on a CPU"
    timeline = breakdown.timeline
    assert timeline and [each.device for each in timeline.devices] == list(range(8))
    for device, sums in zip(timeline.devices, breakdown.devices, strict=True):
        parts = dict(zip((part.name for part in breakdown.parts), sums.seconds, strict=True))
        waiting = sum(time for name, time in parts.items() if name.endswith(": waiting"))
        work = sum(parts[name] for name in ("matrix products", "other fusions", "copies"))
        assert 0 < sum(device.work[::3]) + sum(device.work[1::3]) <= TICKS
        spans = [sum(lane[1::3]) / TICKS * timeline.seconds for lane in (device.work, device.waiting)]
        assert spans == pytest.approx([work, waiting], rel=1, abs=0.3 * timeline.seconds), "one step of several"
    named = {breakdown.operations[at].name for device in timeline.devices for at in device.collectives[2::3] if at >= 0}
    assert named <= {each.name for each in breakdown.collectives}
    assert named
    total = sum(each.seconds for each in breakdown.operations)
    assert sum(each.seconds for each in breakdown.operations if each.source) > 0.5 * total
    assert any("blocks" in each.module for each in breakdown.operations[:20]) or program.description.attention is None
