"""Traces of real steps on eight simulated devices: every collective has its events, as often as the text says."""

from collections import Counter
from pathlib import Path

import jax
import pytest
from shardtui.engine.analysis.traffic import flows
from shardtui.engine.models.task import Batch, Task
from shardtui.engine.profiling.account import read_account
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import Program, compile_initial_state, compile_program
from shardtui.engine.spec.config import RunConfig
from shardtui.engine.spec.model_choice import load_model
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.data import Batches, read_corpus
from shardtui.engine.wire.account import Account
from shardtui.tui.state.account_sums import flow_times

STEPS = 2
SLOW = [("nano", "dp"), ("nano", "dp-tp2-pp2"), ("nano", "sp2")]
CASES = [("nano", "fsdp-tp2"), ("nano-moe", "ep2-tp2"), *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]


def traced(task: Task, program: Program, folder: Path) -> Account:
    """Traces steps, cut cleanly, and reads them."""
    config = task.config
    batches = Batches(read_corpus(__file__), config.training.batch_size, config.training.seq_len, config.seed)
    state = compile_initial_state(task, program.placement)()
    inputs = [Batch(*map(jax.device_put, batches[at], program.placement.batch_shardings)) for at in range(STEPS + 1)]
    state, _ = program.step(state, inputs[0])
    jax.block_until_ready(state)
    with jax.profiler.trace(folder):
        for batch in inputs[1:]:
            state, _ = program.step(state, batch)
        jax.block_until_ready(state)
    (path,) = folder.rglob("*.xplane.pb")
    return read_account(path, program.description.mesh.axes, program.step.as_text() or "")


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Account]:
    """A program and the account of its step."""
    name, preset = request.param
    model = load_model(name, ("batch_size=8",))
    config = RunConfig(run="a", model_name=name, model=model.model, training=model.training, preset=preset)
    task = Task(config, "cpu")
    program = compile_program(task, place(task, load_preset(preset), jax.devices()))
    return program, traced(task, program, tmp_path_factory.mktemp("trace"))


def test_each_collective_of_the_inventory_runs_as_often_as_the_text_says(
    measured: tuple[Program, Account],
) -> None:
    program, account = measured
    inventory = program.description.collectives
    assert inventory
    said = Counter((each.kind, tuple(each.axes), each.count, each.bytes_per_device) for each in inventory)
    ran = Counter((each.kind, tuple(each.axes), each.count, each.bytes) for each in account.collectives)
    assert ran == said
    assert account.steps == STEPS


def test_the_parts_of_each_device_add_up_to_the_step(
    measured: tuple[Program, Account],
) -> None:
    _, account = measured
    assert len(account.devices) == 8
    for device in account.devices:
        assert sum(device.seconds) == pytest.approx(account.step_seconds, rel=1e-3)
    assert sum(part.seconds for part in account.parts) == pytest.approx(account.step_seconds, rel=1e-3)
    assert account.skipped == []


def test_the_sums_of_collectives_are_those_of_traffic_and_of_the_parts(
    measured: tuple[Program, Account],
) -> None:
    program, account = measured
    parts = {part.name: part.seconds for part in account.parts}
    sums = {(flow.kind, tuple(flow.axes)): flow for flow in flow_times(account)}
    for flow in flows(program.description.collectives or []):
        found = sums[flow.kind, tuple(flow.axes)]
        assert (found.count, found.bytes) == (flow.count, flow.bytes_per_device)
        name = f"{flow.kind} over {' × '.join(flow.axes)}"
        assert parts.get(f"{name}: waiting", 0.0) == pytest.approx(found.waiting_seconds)
        assert parts.get(f"{name}: exposed", 0.0) == pytest.approx(found.exposed_seconds)


def test_devices_wait_no_longer_than_others_are_late(
    measured: tuple[Program, Account],
) -> None:
    _, account = measured
    waiting = sum(each.waiting_seconds for each in account.collectives) * len(account.devices)
    late = sum(wait.seconds for wait in account.waits) * (len(account.devices) - 1)
    assert 0 < waiting <= late * 1.000001


def test_the_source_of_most_time_is_known(measured: tuple[Program, Account]) -> None:
    _, account = measured
    total = sum(each.seconds for each in account.operations)
    assert sum(each.seconds for each in account.operations if each.source) > 0.5 * total
    assert any(each.module.startswith("blocks") for each in account.operations[:20])
